"""Stream guards: the base class, `BufferGuard`, which holds a stream until its end, and `MonitorGuard`, which only counts.

`WindowGuard`, which releases events as they become clean, is in `window`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from penstock.gateway.guardrails.block_errors import block_event
from penstock.gateway.guardrails.chain import Blocked, Chain
from penstock.gateway.guardrails.events import NO_TEXTS, Address, EventReader, EventTexts
from penstock.gateway.guardrails.inspection import MatchCounts, StreamBlocked
from penstock.gateway.guardrails.json_edits import duplicate_member_spans, remove_spans, replace_texts
from penstock.gateway.guardrails.search_budget import SearchBudgets
from penstock.gateway.guardrails.streamed_texts import StreamedTexts
from penstock.gateway.guardrails.texts import InspectedText, JoinedText, TextRef, is_protocol_value
from penstock.gateway.ledger.entry import GuardrailHit
from penstock.gateway.routes import Route
from penstock.gateway.sse_frames import Frame, Part

__all__ = ["MAX_EVENT_BYTES", "BufferGuard", "Event", "MonitorGuard", "StreamGuard"]

MAX_EVENT_BYTES = 32 << 20
"""An event can only be parsed when it is complete. The last event of a response repeats all of its text, so this limit is
far above the number of bytes held of a stream."""

_DONE = b"[DONE]"
_INVALID = object()
_MAX_CLEAN_LINES = 64
"""Maximum number of clean non-data lines to remember. Streams repeat the same few."""
_FIELD = re.compile(r"(?:event|id|retry)?: ?")
_NAMES = frozenset(("message", "error", "ping", "done"))
"""Event names that are protocol values although the data does not repeat them."""


_LinesKey = tuple[bytes, str | None]
"""The lines other than data, and the event's type, which is not inspected in an `event:` line that repeats it."""


class NonDataLines:
    """The lines of a frame other than data, as one text. An upstream may put text into them."""

    __slots__ = ("_fields", "_lines", "joined")

    def __init__(self, frame: Frame, payload: Any) -> None:
        kind = _protocol_type(payload)
        self._fields: list[str] = []
        self._lines: list[TextRef] = []
        for line in frame.others.decode("utf-8", "replace").splitlines(keepends=True):
            match = _FIELD.match(line)
            field = match[0] if match is not None else ""
            text = line[len(field) :]
            name = text.rstrip("\n")
            if field.startswith("event") and (name == kind or name in _NAMES):
                field, text = line, ""
            self._fields.append(field)
            self._lines.append(TextRef(None, None, text, "lines"))
        self.joined = JoinedText(self._lines, search_parts=False)

    def __bool__(self) -> bool:
        """Return True if there is text to inspect."""
        return any(ref.text for ref in self._lines)

    @property
    def masked(self) -> str | None:
        """The lines with masks applied, or None if nothing is masked."""
        if all(ref.replacement is None for ref in self._lines):
            return None
        texts = [ref.text if ref.replacement is None else ref.replacement for ref in self._lines]
        return "".join([field + text for field, text in zip(self._fields, texts, strict=True)])


def _protocol_type(payload: Any) -> str | None:
    """Return the event's type if it is a protocol value."""
    kind = payload.get("type") if type(payload) is dict else None
    return kind if type(kind) is str and is_protocol_value(kind) else None


def _only_names_type(frame: Frame, payload: Any) -> bool:
    """Return True if the only other line names the event's type, as in most events of a response."""
    kind = _protocol_type(payload)
    return kind is not None and frame.others == b"event: " + kind.encode()


