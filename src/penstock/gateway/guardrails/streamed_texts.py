"""Incremental search of the growing texts of a stream.

The text before a position is decided when no later text can change the matches in it. For literals, only a suffix that is
the prefix of a literal is undecided; for a detector or a regex, the positions at which a match could still begin or change.
The decided position of literals counts characters of the case-folded text, which may be longer than the text itself.

Rules without a maximum match length can only monitor a window stream, so nothing waits for them: pieces are buffered and
searched when there are many, or at the end of the text.

A text that starts like JSON has an unescaped version (see `unescape`), which is searched in the same way. Matches in it
are masked at their position in the original text.
"""

from __future__ import annotations

from io import StringIO

import regex

from penstock.gateway.guardrails.chain import Blocked, Chain, Rule
from penstock.gateway.guardrails.events import DELTA, Address
from penstock.gateway.guardrails.inspection import MatchCounts, StreamBlocked
from penstock.gateway.guardrails.masking import Masking
from penstock.gateway.guardrails.search_budget import InspectionTimeout, SearchBudgets
from penstock.gateway.guardrails.search_texts import UNESCAPED
from penstock.gateway.guardrails.unescape import MAX_LEVELS, Unescaper, escape, starts_like_json

__all__ = ["StreamedText", "StreamedTexts"]

_NUMBER = regex.compile("[0-9+]")

_MAX_MONITORED_MATCH = 8192
"""A match that may continue is counted when it ends, but a monitored one of this length is counted at once: its text is not
held back, so it could grow without bound and would be searched again with each piece."""

_MAX_TEXTS = 4096
"""Maximum number of open texts in a stream. No genuine reply has more."""


class _UnsearchedTail:
    """The end of a text that some rules have not searched yet, and the position of each rule."""

    __slots__ = ("_context", "base", "cursors", "text")

    def __init__(self, rules: int, context: int) -> None:
        self.text = ""
        self.base = 0
        self.cursors = [0] * rules
        self._context = context

    def drop(self, lowest: int) -> None:
        """Drop text that no rule needs any more; `lowest` is the lowest rule position, relative to `base`."""
        spare = lowest - self._context
        if spare > 256:  # amortise the copy
            self.text = self.text[spare:]
            self.base += spare


class _BufferedTail(_UnsearchedTail):
    """A tail that collects pieces and is searched in batches."""

    __slots__ = ("_pieces", "_unsearched", "max_match")

    def __init__(self, rules: int, context: int, max_match: int) -> None:
        super().__init__(rules, context)
        self.max_match = max_match
        """Longer matches may be missed."""
        self._pieces = StringIO()  # a list of 100,000 short strings takes ten times their length
        self._unsearched = 0

    def add(self, text: str) -> bool:
        """Add a piece. Return True if the tail is due for a search."""
        self._pieces.write(text)
        self._unsearched += len(text)
        return self._unsearched > 2 * self.max_match

    def join(self) -> None:
        self.text += self._pieces.getvalue()
        self._pieces = StringIO()

    def drop(self, lowest: int) -> None:
        self._unsearched = len(self.text) - lowest
        super().drop(lowest)


