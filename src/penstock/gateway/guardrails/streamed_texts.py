"""Incremental search of the growing texts of a stream, for guardrails that enforce.

A text whose normalised form differs is searched in both forms, and it is decided where both are (see `incremental_search`). The
end of a text that another may continue without a gap is also searched together with that one.

A reader sees some texts without a gap: the parts of a message, and consecutive messages. A match may begin in one of them and
end in the next. So the end of a text that is not decided is held until the next text has decided it, or until nothing can
continue it any more.

Some texts are held to their end and searched whole: tool arguments, and any text from its first JSON escape, `data:text/…`
URL or invisible tag character on.
"""

from __future__ import annotations

import re
import sys
from collections import deque

from penstock.gateway.dialects.event_texts import BREAK, EventTexts
from penstock.gateway.dialects.field_map import FREE, Kind
from penstock.gateway.dialects.texts import DELTA, Address
from penstock.gateway.guardrails.chain import Rule
from penstock.gateway.guardrails.incremental_search import IncrementalSearch, Mask, NormalisedSearch, StreamSearch
from penstock.gateway.guardrails.inspection import Blocked
from penstock.gateway.guardrails.masking import Masking
from penstock.gateway.guardrails.normalise import is_plain, normalise
from penstock.gateway.guardrails.text_views import TAGS, TextView, starts_like_json, views_of
from penstock.gateway.surrogates import join_surrogates

_HELD_FROM = re.compile(rf"\\(?:u(?:[0-9a-fA-F]{{4}}|[0-9a-fA-F]{{0,3}}\Z)|\Z)|(?i:data:text/)|{TAGS.pattern}")
"""An escape that spells a letter, also if it is incomplete, a data URL, or tag characters."""
NOT_HELD = sys.maxsize
_SOURCE = DELTA + " joined"
_ESCAPE_LENGTH = len("\\u0000")
_DATA_URL_START = len("data:text/")
_MAX_TEXTS = 4096
"""Maximum number of open texts in a stream. No genuine reply has more."""


class StreamedText:
    """One growing text of a stream, and the state of its search."""

    def __init__(self, shared: StreamSearch, *, whole: bool = False, group: JoinedTexts | None = None) -> None:
        """`whole`: hold the text to its end. `group`: the texts that a reader sees together with this one."""
        self._shared = shared
        self._group = group
        self._joined: JoinedSearch | None = group.begin(self) if group is not None else None
        """The search for matches that begin in an earlier text of the group."""
        self._raw = IncrementalSearch(shared, DELTA)
        self._normal: NormalisedSearch | None = None
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
        self.held_from = NOT_HELD
        """The position from which the text is held because a later text of the group may complete a match."""
        self.masking = Masking()
        self.released = 0
        self.open = True

    @property
    def tail(self) -> str:
        """The end of the text: all that is not decided, and the context of that."""
        return self._raw.text + "".join(self._held) + self._deferred

    def add(self, text: str) -> str:
        """Search the next piece. Return it with surrogates joined across pieces. Raises `Blocked`."""
        plain = is_plain(text)
        if self._high_surrogate or not plain:
            text, self._high_surrogate = join_surrogates(self._high_surrogate + text)
        self.open = True
        self.end += len(text)
        if self._joined is not None:
            self._joined.add(text)
            if not self._joined.active:
                self._joined = None
        if self._only_whitespace and text and not text.isspace():
            self._only_whitespace = False
            self._is_json = starts_like_json(text)
        if self.held_whole:
            self._held.append(text)
            return text
        if plain and self._normal is None and not self._deferred and "\\" not in text and "/" not in text:
            raw = self._raw
            masks = raw.add(text)
            if masks:
                self._mask(masks)
            if raw.decided == self.end and raw.folded_decided == raw.folded_end:
                self._checkpoints.clear()
                self.decided = self.end
                return text
        else:
            unsearched = self._hold_rest(self._deferred + text)
            if unsearched:
                self._search(unsearched)
        self._advance()
        return text

    def close(self) -> None:
        """Search the text as complete. A piece that is added later is still searched together with its end."""
        if not self.open:
            return
        self.open = False
        if self._group is not None:
            self._group.extend(self)
        if self._held:
            self._search_held()
        else:
            if self._deferred:
                self._search(self._deferred)
                self._deferred = ""
            self._mask(self._raw.finish())
            if self._normal is not None:
                self._mask(self._normal.finish())
        self._checkpoints.clear()
        self.decided = self.end

    @property
    def fully_decided(self) -> bool:
        return self.decided == self.end <= self.held_from

    def _search(self, text: str) -> None:
        position = self._raw.end
        if self._normal is None and normalise(text) != text:
            self._normal = NormalisedSearch(self._raw)
        self._mask(self._raw.add(text))
        if self._normal is not None:
            self._mask(self._normal.add_original(text, position))

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
        normal = self._normal or raw
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

    def _mask(self, masks: list[Mask]) -> None:
        for first, last, rule in masks:
            self._add_mask(first, last, rule, self._token(rule))

    def _token(self, rule: Rule) -> str:
        return TextView('"' if self._is_json else "", "", 0).escape_token(rule.token)

    def _add_mask(self, first: int, last: int, rule: Rule, token: str) -> None:
        if first < self.released:
            # part of the match has been released, so it cannot be masked
            rule.guardrail.block(self._shared.match_counts)
        self.masking.add(first, last, rule.order, token)

    def _search_held(self) -> None:
        """Search the held text together with the text before it that is not decided."""
        raw, text = self._raw, "".join(self._held)
        self._held = []
        views: list[TextView] = []
        if views_of(views, raw.text + text, DELTA, 0, raw.base, decode=self._is_json):
            self._shared.chain.block_hidden_text(self._shared.match_counts)
        chain, match_counts, budgets = self._shared
        for view, first, last, rule in chain.search(views, match_counts, budgets, after=raw.decided):
            token = view.escape_token(rule.token) if view.level else self._token(rule)
            self._add_mask(*view.source_span(first, last), rule, token)
        raw.skip(text)
        self._normal = None


