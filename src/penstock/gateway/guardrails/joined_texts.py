"""Texts of a stream that a reader sees without a gap: the parts of a message, and consecutive messages.

Each text is searched on its own as it grows. A match may also begin in one text and end in the next. So the end of a text
that is not decided is held until the next text has decided it, or until nothing can continue it any more.
"""

from __future__ import annotations

import sys
from typing import Protocol

from penstock.gateway.dialects.texts import DELTA
from penstock.gateway.guardrails.chain import Blocked, Chain
from penstock.gateway.guardrails.incremental_search import IncrementalSearch
from penstock.gateway.guardrails.inspection import MatchCounts
from penstock.gateway.guardrails.normalise import normalise
from penstock.gateway.guardrails.search_budget import SearchBudgets

__all__ = ["NOT_HELD", "JoinedSearch", "JoinedTexts"]

NOT_HELD = sys.maxsize
_SOURCE = DELTA + " joined"


class _Text(Protocol):
    """What a group needs of a `StreamedText`."""

    decided: int
    held_from: int
    held_whole: bool

    @property
    def end(self) -> int: ...

    @property
    def tail(self) -> str: ...


class _Form:
    """One form of the joined texts, and the positions at which a text ends and the next one begins."""

    __slots__ = ("_borders", "_pending", "search")

    def __init__(self, search: IncrementalSearch) -> None:
        self.search = search
        self._borders: list[int] = []
        self._pending: list[tuple[int, int]] = []
        """The borders before which not everything is decided, also as positions in the folded text."""

    def copy(self) -> _Form:
        other = _Form(self.search.copy(_SOURCE))
        other._borders, other._pending = list(self._borders), list(self._pending)
        return other

    def add_border(self) -> None:
        self._borders.append(self.search.end)
        self._pending.append((self.search.end, self.search.folded_end))

    def add(self, text: str) -> None:
        """Search the next piece. Raises `Blocked` for a match over a border, which cannot be masked: the events that end
        the texts repeat its parts."""
        for first, last, rule in self.search.add(text):
            if any(first < border < last for border in self._borders):
                raise Blocked(rule.guardrail)

    def pending(self) -> int:
        """Return the number of the last borders before which not everything is decided."""
        search = self.search
        while self._pending and search.decided >= self._pending[0][0] and search.folded_decided >= self._pending[0][1]:
            del self._pending[0]
        return len(self._pending)


class JoinedSearch:
    """The search for matches that begin at the end of a text and end in a later one."""

    __slots__ = ("_forms", "_held")

    def __init__(self, chain: Chain, match_counts: MatchCounts, budgets: SearchBudgets, tail: str) -> None:
        self._held: list[_Text] = []
        texts = dict.fromkeys((tail, normalise(tail)))
        self._forms = [
            _Form(IncrementalSearch.continuing(chain, match_counts, budgets, _SOURCE, text)) for text in texts
        ]

    @property
    def active(self) -> bool:
        return bool(self._held)

    @property
    def fully_decided(self) -> bool:
        return all(form.search.fully_decided for form in self._forms)

    def end_text(self, text: _Text, held_from: int) -> None:
        """Hold the end of a text, whose pieces have been added, until later text decides it."""
        text.held_from = held_from
        self._held.append(text)
        for form in self._forms:
            form.add_border()

    def add(self, piece: str) -> bool:
        """Search the next piece. Return False if no match can begin in an earlier text any more."""
        normal = normalise(piece)
        if normal != piece and len(self._forms) == 1:
            self._forms.append(self._forms[0].copy())
        for form, text in zip(self._forms, (piece, normal), strict=False):
            form.add(text)
        pending = max([form.pending() for form in self._forms])
        while len(self._held) > pending:
            self._held.pop(0).held_from = NOT_HELD
        return bool(self._held)

    def release(self) -> None:
        for text in self._held:
            text.held_from = NOT_HELD
        self._held.clear()


class JoinedTexts:
    """A group of texts, in the order in which they began."""

    __slots__ = ("_budgets", "_chain", "_extended", "_last", "_match_counts", "_search")

    def __init__(self, chain: Chain, match_counts: MatchCounts, budgets: SearchBudgets) -> None:
        self._chain = chain
        self._match_counts = match_counts
        self._budgets = budgets
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
            self._search.end_text(text, 0)
            return
        self._search = None
        if text.decided < text.end:
            search = JoinedSearch(self._chain, self._match_counts, self._budgets, text.tail)
            if not search.fully_decided:
                search.end_text(text, text.decided)
                self._search = search

    def end(self) -> None:
        """Release what is held: nothing continues these texts."""
        self._last = None
        if self._search is not None:
            self._search.release()
