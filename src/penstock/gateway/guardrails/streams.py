"""Stream guards: the base class, `BufferGuard`, which holds a stream until its end, and `MonitorGuard`, which only counts.

`WindowGuard`, which releases events as they become clean, is in `window`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import orjson

from penstock.gateway.dialects.event_texts import BREAK, EventTexts
from penstock.gateway.dialects.field_map import ID, KEY
from penstock.gateway.dialects.sse_frames import Frame, Frames, Part
from penstock.gateway.dialects.texts import Address, InspectedText, JoinedText, TextRef, Texts, is_setting
from penstock.gateway.guardrails.chain import Chain
from penstock.gateway.guardrails.inspection import Blocked, MatchCounts, block_event
from penstock.gateway.guardrails.json_input import without_duplicate_keys, write_changes
from penstock.gateway.guardrails.offload import INLINE_BYTES, run_in_thread, run_offloaded
from penstock.gateway.guardrails.search_budget import SearchBudgets
from penstock.gateway.ledger.entry import GuardrailHit
from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.routes import BY_NAME, Route
from penstock.gateway.surrogates import join_surrogates

MAX_EVENT_BYTES = 32 << 20
"""An event can only be parsed when it is complete. The last event of a response repeats all of its text, so this limit is
far above the number of bytes held of a stream."""
MAX_HELD_BYTES = 16 << 20
"""Raw bytes of a stream that are held at most. `max_buffer_bytes` limits the text in them."""
MAX_MONITORED_BYTES = 32 << 20

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients ignore."""

_DONE = b"[DONE]"
_INVALID = object()
_NAMES = frozenset((b"message", b"error", b"ping", b"done"))
"""Event names that are protocol values although the data does not repeat them."""


class Event:
    """A frame and its texts. Data that is not JSON is one plain text."""

    def __init__(self, frame: Frame, event_texts: EventTexts) -> None:
        self.frame = frame
        self._event_texts = event_texts
        self.plain = False
        self.texts = _NO_TEXTS
        self._root: list[Any] = [None]
        self._source = data = frame.data or b""
        if not data:
            return
        try:
            self._root[0] = orjson.loads(data)
        except orjson.JSONDecodeError:
            if data.strip() == _DONE:
                self.texts = Texts()
                self.texts.ended.append(())
                return
            self._read_lenient(data)
            if self.plain:
                return
        self.texts = event_texts.read(self._root[0], frame.name.decode("utf-8", "replace"))

    def _read_lenient(self, data: bytes) -> None:
        self._source = data.decode("utf-8", "replace").encode()
        self._root[0] = _loads_lenient(self._source)
        if self._root[0] is not _INVALID:
            return
        lines = self._source.split(b"\n")
        if len(lines) > 1:
            # some clients join the lines without a line break
            self._source = b"".join(lines)
            self._root[0] = _loads_lenient(self._source)
            if self._root[0] is not _INVALID:
                self.frame = Frame(self.frame.with_data(self._source))
                return
            self._source = b"\n".join(lines)
        self.plain = True
        self._root[0] = text = self._source.decode()
        joined = text.replace("\n", "")
        self.texts = Texts()
        self.texts.pieces.append((("plain",), TextRef(self._root, 0, text, "delta")))
        if joined != text:
            self.texts.complete.append(TextRef(None, None, joined, "lines"))

    def clean(self) -> None:
        """Remove what is not inspected: lines other than data and the event's name, and duplicate keys."""
        frame = self.frame
        if frame.data is None:
            if frame.others:
                self.frame = Frame(b"")
            return
        if frame.others and not self._only_names_type():
            name = frame.name if self._is_known_name(frame.name) else b""
            self.frame = frame = Frame(frame.with_others(b"event: " + name if name else b""))
        if self.plain:
            return
        source = without_duplicate_keys(self._source, self._root[0])
        if source is not self._source:
            self._source = source
            self.frame = Frame(frame.with_data(source))

    def _only_names_type(self) -> bool:
        """Return True if the only other line names the event's type, as in most events of a response."""
        kind = self._type()
        return kind is not None and self.frame.others == b"event: " + kind

    def _is_known_name(self, name: bytes) -> bool:
        return name == self._type() or name in _NAMES

    def _type(self) -> bytes | None:
        """Return the event's type if it is a protocol value."""
        kind = self._event_texts.type_of(self.payload)
        return kind.encode() if kind is not None and is_setting(kind) else None

    @property
    def has_complete_text(self) -> bool:
        return any(isinstance(text, JoinedText) or text.kind not in (ID, KEY) for text in self.texts.complete)

    @property
    def payload(self) -> Any:
        return None if self.plain else self._root[0]

    @property
    def raw(self) -> bytes:
        """The bytes of the event with masks applied and tokens removed."""
        frame = self.frame
        if frame.data is None:
            return frame.raw
        refs = [ref for _, ref in self.texts.pieces if ref.replacement is not None]
        refs += [ref for ref in _all_refs(self.texts.complete) if ref.replacement is not None]
        if self.plain:
            return frame.with_data((refs[-1].replacement or "").encode("utf-8", "replace")) if refs else frame.raw
        return self.raw_unmasked if not refs else self._written(refs)

    @property
    def raw_unmasked(self) -> bytes:
        """The bytes of an event without masks."""
        return self._written([]) if self.texts.tokens else self.frame.raw

    def _written(self, refs: list[TextRef]) -> bytes:
        changed = write_changes(self._source, self._source, self._root, refs, self.texts.tokens)
        return self.frame.raw if changed is self._source else self.frame.with_data(changed)


