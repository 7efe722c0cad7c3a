"""The final screen of a run, on standard output."""

from __future__ import annotations

import io
import sys
from typing import IO, TYPE_CHECKING

from penstock.cli.terminal import terminal_width
from penstock.reports.console import WIDTH, draw

if TYPE_CHECKING:
    from penstock.metrics.summary import Summary
    from penstock.reports.artifacts import Artifacts

__all__ = ["columns", "show"]

_NARROWEST = 40


def show(summary: Summary, artifacts: Artifacts, *, show_http: bool = False, file: IO[str] | None = None) -> None:
    """On a terminal in colour and as wide as it is; on a pipe plain, 140 columns or COLUMNS."""
    from rich.console import Console

    stream = file or sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        # A server's message may hold what the terminal's encoding does not.
        stream.reconfigure(errors="replace")
    if stream.isatty():
        draw(Console(file=stream, highlight=False, soft_wrap=False), summary, artifacts, show_http=show_http)
        return
    # By way of a text, because rich fills lines up with spaces, and a pipe gets to see them.
    text = io.StringIO()
    console = Console(file=text, width=columns(stream), highlight=False, soft_wrap=False)
    draw(console, summary, artifacts, show_http=show_http)
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def columns(stream: IO[str]) -> int:
    """The width to draw tables for: the terminal's, 140 where there is none."""
    return max(_NARROWEST, terminal_width(stream) or WIDTH)
