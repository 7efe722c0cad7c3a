"""Incremental search of the growing texts of a stream, for guardrails that enforce.

The text before a position is decided when no later text can change the matches in it. For literals, only a suffix that is
the prefix of a literal is undecided; for a detector or a regex, the positions at which a match could still begin or change.
A text whose normalised form differs is searched in both forms, and it is decided where both are.

Some texts are held to their end and searched whole: tool arguments, and any text from its first JSON escape, `data:text/…`
URL or invisible tag character on.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

import regex

from penstock.gateway.guardrails.chain import Blocked, Chain, Rule
from penstock.gateway.guardrails.events import DELTA, Address, is_arguments
from penstock.gateway.guardrails.inspection import MatchCounts, StreamBlocked
from penstock.gateway.guardrails.masking import Masking
from penstock.gateway.guardrails.normalise import IGNORABLE, TOO_MANY_IGNORABLES, normalise, normalised_starts
from penstock.gateway.guardrails.search_budget import InspectionTimeout, SearchBudgets
from penstock.gateway.guardrails.views import TAGS, SearchText, search_texts_of, starts_like_json

__all__ = ["StreamedText", "StreamedTexts"]

_NUMBER = regex.compile("[0-9+]")
_TRAILING_IGNORABLES = re.compile(f"[{IGNORABLE}]*\\Z")
_HELD_FROM = re.compile(rf"\\(?:u(?:[0-9a-fA-F]{{4}}|[0-9a-fA-F]{{0,3}}\Z)|\Z)|(?i:data:text/)|{TAGS.pattern}")
"""An escape that spells a letter, also if it is incomplete, a data URL, or tag characters."""
_ESCAPE_LENGTH = len("\\u0000")
_DATA_URL_START = len("data:text/")
_SPARE = 256
_NO_MASKS: list[tuple[int, int, Rule]] = []
_MAX_TEXTS = 4096
"""Maximum number of open texts in a stream. No genuine reply has more."""


class _Search:
    """The search of one form of a text: its last characters, and how far each rule has searched them."""

    __slots__ = (
        "_budgets",
        "_chain",
        "_cursors",
        "_fold",
        "_match_counts",
        "_source",
        "_suffix",
        "base",
        "decided",
        "end",
        "folded_decided",
        "folded_end",
        "text",
    )

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

    def copy(self, source: str) -> _Search:
        """Return a search of another form that starts here. Both forms are equal so far."""
        other = _Search(self._chain, self._match_counts, self._budgets, source)
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
            for guard in literals.matching_guards(unsearched, len(suffix)):
                guard.record_block(self._match_counts, self._source)
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
                    return start  # the match may continue, whatever its configured length
                cursor = end if end > start else start + 1
                if rule.blocks:
                    rule.guard.record_block(self._match_counts, self._source)
                elif first < last:
                    rule.guard.record_mask(self._match_counts, self._source)
                    masks.append((base + first, base + last, rule))
        except InspectionTimeout:
            rule.guard.record_timeout(self._match_counts)
        return max(cursor, undecided)

    def _drop(self, lowest: int) -> None:
        """Drop text that no rule needs any more; `lowest` is the lowest rule position, relative to `base`."""
        spare = lowest - self._chain.context
        if spare > _SPARE:  # amortise the copy
            self.text = self.text[spare:]
            self.base += spare


class _Piece:
    """A piece of a text, and where it and its normalised form start."""

    __slots__ = ("_source", "_starts", "_text", "start")

    def __init__(self, start: int, source: int, text: str) -> None:
        self.start = start
        self._source = source
        self._text = text
        self._starts: list[int] | None = None

    def origin(self, position: int) -> int:
        """Return the position in the text of a position in the normalised form."""
        if self._starts is None:
            self._starts = normalised_starts(self._text)
        return self._source + self._starts[position - self.start]


class _NormalisedSearch:
    """The search of the normalised form, and the mapping of its positions to the text."""

    __slots__ = ("_ignorables", "_pieces", "search")

    def __init__(self, raw: _Search) -> None:
        self.search = raw.copy(DELTA + " view")
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


class StreamedText:
    """One growing text of a stream, and the state of its search."""

    __slots__ = (
        "_before",
        "_budgets",
        "_chain",
        "_checkpoints",
        "_deferred",
        "_held",
        "_high_surrogate",
        "_is_json",
        "_match_counts",
        "_normal",
        "_only_whitespace",
        "_raw",
        "decided",
        "end",
        "held_whole",
        "masking",
        "open",
        "released",
    )

    def __init__(
        self, chain: Chain, match_counts: MatchCounts, budgets: SearchBudgets, *, whole: bool = False, before: str = ""
    ) -> None:
        """`whole`: hold the text to its end. `before` is the end of the text that a reader sees before this one."""
        self._chain = chain
        self._match_counts = match_counts
        self._budgets = budgets
        self._before = before
        self._raw = _Search(chain, match_counts, budgets, DELTA)
        self._normal: _NormalisedSearch | None = None
        self._checkpoints: deque[tuple[int, tuple[int, int, int, int]]] = deque()
        """Ends of pieces that are not decided, with the ends of all forms there."""
        self._held: list[str] = []
        self._deferred = ""
        """An incomplete escape at the end of the text."""
        self._high_surrogate = ""
        self._only_whitespace = True
        """True until the first character that is not whitespace."""
        self._is_json = False
        self.held_whole = whole
        """True if the text is held to its end."""
        self.end = self.decided = 0
        self.masking = Masking()
        self.released = 0
        self.open = True

    @property
    def tail(self) -> str:
        """The last characters of the text."""
        return (self._raw.text + "".join(self._held))[-self._chain.context :]

    def add(self, text: str) -> str:
        """Search the next piece. Return it with surrogates joined across pieces. Raises `Blocked`."""
        is_ascii = text.isascii()
        if self._high_surrogate or not is_ascii:
            text = self._whole_characters(text)
        self.open = True
        self.end += len(text)
        if self._only_whitespace and text and not text.isspace():
            self._only_whitespace = False
            self._is_json = starts_like_json(text)
        if self.held_whole:
            self._held.append(text)
            return text
        if is_ascii and self._normal is None and not self._deferred and "\\" not in text and "/" not in text:
            raw = self._raw
            masks = raw.add(text)
            if masks:
                self._mask(masks)
            if raw.decided == self.end and raw.folded_decided == raw.folded_end and not self._before:
                self._checkpoints.clear()
                self.decided = self.end
                return text
        else:
            unsearched = self._hold_rest(self._deferred + text)
            if unsearched:
                self._search(unsearched)
        if self._before:
            self._search_border()
        self._advance()
        return text

    def close(self) -> None:
        """Search the text as complete. A piece that is added later is still searched together with its end."""
        if not self.open:
            return
        self.open = False
        if self._held:
            self._search_held()
        else:
            if self._deferred:
                self._search(self._deferred)
                self._deferred = ""
            self._mask(self._raw.finish())
            if self._normal is not None:
                self._mask_normal(self._normal.search.finish())
        self._checkpoints.clear()
        self.decided = self.end

    @property
    def fully_decided(self) -> bool:
        return self.decided == self.end

    def _search(self, text: str) -> None:
        position = self._raw.end
        if self._normal is None and not text.isascii() and normalise(text) != text:
            self._normal = _NormalisedSearch(self._raw)
        self._mask(self._raw.add(text))
        if self._normal is not None:
            self._mask_normal(self._normal.add(text, position))

    def _hold_rest(self, text: str) -> str:
        """Hold the text from the first character on that needs a search of the whole text. Return the text before it."""
        self._deferred = ""
        start = text.find("\\") if self._is_json else -1
        if start < 0:
            recent = self._raw.text[-_DATA_URL_START:]
            match = _HELD_FROM.search(recent + text)
            if match is None:
                return text
            start = max(0, match.start() - len(recent))
            if match[0].startswith("\\") and len(match[0]) < _ESCAPE_LENGTH:
                self._deferred = text[start:]
                return text[:start]
        self.held_whole = True
        self._held.append(text[start:])
        return text[:start]

    def _advance(self) -> None:
        """Move `decided` to the end of the last piece that is decided in all forms."""
        raw = self._raw
        normal = raw if self._normal is None else self._normal.search
        if raw.end == self.end and raw.fully_decided and (normal is raw or normal.fully_decided):
            if self._checkpoints:
                self._checkpoints.clear()
            self.decided = self.end
            return
        more = len(self._deferred)
        if not self._held:
            ends = (raw.end + more, raw.folded_end + more, normal.end + more, normal.folded_end + more)
            self._checkpoints.append((self.end, ends))
        reached = (raw.decided, raw.folded_decided, normal.decided, normal.folded_decided)
        while self._checkpoints and all(map(int.__ge__, reached, self._checkpoints[0][1])):
            self.decided = self._checkpoints.popleft()[0]

    def _mask(self, masks: list[tuple[int, int, Rule]]) -> None:
        for first, last, rule in masks:
            self._add_mask(first, last, rule, self._token(rule))

    def _mask_normal(self, masks: list[tuple[int, int, Rule]]) -> None:
        assert self._normal is not None
        for first, last, rule in masks:
            self._add_mask(*self._normal.origin(first, last), rule, self._token(rule))

    def _token(self, rule: Rule) -> str:
        return SearchText('"' if self._is_json else "", "", 0).escape_token(rule.token)

    def _add_mask(self, first: int, last: int, rule: Rule, token: str) -> None:
        if first < self.released:
            raise Blocked(rule.guard)  # part of the match has been released, so it cannot be masked
        self.masking.add(first, last, rule.order, token)

    def _search_held(self) -> None:
        """Search the held text together with the text before it that is not decided."""
        raw, text = self._raw, "".join(self._held)
        self._held = []
        views: list[SearchText] = []
        if search_texts_of(views, raw.text + text, DELTA, 0, raw.base, decode=self._is_json):
            self._chain.block_hidden_text()
        for view, first, last, rule in self._chain.search(views, self._match_counts, self._budgets, after=raw.decided):
            token = view.escape_token(rule.token) if view.level else self._token(rule)
            self._add_mask(*view.source_span(first, last), rule, token)
        raw.skip(text)
        self._normal = None

    def _search_border(self) -> None:
        """Search for matches that began in the text before this one, which has been released."""
        parts = [self._before, self._raw.text]
        view = SearchText("".join(parts), DELTA, 0, parts=parts)
        normal = [normalise(part) for part in parts]
        views = [view] if normal == parts else [view, SearchText("".join(normal), DELTA, 0, parts=normal)]
        for _, _, _, rule in self._chain.search(views, self._match_counts, self._budgets):
            raise Blocked(rule.guard)
        if self.end > self._chain.context:
            self._before = ""

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


class StreamedTexts:
    """The texts of one stream by address."""

    __slots__ = ("_budgets", "_chain", "_last_part", "_match_counts", "_texts")

    def __init__(self, chain: Chain, match_counts: MatchCounts, budgets: SearchBudgets) -> None:
        self._chain = chain
        self._match_counts = match_counts
        self._budgets = budgets
        self._texts: dict[Address, StreamedText] = {}
        self._last_part: dict[Address, StreamedText] = {}
        """(item, kind) -> the last of its parts."""

    def get(self, address: Address) -> StreamedText:
        try:
            streamed_text = self._texts.get(address)
        except TypeError:
            return self.get((repr(address),))
        if streamed_text is None:
            if len(self._texts) >= _MAX_TEXTS:
                self._texts = {known: text for known, text in self._texts.items() if text.open}
                self._last_part.clear()
                if len(self._texts) >= _MAX_TEXTS:
                    raise StreamBlocked(None)
            part_of = (address[0], address[2]) if len(address) == 4 and address[1] is not None else None
            before = self._last_part.get(part_of) if part_of is not None else None
            streamed_text = self._texts[address] = StreamedText(
                self._chain,
                self._match_counts,
                self._budgets,
                whole=is_arguments(address),
                before=before.tail if before is not None else "",
            )
            if part_of is not None:
                self._last_part[part_of] = streamed_text
        return streamed_text

    def close(self, prefix: Address) -> None:
        """Close all texts whose address starts with `prefix`."""
        size = len(prefix)
        for address, streamed_text in self._texts.items():
            if address[:size] == prefix:
                streamed_text.close()
