"""Estimate the tokens of a text, for when the upstream reports none. A tokenizer would cost more than the request.

The rule, in eighths of a token: 2 for a character of one or two bytes of UTF-8 (Latin, Cyrillic, Arabic: four characters
a token), 3 for those of South and South-East Asia, 4 for Hangul, 6 for Chinese characters, kana and symbols, 16 for
everything beyond the basic plane (emoji). If only the length in bytes is known, four bytes are a token.

Compared with the Tekken vocabulary, the estimate is within 15 % for prose in ten languages and for source code, a quarter
to a third too low for Markdown tables and JSON, and far too low for digits and emoji. The ledger marks it `estimated`.
"""

from __future__ import annotations

_COMMON = 2
_BY_FIRST_BYTE = ((0xE0, 0xE1, 3), (0xE2, 0xE9, 6), (0xEA, 0xEF, 4), (0xF0, 0xF4, 16))
"""First and last value of a character's first byte in UTF-8, and its weight."""
_RARE = tuple((bytes(range(first, last + 1)), weight - _COMMON) for first, last, weight in _BY_FIRST_BYTE)


def estimate_tokens(text: str | int) -> int:
    """Estimate the tokens of a text, or of a number of bytes. Takes 0.2 µs for 4,000 ASCII characters, 40 µs for Chinese."""
    if isinstance(text, int):
        return (max(text, 0) + 3) // 4
    return (_eighths(text) + 7) // 8


def _eighths(text: str) -> int:
    eighths = len(text) * _COMMON
    if not text.isascii():
        data = text.encode("utf-8", "replace")
        for firsts, more in _RARE:
            # Counts the bytes by deleting them, which avoids a Python step for each.
            eighths += (len(data) - len(data.translate(None, firsts))) * more
    return eighths


class TextEstimate:
    """The estimate of a text that arrives in pieces. It does not depend on where the text is split."""

    def __init__(self) -> None:
        self._eighths = 0

    def add(self, text: str) -> None:
        self._eighths += len(text) * _COMMON if text.isascii() else _eighths(text)

    @property
    def tokens(self) -> int:
        return (self._eighths + 7) // 8
