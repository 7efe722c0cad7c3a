"""Unpaired surrogate escapes in JSON (`\\ud800`): allowed by the grammar, but refused by most parsers."""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)


def replace_unpaired_surrogates(data: bytes) -> bytes:
    """Return JSON with unpaired surrogate escapes replaced by `\\ufffd`. All offsets stay the same."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return _ESCAPES.sub(lambda match: rb"\ufffd" if match[2] else match[0], data)


def join_surrogates(text: str) -> tuple[str, str]:
    """Return the text with surrogate pairs as characters, and the high surrogate at its end, whose pair is still to come."""
    end = ""
    if text and "\ud800" <= text[-1] <= "\udbff":
        text, end = text[:-1], text[-1]
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text, end
