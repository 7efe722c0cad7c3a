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

__all__ = ["show"]

_NARROWEST = 40


def show(summary: Summary, artifacts: Artifacts, *, show_http: bool = False, file: IO[str] | None = None) -> None:
    """On a terminal in colour and as wide as it is; on a pipe plain, 140 columns or COLUMNS."""
    from rich.console import Console

    stream = file or sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        # A server's message may hold what the terminal's encoding does not.
        stream.reconfigure(errors="replace")
    width = None if stream.isatty() else _piped_width()
    draw(Console(file=stream, width=width, highlight=False, soft_wrap=False), summary, artifacts, show_http=show_http)


def _piped_width() -> int:
    try:
        return max(_NARROWEST, int(os.environ["COLUMNS"]))
    except (KeyError, ValueError):
        return WIDTH
