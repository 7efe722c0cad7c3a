"""Incremental search of one form of a growing text: the text itself, or its normalised form.

The text before a position is decided when no later text can change the matches in it. For literals, only a suffix that is
the prefix of a literal is undecided; for a detector or a regex, the positions at which a match could still begin or change.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence

import regex

from penstock.gateway.dialects.texts import DELTA
from penstock.gateway.guardrails.chain import Chain, Rule
from penstock.gateway.guardrails.inspection import MatchCounts
from penstock.gateway.guardrails.normalise import IGNORABLE, TOO_MANY_IGNORABLES, normalise, normalised_starts
from penstock.gateway.guardrails.search_budget import InspectionTimeout, SearchBudgets
from penstock.gateway.guardrails.text_views import DERIVED

_NUMBER = regex.compile("[0-9+]")
_TRAILING_IGNORABLES = re.compile(f"[{IGNORABLE}]*\\Z")
_SPARE = 256
_NO_MASKS: list[tuple[int, int, Rule]] = []


class IncrementalSearch:
    """The search of one form of a text: its last characters, and how far each rule has searched them."""

    def __init__(self, chain: Chain, match_counts: MatchCounts, budgets: SearchBudgets, source: str) -> None:
        self._chain = chain
        self._match_counts = match_counts
        self._budgets = budgets
        self._source = source
        self._fold: Callable[[str], str] = chain.literals.folder() if chain.literals is not None else str.casefold
        self._suffix = ""
        """The end of the folded text that is the prefix of a literal."""
        self._cursors = [0] * len(chain.rules)
        self.text = ""
        self.base = 0
        """The position of the first character of `text`."""
        self.end = self.decided = 0
        self.folded_end = self.folded_decided = 0

    def copy(self, source: str) -> IncrementalSearch:
        """Return a search of another form that starts here. Both forms are equal so far."""
        other = IncrementalSearch(self._chain, self._match_counts, self._budgets, source)
        for name in ("_suffix", "base", "decided", "end", "folded_decided", "folded_end", "text"):
            setattr(other, name, getattr(self, name))
        other._fold(self.text)
        other._cursors = list(self._cursors)
        return other

    @property
    def fully_decided(self) -> bool:
        return self.decided == self.end and self.folded_decided == self.folded_end

    def add(self, text: str) -> list[tuple[int, int, Rule]]:
        """Search the next piece. Return the matches to mask. Raises `Blocked`."""
        chain = self._chain
        self.end += len(text)
        self.text += text
        literals = chain.literals
        if literals is not None:
            folded = self._fold(text)
            self.folded_end += len(folded)
            suffix = self._suffix
            unsearched = suffix + folded
            for guardrail in literals.matching_guardrails(unsearched, len(suffix)):
                guardrail.record_block(self._match_counts, self._source)
            self._suffix = suffix = literals.literals.partial_suffix(unsearched)
            self.folded_decided = self.folded_end - len(suffix)
        if chain.rules:
            return self._search_rules(final=False)
        self.decided = self.end
        if len(self.text) > chain.context + _SPARE:
            self._drop(len(self.text))
        return _NO_MASKS

    def finish(self) -> list[tuple[int, int, Rule]]:
        """Search the text as complete. A piece that is added later is still searched together with its end."""
        masks = self._search_rules(final=True) if self._chain.rules else []
        self.decided = self.end
        self.folded_decided = self.folded_end
        return masks

    def skip(self, text: str) -> None:
        """Add text that has been searched."""
        self.end += len(text)
        self.text = (self.text + text)[-self._chain.context :]
        self.base = self.end - len(self.text)
        self._suffix = ""
        self._cursors = [self.end] * len(self._cursors)
        self.decided = self.end
        self.folded_decided = self.folded_end

    def _search_rules(self, *, final: bool) -> list[tuple[int, int, Rule]]:
        chain, text, base, cursors = self._chain, self.text, self.base, self._cursors
        length = len(text)
        decided = length
        numbers = final
        masks: list[tuple[int, int, Rule]] = []
        if chain.numeric_rules and not final:
            low = min([cursors[number] for number in chain.numeric_rules]) - base
            numbers = _NUMBER.search(text, low) is not None
        for number, rule in enumerate(chain.rules):
            finder = rule.finder
            if finder.numeric and not numbers:
                cursors[number] = base + length
                continue
            cursor = cursors[number] - base
            undecided = finder.undecided_from(text, cursor)
            if final or undecided > cursor:
                undecided = self._search(rule, cursor, undecided, masks, final=final)
            cursors[number] = base + undecided
            decided = min(decided, undecided)
        self.decided = base + decided
        self._drop(decided)
        return masks

    def _search(
        self, rule: Rule, cursor: int, undecided: int, masks: list[tuple[int, int, Rule]], *, final: bool
    ) -> int:
        """Record the certain matches from `cursor` on. Return the position from which to search next."""
        text, base = self.text, self.base
        length = len(text)
        stop = length + 1 if final else undecided
        try:
            while cursor < stop:
                match = rule.find(text, cursor, self._budgets)
                if match is None or match[0] >= stop:
                    break
                start, end, first, last = match
                if end == length and not final:
                    return start  # the match may continue, even beyond the configured length
                cursor = end if end > start else start + 1
                if rule.blocks:
                    rule.guardrail.record_block(self._match_counts, self._source)
                elif first < last:
                    rule.guardrail.record_mask(self._match_counts, self._source)
                    masks.append((base + first, base + last, rule))
        except InspectionTimeout:
            rule.guardrail.record_timeout(self._match_counts)
        return max(cursor, undecided)

    def _drop(self, lowest: int) -> None:
        """Drop text that no rule needs any more; `lowest` is the lowest rule position, relative to `base`."""
        spare = lowest - self._chain.context
        if spare > _SPARE:  # amortise the copy
            self.text = self.text[spare:]
            self.base += spare


class _Piece:
    """A piece of a text, and where it and its normalised form start."""

    def __init__(self, start: int, source: int, text: str) -> None:
        self.start = start
        self._source = source
        self._text = text
        self._starts: Sequence[int] | None = None

    def origin(self, position: int) -> int:
        """Return the position in the text of a position in the normalised form."""
        if self._starts is None:
            self._starts = normalised_starts(self._text)
        return self._source + self._starts[position - self.start]


class NormalisedSearch:
    """The search of the normalised form, and the mapping of its positions to the text."""

    def __init__(self, raw: IncrementalSearch) -> None:
        self.search = raw.copy(DELTA + DERIVED)
        self._pieces = deque([_Piece(raw.base, raw.base, raw.text)])
        self._ignorables = ""

    def add(self, text: str, position: int) -> list[tuple[int, int, Rule]]:
        search = self.search
        if TOO_MANY_IGNORABLES.search(self._ignorables + text) is not None:
            search._chain.block_hidden_text()
        trailing = _TRAILING_IGNORABLES.search(self._ignorables + text)
        self._ignorables = trailing[0] if trailing is not None else ""
        self._pieces.append(_Piece(search.end, position, text))
        masks = search.add(normalise(text))
        while len(self._pieces) > 1 and self._pieces[1].start <= search.base:
            self._pieces.popleft()
        return masks

    def origin(self, first: int, last: int) -> tuple[int, int]:
        """Return the span in the text of a span in the normalised form."""
        return self._origin(first), self._origin(last - 1) + 1

    def _origin(self, position: int) -> int:
        piece = self._pieces[0]
        for candidate in self._pieces:
            if candidate.start > position:
                break
            piece = candidate
        return piece.origin(position)
