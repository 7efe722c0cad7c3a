"""Escaping of foreign text, so that it cannot end a line, move the cursor or change the writing direction."""

from __future__ import annotations


def escape_nonprintable(text: str) -> str:
    """Return the text with every non-printable character escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
