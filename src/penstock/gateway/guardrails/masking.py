"""Replacing parts of a text that exists in pieces: the deltas of a stream, the parts of a message.

Of several spans that overlap, the one that begins first puts its token there (of those that begin together the first in
the file), and the others only widen the hole. So whoever applies spans from the left needs no knowledge of those that
begin later, and a stream that is masked as it flows reads like one that was masked whole.
"""

from __future__ import annotations

__all__ = ["Masking"]


class Masking:
    __slots__ = ("_covered", "_next", "_ordered", "_spans")

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int, int, str]] = []
        """Of the same match in several spellings the token with the fewest escapes, the shortest, comes first."""
        self._next = 0
        """The first of them that is not written; those before it go when others come."""
        self._ordered = True
        self._covered = 0
        """Everything before this position is either written or masked."""

    def add(self, start: int, end: int, order: int, token: str) -> None:
        self._spans.append((start, order, end, len(token), token))
        self._ordered = False

    def _order(self) -> None:
        """When they are needed, not at each: a text may have a million of them."""
        if not self._ordered:
            self._spans = sorted(self._spans[self._next :])
            self._next = 0
            self._ordered = True

    def touches(self, start: int, end: int) -> bool:
        self._order()
        return self._covered > start or (self._next < len(self._spans) and self._spans[self._next][0] < end)

    def cut(self, text: str, start: int) -> str:
        """What becomes of `text`, which begins at `start`. Pieces are cut in order, each once."""
        self._order()
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
