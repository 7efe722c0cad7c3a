"""Prints the results of a run."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from penstock.cli.terminal import terminal_width
from penstock.reports.console import WIDTH, draw
from penstock.reports.short_screen import draw_short

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.metrics.summary import Summary
    from penstock.reports.artifacts import Artifacts

_MIN_WIDTH = 40


def show(
    summary: Summary,
    artifacts: Artifacts,
    *,
    show_http: bool = False,
    show_timeline: bool = False,
    file: IO[str] | None = None,
) -> None:
    """Print the report of a run, with all tables if `show_timeline`."""
    if show_timeline:
        draw_on(lambda console: draw(console, summary, artifacts, show_http=show_http, show_timeline=True), file)
    else:
        draw_on(lambda console: draw_short(console, summary, artifacts, show_http=show_http), file)


def draw_on(drawing: Callable[[Console], None], file: IO[str] | None = None) -> None:
    """Print in colour and full width on a terminal; elsewhere plain, COLUMNS or 140 columns wide."""
    from rich.console import Console

    stream = file or sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        # An error message from a server may contain characters that the terminal's encoding lacks.
        stream.reconfigure(errors="replace")
    if stream.isatty():
        drawing(Console(file=stream, highlight=False, soft_wrap=False))
        return
    # Render to a string first, because rich pads lines with spaces.
    text = io.StringIO()
    drawing(Console(file=text, width=columns(stream), highlight=False, soft_wrap=False))
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def columns(stream: IO[str]) -> int:
    """Return the width for tables: the terminal's, or 140 without a terminal."""
    return max(_MIN_WIDTH, terminal_width(stream) or WIDTH)
