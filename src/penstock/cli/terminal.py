"""Bold and dim where a person reads, plain text where a program does. (rich takes 80 ms to import.)"""

from __future__ import annotations

import os
import re
import sys
from typing import IO

__all__ = ["Paint", "columns", "fit", "terminal_width", "wrap"]

_TWO_COLUMNS = re.compile(r"( +\S+(?: \S+)*  +)(\S.*)")
"""Indented: a name, a gap, and what is said about it."""


class Paint:
    def __init__(self, on: bool | None = None) -> None:
        self._on = sys.stdout.isatty() and "NO_COLOR" not in os.environ if on is None else on

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self._on else text

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._on else text


def terminal_width(stream: IO[str]) -> int | None:
    """COLUMNS where that is set, else as many as the terminal has; None where there is none."""
    text = os.environ.get("COLUMNS", "")
    if text.isdecimal() and int(text):
        return int(text)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def columns() -> int:
    """The width to write text for: the terminal's, between 60 and 110; 100 where there is none."""
    return max(60, min(terminal_width(sys.stdout) or 100, 110))


def wrap(text: str, width: int, indent: int) -> list[str]:
    """Lines of words; a word longer than the line stands alone."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(" " * indent + word)
    return lines


def fit(text: str, width: int | None = None) -> str:
    """The text with its paragraphs wrapped to the terminal. Of two columns the right one is wrapped; other indented lines are
    commands to copy, and stay whole."""
    width = width or columns()
    lines: list[str] = []
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line and not line.startswith((" ", "Usage:")):
            paragraph.append(line)
            continue
        lines += wrap(" ".join(paragraph), width, 0)
        paragraph = []
        if found := _TWO_COLUMNS.fullmatch(line):
            first, *rest = wrap(found[2], width, len(found[1])) or [""]
            lines += [found[1] + first.lstrip(), *rest]
        else:
            lines.append(line)
    return "\n".join(lines).rstrip("\n")