class Event:
    """A frame and its texts. Data that is not JSON is one plain text."""

    __slots__ = ("_root", "_source", "frame", "non_data", "plain", "texts")

    def __init__(self, frame: Frame, reader: EventReader) -> None:
        self.frame = frame
        self.plain = False
        self.non_data: NonDataLines | None = None
        """The lines other than data, if they must be inspected."""
        self.texts: EventTexts = NO_TEXTS
        self._root: list[Any] = [None]
        self._source = data = frame.data or b""
        if not data:
            return
        try:
            self._root[0] = orjson.loads(data)
        except orjson.JSONDecodeError:
            if data.strip() == _DONE:
                self.texts = ([], [], [()], [])
                return
            self._source = data.decode("utf-8", "replace").encode()
            self._root[0] = _loads_lenient(self._source)
            if self._root[0] is _INVALID:
                self.plain = True
                self._root[0] = text = self._source.decode()
                self.texts = ([(("plain",), TextRef(self._root, 0, text, "delta"))], [], [], [])
                return
        self.texts = reader.read(self._root[0], frame.name)

    def drop_duplicate_members(self) -> None:
        """Drop earlier duplicates: only the last value is inspected, and another parser may use the first."""
        if not self.plain and (spans := duplicate_member_spans(self._source, self._root[0])):
            self._source = remove_spans(self._source, spans)
            self.frame = Frame(self.frame.with_data(self._source))

    @property
    def payload(self) -> Any:
        return None if self.plain else self._root[0]

    @property
    def raw(self) -> bytes:
        """The bytes of the event with masks applied."""
        frame = self.frame
        if self.non_data is not None and (masked := self.non_data.masked) is not None:
            frame = Frame(frame.with_others(masked.encode("utf-8", "replace")))
        refs = [ref for _, ref in self.texts[0] if ref.replacement is not None]
        for inspected in self.texts[1]:
            refs += [
                ref
                for ref in ((inspected,) if isinstance(inspected, TextRef) else inspected.refs)
                if ref.replacement is not None
            ]
        if not refs:
            return frame.raw
        if self.plain:
            return frame.with_data((refs[0].replacement or "").encode("utf-8", "replace"))
        return frame.with_data(replace_texts(self._source, self._source, self._root, refs))


def _loads_lenient(data: bytes) -> Any:
    """Parse JSON that orjson rejects and other parsers accept: lone surrogates, NaN."""
    try:
        return json.loads(data.decode("utf-8-sig"))  # json.loads would guess the encoding of bytes
    except (ValueError, RecursionError):
        return _INVALID


class StreamGuard:
    """Inspects one stream: takes SSE frames and returns the bytes to release, unchanged unless masked."""

    holds = True
    """True if only the bytes that the guard returns may be sent."""
    inspects_at_end = False
    """True if all inspection happens in `finish`, which may be called again until it returns."""
    max_event_bytes = MAX_EVENT_BYTES
    """A longer event may be passed to the guard in parts."""

    def __init__(self, chain: Chain, route: Route, budgets: SearchBudgets) -> None:
        self._chain = chain
        self._route = route
        self._budgets = budgets
        self._match_counts = MatchCounts("output")
        self._reader = EventReader()
        self._clean_lines: set[_LinesKey] = set()
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
        number = self._last_released.get("sequence_number") if type(self._last_released) is dict else None
        return number + 1 if type(number) is int else 0

    @property
    def waiting(self) -> bool:
        """True if an event is held."""
        return False

    @property
    def held_bytes(self) -> int:
        """The size of the held events."""
        return 0

    def feed(self, frames: list[Frame], pending: int) -> bytes:
        """Return the bytes to release now. Raises `StreamBlocked`. `pending` is the size of the incomplete next frame."""
        raise NotImplementedError

    def finish(self, rest: Frame | None, budgets: SearchBudgets | None = None) -> bytes:
        """Return the remaining bytes at the end of the stream. Raises `StreamBlocked`.

        `rest` is an unterminated last frame. `budgets` is for guards that inspect at the end; the others ignore it.
        """
        raise NotImplementedError

    def block_event(self, blocked: StreamBlocked) -> bytes:
        """Return the event that ends this stream after part of it has been released."""
        return block_event(
            self._route,
            blocked.guardrail,
            self.response_id,
            self.next_sequence,
            model=self.model,
            timed_out=blocked.timed_out,
        )

    def _identify(self, payload: Any) -> None:
        if type(payload) is dict:
            header = payload.get("response", payload)
            if type(header) is dict and type(header.get("id")) is str:
                self.response_id = header["id"]
                self.model = header["model"] if type(header.get("model")) is str else ""

    def _blocked(self, blocked: Blocked) -> StreamBlocked:
        blocked.count(self._match_counts)
        return StreamBlocked(blocked.guard.name, timed_out=blocked.timed_out)

    def _event(self, frame: Frame) -> Event:
        """Parse a frame. `non_data` is set unless the other lines are known to be clean."""
        event = Event(frame, self._reader)
        if self.holds:
            event.drop_duplicate_members()
        if (
            frame.others
            and not _only_names_type(frame, event.payload)
            and (frame.others, _protocol_type(event.payload)) not in self._clean_lines
        ):
            event.non_data = NonDataLines(frame, event.payload) or None
        return event

    def _inspect_non_data(self, event: Event) -> None:
        """Inspect the lines other than data, which never continue in another event."""
        if (
            event.non_data is not None
            and not self._chain.inspect([event.non_data.joined], self._match_counts, self._budgets)
            and len(self._clean_lines) < _MAX_CLEAN_LINES
        ):
            self._clean_lines.add((event.frame.others, _protocol_type(event.payload)))

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

    inspects_at_end = True

    def __init__(self, chain: Chain, route: Route, limit: int, budgets: SearchBudgets) -> None:
        super().__init__(chain, route, budgets)
        self.max_event_bytes = self._limit = limit
        self._size = 0
        self._events: list[Event] = []
        self._non_data: dict[_LinesKey, NonDataLines] = {}

    @property
    def waiting(self) -> bool:
        return bool(self._events)

    @property
    def held_bytes(self) -> int:
        return self._size

    def feed(self, frames: list[Frame], pending: int) -> bytes:
        self._size += sum([len(frame.raw) for frame in frames])
        if self._size + pending > self._limit:
            raise StreamBlocked(None)
        self._events.extend(self._event(frame) for frame in frames)
        return b""

    def _event(self, frame: Frame) -> Event:
        """Share the non-data lines of events that repeat them, so that they are inspected once."""
        event = super()._event(frame)
        if event.non_data is not None:
            event.non_data = self._non_data.setdefault((frame.others, _protocol_type(event.payload)), event.non_data)
        return event

    def finish(self, rest: Frame | None, budgets: SearchBudgets | None = None) -> bytes:
        last = self._last_event(rest)
        events = self._events if last is None else [*self._events, last]
        self._match_counts = MatchCounts("output")
        try:
            self._inspect(events, budgets or self._budgets)
        except Blocked as blocked:
            raise self._blocked(blocked) from None
        self._events = []
        return b"".join([event.raw for event in events])

    def _inspect(self, events: list[Event], budgets: SearchBudgets) -> None:
        texts: dict[Address, list[TextRef]] = {}
        inspected: list[InspectedText] = []
        for event in events:
            if self.response_id is None:
                self._identify(event.payload)
            pieces, complete, _, _ = event.texts
            for address, ref in pieces:
                try:
                    texts.setdefault(address, []).append(ref)
                except TypeError:
                    texts.setdefault((repr(address),), []).append(ref)
            inspected += complete
        inspected += [non_data.joined for non_data in self._non_data.values()]
        inspected += [JoinedText(refs, search_parts=False) for refs in texts.values()]
        self._chain.inspect(inspected, self._match_counts, budgets)