_NO_TEXTS = Texts()


def _all_refs(texts: list[InspectedText]) -> list[TextRef]:
    refs: list[TextRef] = []
    for inspected in texts:
        if isinstance(inspected, TextRef):
            refs.append(inspected)
        else:
            refs += [ref for part in inspected.parts for ref in part]
    return refs


def _loads_lenient(data: bytes) -> Any:
    """Parse JSON that orjson rejects and other parsers accept: lone surrogates, NaN."""
    try:
        return json.loads(data.decode("utf-8-sig"))  # json.loads would guess the encoding of bytes
    except (ValueError, RecursionError):
        return _INVALID


def joined_texts(events: Iterable[Event], joined_group: Callable[[Address], Address | None]) -> list[InspectedText]:
    """Return the texts of complete streams: those of the deltas, joined where a reader sees no gap, and complete ones."""
    group_of: dict[Address, Address] = {}
    groups: dict[Address, dict[Address, list[TextRef]]] = {}
    inspected: list[InspectedText] = []
    breaks = 0
    for event in events:
        texts = event.texts
        for place, ref in texts.pieces:
            address = _hashable(place)
            group = group_of.get(address)
            if group is None:
                group = group_of[address] = (joined_group(address) or address, breaks)
            groups.setdefault(group, {}).setdefault(address, []).append(ref)
        inspected += texts.complete
        breaks += BREAK in texts.ended
    for parts in groups.values():
        for refs in parts.values():
            _join_surrogates(refs)
    inspected += [JoinedText(list(parts.values())) for parts in groups.values()]
    return inspected


def _join_surrogates(refs: list[TextRef]) -> None:
    """Join each surrogate pair that is split over two pieces into one character of the second piece."""
    rest = ""
    for ref in refs:
        if rest or not ref.text.isascii():
            ref.text, rest = join_surrogates(rest + ref.text)


def _hashable(address: Address) -> Address:
    try:
        hash(address)
    except TypeError:
        return (repr(address),)
    return address


