"""Half of a surrogate pair, in an escape: grammatical JSON that stands for no character, and that most parsers refuse."""

from __future__ import annotations

import re

__all__ = ["whole_characters"]

_ESCAPES = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)


def whole_characters(data: bytes) -> bytes:
    """JSON with U+FFFD in the place of each half: as many bytes, and all others where they were."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return _ESCAPES.sub(lambda found: rb"\ufffd" if found[2] else found[0], data)
