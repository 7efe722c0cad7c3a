"""Text of others on a line of ours: nothing in it may end the line, move a cursor or turn the direction of writing."""

from __future__ import annotations

__all__ = ["visible"]


def visible(text: str) -> str:
    """With every character that does not print written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