class JoinedSearch:
    """The search for matches that begin at the end of a text and end in a later one, in both forms.

    Such a match cannot be masked, because the events that end the texts repeat its parts, so it is blocked.
    """

    def __init__(self, shared: StreamSearch, tail: str) -> None:
        self._held: list[StreamedText] = []
        self._raw, self._normal = IncrementalSearch(shared, _SOURCE), IncrementalSearch(shared, _SOURCE)
        self._raw.begin_after(tail)
        self._normal.begin_after(normalise(tail))

    @property
    def active(self) -> bool:
        return bool(self._held)

    def hold(self, text: StreamedText, held_from: int) -> None:
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
        self._last: StreamedText | None = None
        self._extended = False
        """True if the end of the last text is searched together with what follows."""
        self._search: JoinedSearch | None = None

    def begin(self, text: StreamedText) -> JoinedSearch | None:
        """Begin the next text. Return the search to which its pieces must be added, if there is one."""
        if self._last is not None:
            self.extend(self._last)
        self._last = text
        self._extended = False
        return self._search

    def extend(self, text: StreamedText) -> None:
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


class StreamedTexts:
    """The texts of one stream by address."""

    def __init__(self, shared: StreamSearch, event_texts: EventTexts) -> None:
        self._shared = shared
        self._joined_group = event_texts.joined_group
        self._texts: dict[Address, StreamedText] = {}
        self._groups: dict[Address, JoinedTexts] = {}

    def find(self, address: Address) -> StreamedText | None:
        return self._texts.get(address)

    def get(self, address: Address, kind: Kind) -> StreamedText:
        """Return the text at an address, which begins here if it is new."""
        try:
            streamed_text = self._texts.get(address)
        except TypeError:
            return self.get((repr(address),), kind)
        if streamed_text is None:
            if len(self._texts) >= _MAX_TEXTS:
                self._texts = {known: text for known, text in self._texts.items() if text.open}
                if len(self._texts) >= _MAX_TEXTS:
                    raise Blocked(None)
            group = self._group(self._joined_group(address))
            streamed_text = self._texts[address] = StreamedText(self._shared, whole=kind == FREE, group=group)
        return streamed_text

    def _group(self, key: Address | None) -> JoinedTexts | None:
        if key is None:
            return None
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = JoinedTexts(self._shared)
        return group

    def close(self, prefix: Address) -> None:
        """Close all texts whose address starts with `prefix`. With `BREAK`, end the groups: nothing continues them."""
        if prefix == BREAK:
            prefix = ()
        else:
            self._close_texts(prefix)
        size = len(prefix)
        for key in [key for key in self._groups if size < 2 and key[:size] == prefix]:
            self._groups.pop(key).end()

    def _close_texts(self, prefix: Address) -> None:
        size = len(prefix)
        for address, streamed_text in self._texts.items():
            if address[:size] == prefix:
                streamed_text.close()