class StreamedText:
    """One growing text of a stream, and the state of its search."""

    __slots__ = (
        "_bounded",
        "_budgets",
        "_chain",
        "_enforced_suffix",
        "_high_surrogate",
        "_level",
        "_match_counts",
        "_max_match",
        "_monitored_suffix",
        "_only_whitespace",
        "_source",
        "_unbounded",
        "decided",
        "end",
        "folded_decided",
        "folded_end",
        "masking",
        "open",
        "released",
        "unescaped",
    )

    def __init__(
        self, chain: Chain, match_counts: MatchCounts, max_match: int, budgets: SearchBudgets, level: int = 0
    ) -> None:
        self._chain = chain
        self._match_counts = match_counts
        self._max_match = max_match
        self._budgets = budgets
        self._level = level
        self._source = DELTA + UNESCAPED * level
        self.unescaped: UnescapedText | None = None
        self._enforced_suffix = self._monitored_suffix = ""
        self._bounded = _UnsearchedTail(len(chain.bounded_rules), chain.context)
        self._unbounded = (
            _BufferedTail(len(chain.unbounded_rules), chain.context, max_match) if chain.unbounded_rules else None
        )
        self._high_surrogate = ""
        self._only_whitespace = True
        """True until the first character that is not whitespace."""
        self.end = self.decided = 0
        self.folded_end = self.folded_decided = 0
        self.masking = Masking()
        self.released = 0
        self.open = True

    def add(self, text: str) -> str:
        """Search the next piece. Return it with surrogates joined across pieces. Raises `Blocked`."""
        if self._high_surrogate or not text.isascii():
            text = self._whole_characters(text)
        self.open = True
        self.end += len(text)
        if self._only_whitespace and text and not text.isspace():
            self._only_whitespace = False
            if self._level < MAX_LEVELS and starts_like_json(text):
                self.unescaped = UnescapedText(
                    self, self._chain, self._match_counts, self._max_match, self._budgets, self._level + 1
                )
                self.unescaped.add(" " * (self.end - len(text)))
        chain = self._chain
        if chain.enforced_literals is not None:
            folded = text.casefold()
            self.folded_end += len(folded)
            suffix = self._enforced_suffix
            unsearched = suffix + folded
            for guard in chain.enforced_literals.matching_guards(unsearched, len(suffix)):
                guard.record_block(self._match_counts, self._source)
            self._enforced_suffix = suffix = chain.enforced_literals.literals.partial_suffix(unsearched)
            self.folded_decided = self.folded_end - len(suffix)
        if chain.monitored_literals is not None:
            unsearched = self._monitored_suffix + text.casefold()
            for guard in chain.monitored_literals.matching_guards(unsearched, len(self._monitored_suffix)):
                guard.record_block(self._match_counts, self._source)
            self._monitored_suffix = chain.monitored_literals.literals.partial_suffix(unsearched)
        if chain.bounded_rules:
            self._bounded.text += text
            self._search_bounded(final=False)
        else:
            self.decided = self.end
        if self._unbounded is not None and self._unbounded.add(text):
            self._search_unbounded(self._unbounded, final=False)
        if self.unescaped is not None:
            self.unescaped.add(text)
        return text

    def close(self) -> None:
        """Search the text as complete. A piece that is added later is still searched together with its end."""
        if self.open:
            self.open = False
            if self.unescaped is not None:
                self.unescaped.close()
            if self._chain.bounded_rules:
                self._search_bounded(final=True)
            if self._unbounded is not None:
                self._search_unbounded(self._unbounded, final=True)
            self.decided = self.end
            self.folded_decided = self.folded_end

    @property
    def fully_decided(self) -> bool:
        return (
            self.decided == self.end
            and self.folded_decided == self.folded_end
            and (self.unescaped is None or (not self.unescaped.in_escape and self.unescaped.fully_decided))
        )

    def mask(self, first: int, last: int, rule: Rule, token: str) -> None:
        if first < self.released:
            raise Blocked(rule.guard)  # part of the match has been released, so it cannot be masked
        self.masking.add(first, last, rule.order, token)

    def _escape_token(self, token: str) -> str:
        """Escape the token if this text starts like JSON, where the match is inside a JSON string."""
        return token if self.unescaped is None else escape(token)

    def _whole_characters(self, text: str) -> str:
        """Join a surrogate pair that is split over two events into one character of the second event."""
        text = self._high_surrogate + text
        self._high_surrogate = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._high_surrogate = text[-1]
            text = text[:-1]
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def _search_bounded(self, *, final: bool) -> None:
        bounded, chain = self._bounded, self._chain
        text, base, cursors = bounded.text, bounded.base, bounded.cursors
        length = len(text)
        decided = lowest = length
        numbers = final
        if chain.numeric_rules and not final:
            low = min([cursors[number] for number in chain.numeric_rules]) - base
            numbers = _NUMBER.search(text, low) is not None
        for number, rule in enumerate(chain.bounded_rules):
            finder = rule.finder
            if finder.numeric and not numbers:
                cursors[number] = base + length
                continue
            cursor = cursors[number] - base
            undecided = finder.undecided_from(text, cursor)
            if final or undecided > cursor:
                undecided = self._search(rule, bounded, cursor, undecided, final=final)
            cursors[number] = base + undecided
            lowest = min(lowest, undecided)
            if rule.guard.enforced:
                decided = min(decided, undecided)
        self.decided = base + decided
        bounded.drop(lowest)

    def _search_unbounded(self, unbounded: _BufferedTail, *, final: bool) -> None:
        unbounded.join()
        length = len(unbounded.text)
        for number, rule in enumerate(self._chain.unbounded_rules):
            cursor = unbounded.cursors[number] - unbounded.base
            undecided = max(cursor, length - unbounded.max_match)
            unbounded.cursors[number] = unbounded.base + self._search(rule, unbounded, cursor, undecided, final=final)
        unbounded.drop(min(unbounded.cursors) - unbounded.base)

    def _search(self, rule: Rule, tail: _UnsearchedTail, cursor: int, undecided: int, *, final: bool) -> int:
        """Record the certain matches from `cursor` on. Return the position from which to search next."""
        text, base = tail.text, tail.base
        length = len(text)
        stop = length + 1 if final else undecided
        try:
            while cursor < stop:
                match = rule.find(text, cursor, self._budgets)
                if match is None or match[0] >= stop:
                    break
                start, end, first, last = match
                if end == length and not final and (rule.guard.enforced or end - start < _MAX_MONITORED_MATCH):
                    return start  # the match may continue, whatever its configured length
                cursor = end if end > start else start + 1
                if rule.blocks:
                    rule.guard.record_block(self._match_counts, self._source)
                elif first < last:
                    rule.guard.record_mask(self._match_counts, self._source)
                    if rule.guard.enforced:
                        self.mask(base + first, base + last, rule, self._escape_token(rule.token))
        except InspectionTimeout:
            rule.guard.record_timeout(self._match_counts)
        return max(cursor, undecided)


