"""Numbers with their nouns, for messages."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Return the number with its noun: `1 reply`, `2,000 replies`. The plural adds an s unless given."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def joined(words: Iterable[str]) -> str:
    """Return the words as a list: `a, b and c`."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
