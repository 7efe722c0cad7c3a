"""The final screen of a run, on standard output."""

from __future__ import annotations

import io
import os
import sys
from typing import IO, TYPE_CHECKING

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
    """COLUMNS where that is set, else as many as the terminal has, else 140."""
    try:
        width = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        width = _terminal_width(stream)
    return max(_NARROWEST, width)


def _terminal_width(stream: IO[str]) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or WIDTH
    except (OSError, ValueError):
        return WIDTH