class TextSize:
    """Counts the bytes of text in a stream. A stream repeats its text in other events; those are not counted again."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self.largest = 0

    def add(self, event: Event) -> None:
        for _, ref in event.texts.pieces:
            self._add(ref)
        for ref in _all_refs(event.texts.complete):
            self._add(ref)

    def _add(self, ref: TextRef) -> None:
        text = ref.text
        size = self._sizes.get(ref.source, 0)
        size += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        self._sizes[ref.source] = size
        self.largest = max(self.largest, size)


class StreamGuard:
    """Inspects one stream: takes SSE frames and returns the bytes to release.

    A verdict may take time: it is then awaitable, and the caller of `feed` pauses the stream meanwhile.
    """

    holds = True
    """True if only the bytes that the guard returns may be sent."""
    max_event_bytes = MAX_EVENT_BYTES
    """A longer event may be passed to the guard in parts."""
    heartbeat_s: float | None = None
    """Time without released data after which `heartbeat` is due."""

    def __init__(self, chain: Chain, route: Route, mode: GuardrailMode) -> None:
        self._chain = chain
        self._route = route
        self._mode = mode
        self._match_counts = MatchCounts("output")
        self._event_texts = BY_NAME[route].event_texts()
        self._last_released: Any = None
        self.response_id: str | None = None
        """The id of the response, or of the first chunk."""
        self.model = ""

    @property
    def hits(self) -> list[GuardrailHit]:
        return self._match_counts.hits()

    @property
    def next_sequence(self) -> int:
        """The sequence number that follows the last one released."""
        last, key = self._last_released, self._event_texts.sequence_key
        number = last.get(key) if type(last) is dict else None
        return number + 1 if type(number) is int else 0

    @property
    def waiting(self) -> bool:
        """True if an event is held."""
        return False

    @property
    def held_bytes(self) -> int:
        """The size of the held events."""
        return 0

    def feed(self, frames: list[Frame], pending: int) -> bytes | Awaitable[bytes]:
        """Return the bytes to release now. Raises `Blocked`. `pending` is the size of the incomplete next frame.

        If the result is awaitable, the guard must not be fed before it is done.
        """
        raise NotImplementedError

    async def finish(self, rest: Frame | None) -> bytes:
        """Return the remaining bytes at the end of the stream. Raises `Blocked`. `rest` is an unterminated last frame."""
        raise NotImplementedError

    def heartbeat(self) -> bytes:
        """Return bytes that keep the connection alive."""
        return KEEP_ALIVE

    def block_event(self, blocked: Blocked) -> bytes:
        """Return the event that ends this stream after part of it has been released."""
        return block_event(
            self._route,
            blocked.guardrail,
            self.response_id,
            self.next_sequence,
            model=self.model,
            timed_out=blocked.timed_out,
            too_long=blocked.too_long,
        )

    def _identify(self, payload: Any) -> None:
        identity = self._event_texts.identity(payload) if type(payload) is dict else None
        if identity is not None:
            self.response_id, self.model = identity

    def _too_long(self, mode: str) -> Blocked:
        """Return the block of a stream that has more text than may be held, and tell the operator what to do."""
        names = ", ".join([repr(guardrail.name) for guardrail in self._chain.guardrails if guardrail.enforced])
        advice = "" if mode == "window" else "; `stream_mode: window` inspects streams of any length"
        log_operator_message(
            f"blocked a stream: it has more text than guardrail {names} may hold "
            f"(guardrails.max_buffer_bytes: {self._mode.max_buffer_bytes}, {MAX_HELD_BYTES} bytes in all){advice}",
            "warning",
        )
        return Blocked(None, too_long=True)

    def _event(self, frame: Frame) -> Event:
        event = Event(frame, self._event_texts)
        event.clean()
        return event

    def _last_event(self, rest: Frame | None) -> Event | None:
        """Parse the unterminated last frame.

        A frame whose data is not JSON is dropped: it is an incomplete event, useless to clients, and its text is unknown.
        """
        if rest is None:
            return None
        event = self._event(rest)
        return None if event.plain else event


class BufferGuard(StreamGuard):
    """Holds all events until the end of the stream, and inspects them there."""

    max_event_bytes = MAX_HELD_BYTES

    def __init__(self, chain: Chain, route: Route, mode: GuardrailMode) -> None:
        super().__init__(chain, route, mode)
        self._size = 0
        self._text_size = TextSize()
        self._events: list[Event] = []

    @property
    def waiting(self) -> bool:
        return bool(self._events)

    @property
    def held_bytes(self) -> int:
        return self._size

    def feed(self, frames: list[Frame], pending: int) -> bytes | Awaitable[bytes]:
        size = sum([len(frame.raw) for frame in frames])
        self._size += size
        if self._size + pending > MAX_HELD_BYTES:
            raise self._too_long("buffer")
        if size > INLINE_BYTES:
            return run_in_thread(lambda: self._hold(frames))
        return self._hold(frames)

    def _hold(self, frames: list[Frame]) -> bytes:
        for frame in frames:
            event = self._event(frame)
            self._text_size.add(event)
            self._events.append(event)
        if self._text_size.largest > self._mode.max_buffer_bytes:
            raise self._too_long("buffer")
        return b""

    async def finish(self, rest: Frame | None) -> bytes:
        return await run_offloaded(
            self._size, lambda budgets: self._finish(rest, budgets), self._mode.max_inspection_ms / 1000
        )

    def _finish(self, rest: Frame | None, budgets: SearchBudgets) -> bytes:
        last = self._last_event(rest)
        events = self._events if last is None else [*self._events, last]
        self._match_counts = MatchCounts("output")
        for event in events:
            if self.response_id is None:
                self._identify(event.payload)
        texts = joined_texts(events, self._event_texts.joined_group)
        # A match over two parts cannot be masked: the events that end the parts repeat its halves.
        self._chain.inspect(texts, self._match_counts, budgets, masks_joined=False)
        self._events = []
        return b"".join([event.raw for event in events])


class MonitorGuard(StreamGuard):
    """Counts the matches of a chain that enforces nothing. Events pass unheld and unchanged; they are searched at the end."""

    holds = False
    max_event_bytes = MAX_MONITORED_BYTES

    def __init__(self, chain: Chain, route: Route, mode: GuardrailMode) -> None:
        super().__init__(chain, route, mode)
        self._data = bytearray()
        self._complete = True
        """False if the stream is longer than what is searched of it."""

    def feed(self, frames: list[Frame], pending: int) -> bytes | Awaitable[bytes]:
        del pending  # an event above `max_event_bytes` arrives as a Part
        for frame in frames:
            if isinstance(frame, Part) or len(self._data) + len(frame.raw) > MAX_MONITORED_BYTES:
                self._complete = False
            if self._complete:
                self._data += frame.raw
        return b""

    async def finish(self, rest: Frame | None) -> bytes:
        if rest is not None:
            self.feed([rest], 0)
        await run_offloaded(len(self._data), self._search, self._mode.max_inspection_ms / 1000)
        return b""

    def _search(self, budgets: SearchBudgets) -> None:
        self._match_counts = MatchCounts("output")
        frames = Frames(MAX_MONITORED_BYTES)
        found = frames.feed(bytes(self._data))
        last = frames.rest()
        if last is not None:
            found.append(last)
        events = [Event(frame, self._event_texts) for frame in found]
        lines = b"\n".join(dict.fromkeys([frame.others for frame in found if frame.others])).decode("utf-8", "replace")
        texts = joined_texts(events, self._event_texts.joined_group)
        if lines:
            texts.append(TextRef(None, None, lines, "lines"))
        self._chain.inspect(texts, self._match_counts, budgets)
        if not self._complete:
            for guardrail in self._chain.guardrails:
                guardrail.record_timeout(self._match_counts)