class MonitorGuard(StreamGuard):
    """Counts the matches of a chain that enforces nothing. Events pass unheld and unchanged."""

    holds = False

    def __init__(self, chain: Chain, route: Route, limit: int, budgets: SearchBudgets) -> None:
        super().__init__(chain, route, budgets)
        self._streamed_texts = StreamedTexts(chain, self._match_counts, limit, budgets)
        self._active = True

    def feed(self, frames: list[Frame], pending: int) -> bytes:
        del pending  # an event above `max_event_bytes` arrives as a Part
        for frame in frames:
            if isinstance(frame, Part) and self._active:
                self._record_timeouts()
            if self._active:
                self._inspect_event(self._event(frame))
        return b""

    def finish(self, rest: Frame | None, budgets: SearchBudgets | None = None) -> bytes:
        del budgets
        if self._active:
            event = self._last_event(rest)
            if event is not None:
                self._inspect_event(event)
            self._streamed_texts.close(())
            self._active = False
        return b""

    def _inspect_event(self, event: Event) -> None:
        if self.response_id is None:
            self._identify(event.payload)
        self._last_released = event.payload
        pieces, complete, ended, _ = event.texts
        try:
            self._inspect_non_data(event)
            for address, ref in pieces:
                self._streamed_texts.get(address).add(ref.text)
            if complete:
                self._chain.inspect(complete, self._match_counts, self._budgets)
            for prefix in ended:
                self._streamed_texts.close(prefix)
        except StreamBlocked:
            self._record_timeouts()

    def _record_timeouts(self) -> None:
        """Stop inspecting and record a timeout for every guard: an event is too long, or there are too many texts."""
        self._active = False
        for guard in self._chain.guards:
            guard.record_timeout(self._match_counts)
