"""Texts of a stream that a reader sees without a gap: the parts of a message, and consecutive messages.

Each text is searched on its own as it grows. A match may also begin in one text and end in the next. So the end of a text
that is not decided is held until the next text has decided it, or until nothing can continue it any more.
"""

from __future__ import annotations

import sys
from itertools import accumulate
from typing import Protocol

from penstock.gateway.dialects.texts import DELTA
from penstock.gateway.guardrails.chain import Blocked, Chain, LiteralMatcher, Rule
from penstock.gateway.guardrails.inspection import MatchCounts
from penstock.gateway.guardrails.normalise import normalise
from penstock.gateway.guardrails.search_budget import InspectionTimeout, SearchBudgets
from penstock.gateway.guardrails.text_views import crossing_filter

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
    """The search for matches that begin at the end of a text and end in a later one.

    Such a match cannot be masked, because the events that end the texts repeat its parts, so it is blocked.
    """

    def __init__(self, chain: Chain, match_counts: MatchCounts, budgets: SearchBudgets, tail: str) -> None:
        self._chain = chain
        self._match_counts = match_counts
        self._budgets = budgets
        self._held: list[_Text] = []
        self._parts = [tail, ""]
        """The end of the first text, and the texts after it."""

    @property
    def active(self) -> bool:
        return bool(self._held)

    def hold(self, text: _Text, held_from: int) -> bool:
        """Hold the end of a text, whose pieces have been added, if later text decides it. Return False if it is decided."""
        if self._held:
            self._parts.append("")
        elif not self._search(final=False):
            return False
        text.held_from = held_from
        self._held.append(text)
        return True

    def add(self, piece: str) -> bool:
        """Search the next piece. Return False if no match can begin in an earlier text any more."""
        self._parts[-1] += piece
        self._release(self._search(final=False))
        return self.active

    def end(self) -> None:
        """Search the texts as complete, and release them."""
        if self._held:
            self._search(final=True)
            self._release(0)

    def _release(self, pending: int) -> None:
        while len(self._held) > pending:
            self._held.pop(0).held_from = NOT_HELD

    def _search(self, *, final: bool) -> int:
        """Search all forms. Return the number of the last borders before which not everything is decided."""
        pending = 0
        for parts in dict.fromkeys((tuple(self._parts), tuple(map(normalise, self._parts)))):
            text, borders = "".join(parts), list(accumulate(map(len, parts)))[:-1]
            decided = min(
                [self._search_rule(rule, text, parts, final=final) for rule in self._chain.rules], default=len(text)
            )
            pending = max(pending, sum(border > decided for border in borders))
            if self._chain.literals is not None:
                pending = max(pending, self._search_literals(self._chain.literals, parts))
        return pending

    def _search_rule(self, rule: Rule, text: str, parts: tuple[str, ...], *, final: bool) -> int:
        """Return the position before which no match can begin or change any more."""
        crosses = crossing_filter(map(len, parts))
        position = rule.finder.undecided_from(parts[0], 0)
        undecided = len(text) + 1 if final else rule.finder.undecided_from(text, position)
        try:
            while (match := rule.find(text, position, self._budgets)) is not None and match[0] < undecided:
                start, end = match[:2]
                if end == len(text) and not final:
                    return start
                if crosses(start, end):
                    raise Blocked(rule.guardrail)
                position = max(end, start + 1)
        except InspectionTimeout:
            rule.guardrail.record_timeout(self._match_counts)
        return undecided

    def _search_literals(self, matcher: LiteralMatcher, parts: tuple[str, ...]) -> int:
        """Return the number of the last borders after which a literal may end that begins before them."""
        fold = matcher.folder()
        folded = [fold(part) for part in parts]
        text = "".join(folded)
        crosses = crossing_filter(map(len, folded))
        for number, start, end in matcher.literals.find(text):
            if crosses(start, end):
                for guardrail in matcher.guardrails_of[number]:
                    guardrail.record_block(self._match_counts, _SOURCE)
        decided = len(text) - len(matcher.literals.partial_suffix(text))
        return sum(border > decided for border in list(accumulate(map(len, folded)))[:-1])


class JoinedTexts:
    """A group of texts, in the order in which they began."""

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
            self._search.hold(text, 0)
            return
        self._search = None
        if text.decided < text.end:
            search = JoinedSearch(self._chain, self._match_counts, self._budgets, text.tail)
            if search.hold(text, text.decided):
                self._search = search

    def end(self) -> None:
        """Search and release what is held: nothing continues these texts."""
        self._last = None
        if self._search is not None:
            self._search.end()
