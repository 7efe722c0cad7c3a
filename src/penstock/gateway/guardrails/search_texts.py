"""The texts of a body as the guardrails read them: as they are, joined where a model reads them without a gap, and without
their escapes where they are JSON."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from penstock.gateway.guardrails.texts import Line, Slot
from penstock.gateway.guardrails.unescape import LEVELS, Escapes, begins_json, escaped

__all__ = ["UNESCAPED", "View", "views_of"]

UNESCAPED = " without escapes"
"""Behind the source, for each level: what is found in several spellings counts once."""

_Counts = Callable[[int, int], bool]


class View:
    """A text to be searched, and the way back from it to the line that it shows."""

    __slots__ = ("_escapes", "_offset", "_parts", "counts", "line", "source", "text")

    def __init__(
        self,
        text: str,
        source: str,
        line: int,
        *,
        offset: int = 0,
        parts: list[str] | None = None,
        escapes: tuple[Escapes, ...] = (),
    ) -> None:
        self.text = text
        self.source = source
        self.line = line
        self._offset = offset
        self._parts = parts
        self._escapes = escapes
        self.counts: _Counts | None = None if parts is None else _crossing(parts)
        """Whether a match from here to there does; None: all do."""

    def counts_folded(self) -> _Counts | None:
        """The same for positions in the case-folded text, which may be longer."""
        return None if self._parts is None else _crossing([part.casefold() for part in self._parts])

    def span(self, first: int, last: int) -> tuple[int, int]:
        for escapes in reversed(self._escapes):
            first, last = escapes.origin(first), escapes.origin(last)
        return first + self._offset, last + self._offset

    def spelled(self, token: str) -> str:
        """As it is written into the line: in a string of the JSON that this is, or that the text without escapes was."""
        for _ in range(len(self._escapes) or begins_json(self.text)):
            token = escaped(token)
        return token


def views_of(lines: Sequence[Slot | Line]) -> list[View]:
    views: list[View] = []
    for number, line in enumerate(lines):
        if isinstance(line, Slot):
            _add(views, line.text, line.source, number)
            continue
        texts = [slot.text for slot in line.slots]
        source = line.slots[0].source
        if not line.parts:
            _add(views, "".join(texts), source, number)
            continue
        offset = 0
        for text in texts:
            _add(views, text, source, number, offset)
            offset += len(text)
        views.append(View("".join(texts), source, number, parts=texts))
    return views


def _add(views: list[View], text: str, source: str, line: int, offset: int = 0) -> None:
    views.append(View(text, source, line, offset=offset))
    if "\\" not in text or not begins_json(text):
        return
    levels: tuple[Escapes, ...] = ()
    while "\\" in text and len(levels) < LEVELS:
        escapes = Escapes()
        text = escapes.feed(text) + escapes.flush()
        levels = (*levels, escapes)
        views.append(View(text, source + UNESCAPED * len(levels), line, offset=offset, escapes=levels))


def _crossing(texts: list[str]) -> _Counts:
    """Tells whether a stretch of the joined texts lies in more than one of them."""
    borders = list(accumulate(map(len, texts[:-1])))

    def crosses(start: int, end: int) -> bool:
        after = bisect_right(borders, start)
        return after < len(borders) and borders[after] < end

    return crosses
