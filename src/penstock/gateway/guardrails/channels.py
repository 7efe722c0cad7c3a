"""The texts of a stream while they grow: what of each is decided.

A position is decided when no text to come can change what is found before it. For literals that is everything but the end
that a literal begins with; for a detector or a regular expression everything but the positions at which a match could
still begin or change. Both are kept in characters of the text; for literals in characters of its case-folded form, which
may be longer.

Rules without a reach can only watch a stream that passes, so nothing waits for them: what comes is laid aside in pieces, and
they read it when there is much of it, or at the end.

A text that begins like JSON has a copy without its escapes (see `unescape`), which is a channel of its own; what is found
in that is masked where it stands in the text.
"""

from __future__ import annotations

from io import StringIO

import regex

from penstock.gateway.guardrails.chain import Blocked, Chain, Rule
from penstock.gateway.guardrails.events import DELTA, Key
from penstock.gateway.guardrails.inspection import StreamBlocked, Tally
from penstock.gateway.guardrails.masking import Masking
from penstock.gateway.guardrails.search_budget import SearchBudgets, Undecided
from penstock.gateway.guardrails.search_texts import UNESCAPED
from penstock.gateway.guardrails.unescape import LEVELS, Escapes, begins_json, escaped

__all__ = ["Channel", "Channels"]

_NUMBER = regex.compile("[0-9+]")

_LONG = 8192
"""A match that may go on is waited for. One of this length that is only watched counts as it is: nobody holds its text back,
so it could grow for ever, and would be read again with each piece."""

_MOST = 4096
"""Texts at once. A stream with more of them open is no reply."""


class _Tail:
    """The end of a text that some rules have still to read, and how far each of them has come."""

    __slots__ = ("_context", "base", "cursors", "text")

    def __init__(self, rules: int, context: int) -> None:
        self.text = ""
        self.base = 0
        self.cursors = [0] * rules
        self._context = context

    def drop(self, lowest: int) -> None:
        """All have come as far as this position of what is left."""
        spare = lowest - self._context
        if spare > 256:  # not for each piece
            self.text = self.text[spare:]
            self.base += spare


class _Pieces(_Tail):
    """One that is read now and then, and put together only for that."""

    __slots__ = ("_pieces", "_unread", "slack")

    def __init__(self, rules: int, context: int, slack: int) -> None:
        super().__init__(rules, context)
        self.slack = slack
        """Longer matches may be missed."""
        self._pieces = StringIO()  # a list of a hundred thousand words would take ten times their length
        self._unread = 0

    def add(self, text: str) -> bool:
        """Whether it is time to read."""
        self._pieces.write(text)
        self._unread += len(text)
        return self._unread > 2 * self.slack

    def put_together(self) -> None:
        self.text += self._pieces.getvalue()
        self._pieces = StringIO()

    def drop(self, lowest: int) -> None:
        self._unread = len(self.text) - lowest
        super().drop(lowest)


