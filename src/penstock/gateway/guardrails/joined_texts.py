"""Texts of a stream that a reader sees without a gap: the parts of a message, and consecutive messages.

Each text is searched on its own as it grows. A match may also begin in one text and end in the next. So the end of a text
that is not decided is held until the next text has decided it, or until nothing can continue it any more.
"""

from __future__ import annotations

import sys
from typing import Protocol

from penstock.gateway.dialects.texts import DELTA
from penstock.gateway.guardrails.incremental_search import IncrementalSearch, StreamSearch
from penstock.gateway.guardrails.normalise import normalise

NOT_HELD = sys.maxsize
_SOURCE = DELTA + " joined"


class _Text(Protocol):
    """What a group needs of a `StreamedText`."""

    decided: int
    held_from: int

    @property
    def end(self) -> int: ...

    @property
    def tail(self) -> str: ...


class JoinedSearch:
    """The search for matches that begin at the end of a text and end in a later one, in both forms.

    Such a match cannot be masked, because the events that end the texts repeat its parts, so it is blocked.
    """

    def __init__(self, shared: StreamSearch, tail: str) -> None:
        self._held: list[_Text] = []
        self._raw, self._normal = IncrementalSearch(shared, _SOURCE), IncrementalSearch(shared, _SOURCE)
        self._raw.begin_after(tail)
        self._normal.begin_after(normalise(tail))

    @property
    def active(self) -> bool:
        return bool(self._held)

    def hold(self, text: _Text, held_from: int) -> None:
        """Hold the end of a text, whose pieces have been added, if later text decides it."""
        self._raw.add_border()
        self._normal.add_border()
        text.held_from = held_from
        self._held.append(text)
        self._release()

    def add(self, piece: str) -> None:
        self._raw.add(piece)
        self._normal.add(normalise(piece))
        self._release()

    def end(self) -> None:
        """Search the texts as complete, and release them."""
        if self._held:
            self._raw.finish()
            self._normal.finish()
            self._release()

    def _release(self) -> None:
        pending = max(self._raw.undecided_borders, self._normal.undecided_borders)
        while len(self._held) > pending:
            self._held.pop(0).held_from = NOT_HELD


class JoinedTexts:
    """A group of texts, in the order in which they began."""

    def __init__(self, shared: StreamSearch) -> None:
        self._shared = shared
        self._last: _Text | None = None
        self._extended = False
        """True if the end of the last text is searched together with what follows."""
        self._search: JoinedSearch | None = None

    def begin(self, text: _Text) -> JoinedSearch | None:
        """Begin the next text. Return the search to which its pieces must be added, if there is one."""
        if self._last is not None:
            self.extend(self._last)
        self._last = text
        self._extended = False
        return self._search

    def extend(self, text: _Text) -> None:
        """Hold the end of the last text for a match that the next one may complete."""
        if text is not self._last or self._extended:
            return
        self._extended = True
        if self._search is not None and self._search.active:
            self._search.hold(text, 0)
            return
        self._search = None
        if text.decided < text.end:
            search = JoinedSearch(self._shared, text.tail)
            search.hold(text, text.decided)
            if search.active:
                self._search = search

    def end(self) -> None:
        """Search and release what is held: nothing continues these texts."""
        self._last = None
        if self._search is not None:
            self._search.end()
