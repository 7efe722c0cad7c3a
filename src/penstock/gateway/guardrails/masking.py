"""Masking of a text that exists in pieces: the deltas of a stream, or the parts of a message.

Of overlapping spans, the one that starts first inserts its token (among equal starts, the first in the file); the others
only extend the masked range. So spans can be applied from left to right without knowing later ones, and a stream masked
piece by piece has the same text as one masked as a whole.
"""

from __future__ import annotations


class Masking:
    """The spans of a text to mask, and the state of applying them."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int, int, str]] = []
        """(start, order, end, token length, token). Of a match found in several escapings, the least escaped token, which is
        the shortest, sorts first."""
        self._next = 0
        """Index of the first span that is not applied. Applied spans are dropped at the next sort."""
        self._sorted = True
        self._covered = 0
        """Everything before this position is applied."""

    def add(self, start: int, end: int, order: int, token: str) -> None:
        self._spans.append((start, order, end, len(token), token))
        self._sorted = False

    def _sort(self) -> None:
        """Sort when needed, not at each addition: a text may have a million spans."""
        if not self._sorted:
            self._spans = sorted(self._spans[self._next :])
            self._next = 0
            self._sorted = True

    def overlaps(self, start: int, end: int) -> bool:
        self._sort()
        return self._covered > start or (self._next < len(self._spans) and self._spans[self._next][0] < end)

    def apply(self, text: str, start: int) -> str:
        """Return `text`, which starts at `start`, with masks applied. Pieces must come in order, each once."""
        self._sort()
        end = start + len(text)
        written: list[str] = []
        position = start
        while self._next < len(self._spans):
            first, _, last, _, token = self._spans[self._next]
            if first >= end:
                break
            self._next += 1
            if first >= self._covered:
                written.append(text[max(position, self._covered) - start : first - start])
                written.append(token)
                position = first
            self._covered = max(self._covered, last)
        written.append(text[max(position, self._covered) - start :])
        return "".join(written)