class Channel:
    __slots__ = (
        *("_blank", "_carry", "_chain", "_far", "_level", "_near", "_patience", "_slack", "_source", "_tally"),
        *("_watched_state", "_word_state"),
        *("copy", "decided", "end", "folded_decided", "folded_end", "masking", "open", "released"),
    )

    def __init__(self, chain: Chain, tally: Tally, slack: int, patience: SearchBudgets, level: int = 0) -> None:
        self._chain = chain
        self._tally = tally
        self._slack = slack
        self._patience = patience
        self._level = level
        self._source = DELTA + UNESCAPED * level
        self.copy: Copy | None = None
        self._word_state = self._watched_state = ""
        self._near = _Tail(len(chain.near), chain.context)
        self._far = _Pieces(len(chain.far), chain.context, slack) if chain.far else None
        self._carry = ""
        self._blank = True
        """There has been no sign but space."""
        self.end = self.decided = 0
        self.folded_end = self.folded_decided = 0
        self.masking = Masking()
        self.released = 0
        self.open = True

    def add(self, text: str) -> str:
        """Takes the next piece, and gives back what of it counts; raises `Blocked`."""
        if self._carry or not text.isascii():
            text = self._whole_characters(text)
        self.open = True
        self.end += len(text)
        if self._blank and text and not text.isspace():
            self._blank = False
            if self._level < LEVELS and begins_json(text):
                self.copy = Copy(self, self._chain, self._tally, self._slack, self._patience, self._level + 1)
                self.copy.add(" " * (self.end - len(text)))
        chain = self._chain
        if chain.words is not None:
            folded = text.casefold()
            self.folded_end += len(folded)
            state = self._word_state
            known = state + folded
            for guard in chain.words.guards(known, len(state)):
                guard.blocks(self._tally, self._source)
            self._word_state = state = chain.words.literals.rest(known)
            self.folded_decided = self.folded_end - len(state)
        if chain.watched is not None:
            known = self._watched_state + text.casefold()
            for guard in chain.watched.guards(known, len(self._watched_state)):
                guard.blocks(self._tally, self._source)
            self._watched_state = chain.watched.literals.rest(known)
        if chain.near:
            self._near.text += text
            self._advance(final=False)
        else:
            self.decided = self.end
        if self._far is not None and self._far.add(text):
            self._read(self._far, final=False)
        if self.copy is not None:
            self.copy.add(text)
        return text

    def close(self) -> None:
        """No more is expected; if more comes, it is searched together with the end of this."""
        if self.open:
            self.open = False
            if self.copy is not None:
                self.copy.close()
            if self._chain.near:
                self._advance(final=True)
            if self._far is not None:
                self._read(self._far, final=True)
            self.decided = self.end
            self.folded_decided = self.folded_end

    @property
    def settled(self) -> bool:
        """All of it is decided."""
        return (
            self.decided == self.end
            and self.folded_decided == self.folded_end
            and (self.copy is None or (not self.copy.pending and self.copy.settled))
        )

    def mask(self, first: int, last: int, rule: Rule, token: str) -> None:
        if first < self.released:
            raise Blocked(rule.guard)  # a part of it has left, so it cannot be masked any more
        self.masking.add(first, last, rule.order, token)

    def _spelled(self, token: str) -> str:
        """As it is written into this text: what begins like JSON has it in a string."""
        return token if self.copy is None else escaped(token)

    def _whole_characters(self, text: str) -> str:
        """A pair of surrogates that JSON escapes split over two events is one character of the second."""
        text = self._carry + text
        self._carry = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._carry = text[-1]
            text = text[:-1]
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def _advance(self, *, final: bool) -> None:
        near, chain = self._near, self._chain
        text, base, cursors = near.text, near.base, near.cursors
        length = len(text)
        decided = lowest = length
        numbers = final
        if chain.numeric and not final:
            low = min([cursors[number] for number in chain.numeric]) - base
            numbers = _NUMBER.search(text, low) is not None
        for number, rule in enumerate(chain.near):
            finder = rule.finder
            if finder.numeric and not numbers:
                cursors[number] = base + length
                continue
            cursor = cursors[number] - base
            undecided = finder.open_from(text, cursor)
            if final or undecided > cursor:
                undecided = self._search(rule, near, cursor, undecided, final=final)
            cursors[number] = base + undecided
            lowest = min(lowest, undecided)
            if rule.guard.enforced:
                decided = min(decided, undecided)
        self.decided = base + decided
        near.drop(lowest)

    def _read(self, far: _Pieces, *, final: bool) -> None:
        far.put_together()
        length = len(far.text)
        for number, rule in enumerate(self._chain.far):
            cursor = far.cursors[number] - far.base
            undecided = max(cursor, length - far.slack)
            far.cursors[number] = far.base + self._search(rule, far, cursor, undecided, final=final)
        far.drop(min(far.cursors) - far.base)

    def _search(self, rule: Rule, tail: _Tail, cursor: int, undecided: int, *, final: bool) -> int:
        """Deals with the matches that are certain; from where on there may be others."""
        text, base = tail.text, tail.base
        length = len(text)
        stop = length + 1 if final else undecided
        try:
            while cursor < stop:
                match = rule.find(text, cursor, self._patience)
                if match is None or match[0] >= stop:
                    break
                start, end, first, last = match
                if end == length and not final and (rule.guard.enforced or end - start < _LONG):
                    return start  # it may go on, whatever its declared length
                cursor = end if end > start else start + 1
                if rule.blocks:
                    rule.guard.blocks(self._tally, self._source)
                elif first < last:
                    rule.guard.masks(self._tally, self._source)
                    if rule.guard.enforced:
                        self.mask(base + first, base + last, rule, self._spelled(rule.token))
        except Undecided:
            rule.guard.gives_up(self._tally)
        return max(cursor, undecided)


class Copy(Channel):
    """Of another channel's text, without its escapes."""

    __slots__ = ("_escapes", "_original")

    def __init__(
        self, original: Channel, chain: Chain, tally: Tally, slack: int, patience: SearchBudgets, level: int
    ) -> None:
        super().__init__(chain, tally, slack, patience, level)
        self._original = original
        self._escapes = Escapes()

    def add(self, text: str) -> str:
        if self._escapes.many:
            self._escapes.forget(self._needed())
        return super().add(self._escapes.feed(text))

    def close(self) -> None:
        if self.open and self._escapes.tail:
            super().add(self._escapes.flush())
        super().close()

    def mask(self, first: int, last: int, rule: Rule, token: str) -> None:
        origin = self._escapes.origin
        self._original.mask(origin(first), origin(last), rule, escaped(token))

    def _spelled(self, token: str) -> str:
        return token  # `mask` escapes it on its way to the original

    @property
    def pending(self) -> bool:
        """The original ends within an escape."""
        return bool(self._escapes.tail)

    def ends(self, *, more: bool = False) -> Ends:
        """How far this and its own copy have come; within an escape, as far as the character that it will become.

        `more`: the original has such a character to come.
        """
        more = more or self.pending
        own = (self, self.end + more, self.folded_end + (more if self._chain.words is not None else 0))
        return (own, *self.copy.ends(more=more)) if self.copy is not None else (own,)

    def _needed(self) -> int:
        """The first position at which something may still be masked: here, or in what the copy of this will find."""
        copy = self.copy
        return self.decided if copy is None else min(self.decided, copy._escapes.origin(copy._needed()))


Ends = tuple[tuple[Copy, int, int], ...]
"""A copy, and ends of its text and of its folded text."""


class Channels:
    __slots__ = ("_chain", "_known", "_patience", "_slack", "_tally")

    def __init__(self, chain: Chain, tally: Tally, slack: int, patience: SearchBudgets) -> None:
        self._chain = chain
        self._tally = tally
        self._slack = slack
        self._patience = patience
        self._known: dict[Key, Channel] = {}

    def at(self, key: Key) -> Channel:
        try:
            channel = self._known.get(key)
        except TypeError:
            return self.at((repr(key),))
        if channel is None:
            if len(self._known) >= _MOST:
                self._known = {known: channel for known, channel in self._known.items() if channel.open}
                if len(self._known) >= _MOST:
                    raise StreamBlocked(None)
            channel = self._known[key] = Channel(self._chain, self._tally, self._slack, self._patience)
        return channel

    def close(self, beginning: Key) -> None:
        """All whose address begins so."""
        size = len(beginning)
        for key, channel in self._known.items():
            if key[:size] == beginning:
                channel.close()
