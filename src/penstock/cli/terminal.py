"""Styles, columns and line wrapping for terminal output, without rich, which takes 80 ms to import."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Container, Sequence
from typing import IO, Any

_TWO_COLUMNS = re.compile(r"( +\S+(?: \S+)*  +)(\S.*)")
"""An indented line with a name, a gap of two or more spaces, and a description."""


class Paint:
    """Adds styles on a terminal; elsewhere, and with NO_COLOR, returns the text unchanged."""

    def __init__(self, on: bool | None = None) -> None:
        self._on = sys.stdout.isatty() and "NO_COLOR" not in os.environ if on is None else on

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self._on else text

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._on else text


def terminal_width(stream: IO[str]) -> int | None:
    """Return COLUMNS if set, else the width of the terminal, else None."""
    text = os.environ.get("COLUMNS", "")
    if text.isdecimal() and int(text):
        return int(text)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def columns() -> int:
    """Return the width for text: the terminal's, limited to 60..110, or 100 without a terminal."""
    return max(60, min(terminal_width(sys.stdout) or 100, 110))


def print_json(document: Any) -> None:
    import msgspec

    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def aligned(rows: Sequence[Sequence[str]], left: Container[int] = ()) -> list[str]:
    """Return the rows as lines of columns, which are aligned to the right except for those in `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def wrap(text: str, width: int, indent: int) -> list[str]:
    """Break a text into indented lines. A word longer than a line gets its own line."""
    margin = " " * indent
    return textwrap.wrap(
        text, width, initial_indent=margin, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )


def fit(text: str, width: int | None = None) -> str:
    """Wrap paragraphs, and the right column of two-column lines. Other indented lines are commands to copy, and are kept."""
    width = width or columns()
    lines: list[str] = []
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line and not line.startswith((" ", "Usage:")):
            paragraph.append(line)
            continue
        lines += wrap(" ".join(paragraph), width, 0)
        paragraph = []
        if match := _TWO_COLUMNS.fullmatch(line):
            first, *rest = wrap(match[2], width, len(match[1])) or [""]
            lines += [match[1] + first.lstrip(), *rest]
        else:
            lines.append(line)
    return "\n".join(lines).rstrip("\n")
