"""The strings that guardrails search: texts as they are, content parts joined, and JSON texts with escapes decoded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from penstock.gateway.guardrails.texts import InspectedText, TextRef
from penstock.gateway.guardrails.unescape import MAX_LEVELS, Unescaper, escape, starts_like_json

__all__ = ["UNESCAPED", "SearchText", "build_search_texts"]

UNESCAPED = " without escapes"
"""Appended to the source once per unescape level, so that a match found in several escapings counts once."""

_MatchFilter = Callable[[int, int], bool]


class SearchText:
    """A string to search, and the mapping of its positions to the inspected text that it comes from."""

    __slots__ = ("_offset", "_parts", "_unescapers", "accepts", "index", "source", "text")

    def __init__(
        self,
        text: str,
        source: str,
        index: int,
        *,
        offset: int = 0,
        parts: list[str] | None = None,
        unescapers: tuple[Unescaper, ...] = (),
    ) -> None:
        self.text = text
        self.source = source
        self.index = index
        self._offset = offset
        self._parts = parts
        self._unescapers = unescapers
        self.accepts: _MatchFilter | None = None if parts is None else _crossing_filter(parts)
        """Returns True if a match with this start and end counts; None if every match counts."""

    def accepts_folded(self) -> _MatchFilter | None:
        """Return `accepts` for positions in the case-folded text, which may be longer."""
        return None if self._parts is None else _crossing_filter([part.casefold() for part in self._parts])

    def source_span(self, first: int, last: int) -> tuple[int, int]:
        for unescaper in reversed(self._unescapers):
            first, last = unescaper.origin(first), unescaper.origin(last)
        return first + self._offset, last + self._offset

    def escape_token(self, token: str) -> str:
        """Escape the token once per JSON level, so that it is valid where it is written."""
        for _ in range(len(self._unescapers) or starts_like_json(self.text)):
            token = escape(token)
        return token


def build_search_texts(texts: Sequence[InspectedText]) -> list[SearchText]:
    search_texts: list[SearchText] = []
    for index, inspected in enumerate(texts):
        if isinstance(inspected, TextRef):
            _add(search_texts, inspected.text, inspected.source, index)
            continue
        strings = [ref.text for ref in inspected.refs]
        source = inspected.refs[0].source
        if not inspected.search_parts:
            _add(search_texts, "".join(strings), source, index)
            continue
        offset = 0
        for text in strings:
            _add(search_texts, text, source, index, offset)
            offset += len(text)
        search_texts.append(SearchText("".join(strings), source, index, parts=strings))
    return search_texts


def _add(search_texts: list[SearchText], text: str, source: str, index: int, offset: int = 0) -> None:
    search_texts.append(SearchText(text, source, index, offset=offset))
    if "\\" not in text or not starts_like_json(text):
        return
    levels: tuple[Unescaper, ...] = ()
    while "\\" in text and len(levels) < MAX_LEVELS:
        unescaper = Unescaper()
        text = unescaper.feed(text) + unescaper.flush()
        levels = (*levels, unescaper)
        search_texts.append(SearchText(text, source + UNESCAPED * len(levels), index, offset=offset, unescapers=levels))


def _crossing_filter(strings: list[str]) -> _MatchFilter:
    """Return a filter for matches in the joined texts that extend over more than one of them."""
    borders = list(accumulate(map(len, strings[:-1])))

    def crosses(start: int, end: int) -> bool:
        after = bisect_right(borders, start)
        return after < len(borders) and borders[after] < end

    return crosses