class UnescapedText(StreamedText):
    """Another streamed text with its JSON escapes decoded."""

    __slots__ = ("_original", "_unescaper")

    def __init__(
        self,
        original: StreamedText,
        chain: Chain,
        match_counts: MatchCounts,
        max_match: int,
        budgets: SearchBudgets,
        level: int,
    ) -> None:
        super().__init__(chain, match_counts, max_match, budgets, level)
        self._original = original
        self._unescaper = Unescaper()

    def add(self, text: str) -> str:
        if self._unescaper.has_many_offsets:
            self._unescaper.forget_before(self._first_needed())
        return super().add(self._unescaper.feed(text))

    def close(self) -> None:
        if self.open and self._unescaper.partial_escape:
            super().add(self._unescaper.flush())
        super().close()

    def mask(self, first: int, last: int, rule: Rule, token: str) -> None:
        origin = self._unescaper.origin
        self._original.mask(origin(first), origin(last), rule, escape(token))

    def _escape_token(self, token: str) -> str:
        return token  # `mask` escapes it

    @property
    def in_escape(self) -> bool:
        """True if the original ends within an escape."""
        return bool(self._unescaper.partial_escape)

    def ends(self, *, more: bool = False) -> _Ends:
        """Return the ends of this text and of its own unescaped version.

        A partial escape counts as the character that it will become. `more`: the original ends with such a character.
        """
        more = more or self.in_escape
        end = (self, self.end + more, self.folded_end + (more if self._chain.enforced_literals is not None else 0))
        return (end, *self.unescaped.ends(more=more)) if self.unescaped is not None else (end,)

    def _first_needed(self) -> int:
        """Return the first position that may still be masked, by a match in this text or in its unescaped version."""
        unescaped = self.unescaped
        return (
            self.decided
            if unescaped is None
            else min(self.decided, unescaped._unescaper.origin(unescaped._first_needed()))
        )


_Ends = tuple[tuple[UnescapedText, int, int], ...]
"""Unescaped texts with the ends of their text and of their folded text."""


class StreamedTexts:
    """The texts of one stream by address."""

    __slots__ = ("_budgets", "_chain", "_match_counts", "_max_match", "_texts")

    def __init__(self, chain: Chain, match_counts: MatchCounts, max_match: int, budgets: SearchBudgets) -> None:
        self._chain = chain
        self._match_counts = match_counts
        self._max_match = max_match
        self._budgets = budgets
        self._texts: dict[Address, StreamedText] = {}

    def get(self, address: Address) -> StreamedText:
        try:
            streamed_text = self._texts.get(address)
        except TypeError:
            return self.get((repr(address),))
        if streamed_text is None:
            if len(self._texts) >= _MAX_TEXTS:
                self._texts = {known: text for known, text in self._texts.items() if text.open}
                if len(self._texts) >= _MAX_TEXTS:
                    raise StreamBlocked(None)
            streamed_text = self._texts[address] = StreamedText(
                self._chain, self._match_counts, self._max_match, self._budgets
            )
        return streamed_text

    def close(self, prefix: Address) -> None:
        """Close all texts whose address starts with `prefix`."""
        size = len(prefix)
        for address, streamed_text in self._texts.items():
            if address[:size] == prefix:
                streamed_text.close()
