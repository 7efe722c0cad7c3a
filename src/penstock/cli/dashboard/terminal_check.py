"""Whether a terminal can show the dashboard."""

from __future__ import annotations

import os
import sys

_MIN_COLUMNS, _MIN_LINES = 40, 12


def why_no_dashboard() -> str | None:
    """Return why the dashboard cannot be shown on standard output; None if it can."""
    if not sys.stdout.isatty():
        return "standard output is not a terminal"
    term = os.environ.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        return f"TERM is {term}" if term else "TERM is not set"
    if "utf" not in (sys.stdout.encoding or "").lower():
        return f"the encoding of the terminal is {sys.stdout.encoding}"
    output = sys.stdout.fileno()
    try:
        size = os.get_terminal_size(output)
        os.ttyname(output)
        in_foreground = os.tcgetpgrp(output) == os.getpgrp()
    except OSError:
        return "this terminal cannot be controlled"
    if not in_foreground:
        return "the command runs in the background"
    if size.columns < _MIN_COLUMNS or size.lines < _MIN_LINES:
        return f"the terminal has {size.columns}×{size.lines} characters, and at least {_MIN_COLUMNS}×{_MIN_LINES} are needed"
    return None
