"""Streams under a chain: held until all is inspected, released as they become clean, or only watched.

`BufferGuard` is here, with what the three have in common; the one that releases early is in `window`.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from penstock.gateway.frames import Frame, Part
from penstock.gateway.guardrails.chain import Blocked, Chain
from penstock.gateway.guardrails.channels import Channels
from penstock.gateway.guardrails.events import NOTHING, Key, Reader, Reading
from penstock.gateway.guardrails.inspection import StreamBlocked, Tally
from penstock.gateway.guardrails.late import late_block_event
from penstock.gateway.guardrails.texts import Line, Slot
from penstock.gateway.ledger.entry import GuardrailHit
from penstock.gateway.routes import Route

__all__ = ["MAX_EVENT_BYTES", "BufferGuard", "Event", "StreamGuard", "WatchGuard"]

MAX_EVENT_BYTES = 32 << 20
"""One event must be complete to be understood. The last one of a response repeats all of its text, so the bound is far
above what is held of a stream."""

_DONE = b"[DONE]"
_BROKEN = object()


class Event:
    """A frame and what is in it. The data that is no JSON is kept as `{"data": text}`."""

    __slots__ = ("changed", "frame", "payload", "plain", "reading")

    def __init__(self, frame: Frame, reader: Reader) -> None:
        self.frame = frame
        self.changed = False
        self.plain = False
        self.payload: Any = None
        self.reading: Reading = NOTHING
        data = frame.data
        if not data:
            return
        try:
            self.payload = orjson.loads(data)
        except orjson.JSONDecodeError:
            if data.strip() == _DONE:
                self.reading = ([], [], [()])
                return
            self.payload = _lenient(data)
            if self.payload is _BROKEN:
                self.plain = True
                text = data.decode("utf-8", "replace")
                self.payload = {"data": text}
                self.reading = ([(("plain",), Slot(self.payload, "data", text, "delta"))], [], [])
                return
        self.reading = reader.read(self.payload, frame.name)

    @property
    def raw(self) -> bytes:
        if not self.changed:
            return self.frame.raw
        if self.plain:
            return self.frame.with_data(self.payload["data"].encode("utf-8", "replace"))
        if type(self.payload) is dict and type(self.payload.get("choices")) is list:
            for choice in self.payload["choices"]:
                if type(choice) is dict and choice.get("logprobs"):
                    choice["logprobs"] = None  # it spells out the text that was masked
        try:
            return self.frame.with_data(orjson.dumps(self.payload))
        except TypeError:  # lone surrogates, numbers beyond 64 bits
            return self.frame.with_data(json.dumps(self.payload).encode())


def _lenient(data: bytes) -> Any:
    """What orjson refuses and others accept: lone surrogates, NaN, bytes that are not UTF-8."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return _BROKEN


def _written(line: Slot | Line) -> bool:
    return line.written if isinstance(line, Slot) else any(slot.written for slot in line.slots)


