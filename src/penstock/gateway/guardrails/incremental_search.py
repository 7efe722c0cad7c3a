"""Incremental search of one form of a growing text: the text itself, or its normalised form.

The text before a position is decided when no later text can change the matches in it. For literals, only a suffix that is
the prefix of a literal is undecided; for a detector or a regex, the positions at which a match could still begin or change.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

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

Mask = tuple[int, int, Rule]
_NO_MASKS: list[Mask] = []


class StreamSearch(NamedTuple):
    """What the searches of all texts of a stream share."""

    chain: Chain
    match_counts: MatchCounts
    budgets: SearchBudgets


class IncrementalSearch:
    """The search of one form of a text: its last characters, and how far each rule has searched them."""

    def __init__(self, shared: StreamSearch, source: str) -> None:
        self._shared = shared
        self._chain = chain = shared.chain
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
        self._borders: list[tuple[int, int]] | None = None
        """If set, only matches over one of these positions count, and they are blocked: those in the text and in the folded
        text."""

    @property
    def fully_decided(self) -> bool:
        return self.decided == self.end and self.folded_decided == self.folded_end

    def begin_after(self, tail: str) -> None:
        """Begin with the end of another text, in which only matches that end in later text count (see `add_border`)."""
        self._borders = []
        self.add(tail)
        self._cursors = [self.base + rule.finder.undecided_from(self.text, 0) for rule in self._chain.rules]
        self.decided = min(self._cursors, default=self.end)

    def add_border(self) -> None:
        """Begin the next text, which a reader sees without a gap."""
        assert self._borders is not None
        self._borders.append((self.end, self.folded_end))

    @property
    def undecided_borders(self) -> int:
        """The number of borders before which not everything is decided. They are the last ones."""
        borders = self._borders or ()
        return sum(end > self.decided or folded_end > self.folded_decided for end, folded_end in borders)

    def add(self, text: str) -> list[Mask]:
        """Search the next piece. Return the matches to mask. Raises `Blocked`."""
        chain = self._chain
        self.end += len(text)
        self.text += text
        literals = chain.literals
        if literals is not None:
            folded = self._fold(text)
            suffix = self._suffix
            unsearched = suffix + folded
            for number, start, end in literals.literals.find(unsearched):
                first = self.folded_end - len(suffix)
                if end > len(suffix) and (
                    self._borders is None or self._crosses(first + start, first + end, folded=True)
                ):
                    for guardrail in literals.guardrails_of[number]:
                        guardrail.record_block(self._shared.match_counts, self._source)
            self.folded_end += len(folded)
            self._suffix = suffix = literals.literals.partial_suffix(unsearched)
            self.folded_decided = self.folded_end - len(suffix)
        if chain.rules:
            return self._search_rules(final=False)
        self.decided = self.end
        if len(self.text) > chain.context + _SPARE:
            self._drop(len(self.text))
        return _NO_MASKS

    def _crosses(self, start: int, end: int, *, folded: bool = False) -> bool:
        return any(start < border[folded] < end for border in self._borders or ())

    def finish(self) -> list[Mask]:
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

    def _search_rules(self, *, final: bool) -> list[Mask]:
        chain, text, base, cursors = self._chain, self.text, self.base, self._cursors
        length = len(text)
        decided = length
        numbers = final
        masks: list[Mask] = []
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

    def _search(self, rule: Rule, cursor: int, undecided: int, masks: list[Mask], *, final: bool) -> int:
        """Record the certain matches from `cursor` on. Return the position from which to search next."""
        text, base = self.text, self.base
        length = len(text)
        stop = length + 1 if final else undecided
        try:
            while cursor < stop:
                match = rule.find(text, cursor, self._shared.budgets)
                if match is None or match[0] >= stop:
                    break
                start, end, first, last = match
                if end == length and not final:
                    return start  # the match may continue, even beyond the configured length
                cursor = end if end > start else start + 1
                if self._borders is not None:
                    if self._crosses(base + start, base + end):
                        rule.guardrail.block(self._shared.match_counts)
                elif rule.blocks:
                    rule.guardrail.record_block(self._shared.match_counts, self._source)
                elif first < last:
                    rule.guardrail.record_mask(self._shared.match_counts, self._source)
                    masks.append((base + first, base + last, rule))
        except InspectionTimeout:
            rule.guardrail.record_timeout(self._shared.match_counts)
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


class NormalisedSearch(IncrementalSearch):
    """The search of the normalised form of a text. It returns positions in the text."""

    def __init__(self, raw: IncrementalSearch) -> None:
        """Begin where `raw` is: both forms are equal so far."""
        super().__init__(raw._shared, DELTA + DERIVED)
        # `vars` would be shorter, and slow down each later access to an attribute of both.
        for name in ("_suffix", "base", "decided", "end", "folded_decided", "folded_end", "text"):
            setattr(self, name, getattr(raw, name))
        self._cursors = list(raw._cursors)
        self._fold(self.text)
        self._pieces = deque([_Piece(raw.base, raw.base, raw.text)])
        self._ignorables = ""

    def add_original(self, text: str, position: int) -> list[Mask]:
        """Search the normalised form of the next piece of the text, which is at `position`."""
        if TOO_MANY_IGNORABLES.search(self._ignorables + text) is not None:
            self._chain.block_hidden_text(self._shared.match_counts)
        trailing = _TRAILING_IGNORABLES.search(self._ignorables + text)
        self._ignorables = trailing[0] if trailing is not None else ""
        self._pieces.append(_Piece(self.end, position, text))
        masks = self.add(normalise(text))
        while len(self._pieces) > 1 and self._pieces[1].start <= self.base:
            self._pieces.popleft()
        return self._original(masks) if masks else masks

    def finish(self) -> list[Mask]:
        return self._original(super().finish())

    def _original(self, masks: list[Mask]) -> list[Mask]:
        return [(self._origin(first), self._origin(last - 1) + 1, rule) for first, last, rule in masks]

    def _origin(self, position: int) -> int:
        piece = self._pieces[0]
        for candidate in self._pieces:
            if candidate.start > position:
                break
            piece = candidate
        return piece.origin(position)
