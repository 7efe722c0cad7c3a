"""Numbers with their nouns, for messages."""

from __future__ import annotations


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Return the number with its noun: `1 reply`, `2,000 replies`. The plural adds an s unless given."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