class StreamGuard:
    """Frames of server-sent events in, bytes out: unchanged unless something is masked."""

    holds = True
    """Nothing passes but what it releases."""
    longest = MAX_EVENT_BYTES
    """An event beyond it need not be whole when it is given to the guard."""

    def __init__(self, chain: Chain, route: Route) -> None:
        self._chain = chain
        self._route = route
        self._tally = Tally("output")
        self._reader = Reader()
        self._last: Any = None
        self.response_id: str | None = None
        """Of the response or the chunk that the stream began with."""
        self.model = ""

    @property
    def hits(self) -> list[GuardrailHit]:
        return self._tally.hits()

    @property
    def next_sequence(self) -> int:
        """The sequence number that follows the last one released."""
        number = self._last.get("sequence_number") if type(self._last) is dict else None
        return number + 1 if type(number) is int else 0

    @property
    def waiting(self) -> bool:
        """Something of what it was given has not been released."""
        return False

    def feed(self, frames: list[Frame], pending: int) -> bytes:
        """What may be released now; raises `StreamBlocked`. `pending` bytes have arrived of the frame after these."""
        raise NotImplementedError

    def finish(self, rest: Frame | None) -> bytes:
        """The upstream has ended, with a frame that lacks its end: what is left; raises `StreamBlocked`."""
        raise NotImplementedError

    def late_block(self, guardrail: str | None) -> bytes:
        """The event that ends this stream for the caller when a part of it has been released."""
        return late_block_event(self._route, guardrail, self.response_id, self.next_sequence, model=self.model)

    def _identify(self, payload: Any) -> None:
        if type(payload) is dict:
            head = payload.get("response", payload)
            if type(head) is dict and type(head.get("id")) is str:
                self.response_id = head["id"]
                self.model = head["model"] if type(head.get("model")) is str else ""

    def _blocked(self, blocked: Blocked) -> StreamBlocked:
        blocked.count(self._tally)
        return StreamBlocked(blocked.guard.name)

    def _last_event(self, rest: Frame | None) -> tuple[Event | None, bytes]:
        """The frame that the upstream did not end, or bytes that are none.

        One that cannot be understood is dropped: it is half an event, which no client can use, and nobody can say what
        its text would have been.
        """
        if rest is None:
            return None, b""
        event = Event(rest, self._reader)
        if rest.data is None:
            return None, rest.raw
        return (None, b"") if event.plain else (event, b"")


class BufferGuard(StreamGuard):
    """Nothing leaves before all is inspected."""

    def __init__(self, chain: Chain, route: Route, limit: int) -> None:
        super().__init__(chain, route)
        self.longest = self._limit = limit
        self._size = 0
        self._events: list[Event] = []

    @property
    def waiting(self) -> bool:
        return bool(self._events)

    def feed(self, frames: list[Frame], pending: int) -> bytes:
        self._size += sum([len(frame.raw) for frame in frames])
        if self._size + pending > self._limit:
            raise StreamBlocked(None)
        self._events.extend(Event(frame, self._reader) for frame in frames)
        return b""

    def finish(self, rest: Frame | None) -> bytes:
        event, left = self._last_event(rest)
        if event is not None:
            self._events.append(event)
        texts: dict[Key, list[Slot]] = {}
        lines: list[Slot | Line] = []
        for event in self._events:
            if self.response_id is None:
                self._identify(event.payload)
            pieces, whole, _ = event.reading
            for key, slot in pieces:
                try:
                    texts.setdefault(key, []).append(slot)
                except TypeError:
                    texts.setdefault((repr(key),), []).append(slot)
            lines += whole
        lines += [Line(slots, parts=False) for slots in texts.values()]
        try:
            changed = self._chain.examine(lines, self._tally)
        except Blocked as blocked:
            raise self._blocked(blocked) from None
        if changed:
            for event in self._events:
                pieces, whole, _ = event.reading
                event.changed = any(slot.written for _, slot in pieces) or any(map(_written, whole))
        events, self._events = self._events, []
        return b"".join([event.raw for event in events]) + left


class WatchGuard(StreamGuard):
    """Of a chain that enforces nothing: everything passes at once, and what is found is counted."""

    holds = False

    def __init__(self, chain: Chain, route: Route, limit: int) -> None:
        super().__init__(chain, route)
        self._channels = Channels(chain, self._tally, limit)
        self._watching = True

    def feed(self, frames: list[Frame], pending: int) -> bytes:
        del pending  # beyond the longest event there would be a part among the frames
        for frame in frames:
            if isinstance(frame, Part):
                self._watching = False
            if self._watching:
                self._watch(Event(frame, self._reader))
        return b""

    def finish(self, rest: Frame | None) -> bytes:
        if self._watching:
            event, _ = self._last_event(rest)
            if event is not None:
                self._watch(event)
            self._channels.close(())
            self._watching = False
        return b""

    def _watch(self, event: Event) -> None:
        if self.response_id is None:
            self._identify(event.payload)
        self._last = event.payload
        pieces, whole, ended = event.reading
        try:
            for key, slot in pieces:
                self._channels.at(key).add(slot.text)
            if whole:
                self._chain.examine(whole, self._tally)
            for beginning in ended:
                self._channels.close(beginning)
        except StreamBlocked:
            self._watching = False
