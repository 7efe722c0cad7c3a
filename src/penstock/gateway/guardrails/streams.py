"""Streams under a chain: held until all is inspected, released as they become clean, or only watched.

`BufferGuard` is here, with what the three have in common; the one that releases early is in `window`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from penstock.gateway.guardrails.block_errors import late_block_event
from penstock.gateway.guardrails.chain import Blocked, Chain
from penstock.gateway.guardrails.channels import Channels
from penstock.gateway.guardrails.events import NOTHING, Key, Reader, Reading
from penstock.gateway.guardrails.inspection import StreamBlocked, Tally
from penstock.gateway.guardrails.search_budget import SearchBudgets
from penstock.gateway.guardrails.splice import repeated, splice, without
from penstock.gateway.guardrails.texts import Line, Slot, is_word
from penstock.gateway.ledger.entry import GuardrailHit
from penstock.gateway.routes import Route
from penstock.gateway.sse_frames import Frame, Part

__all__ = ["MAX_EVENT_BYTES", "BufferGuard", "Event", "StreamGuard", "WatchGuard"]

MAX_EVENT_BYTES = 32 << 20
"""One event must be complete to be understood. The last one of a response repeats all of its text, so the bound is far
above what is held of a stream."""

_DONE = b"[DONE]"
_BROKEN = object()
_KNOWN = 64
"""Comments and the like that are remembered to be clean: what there is of them comes again and again."""
_FIELD = re.compile(r"(?:event|id|retry)?: ?")
_NAMES = frozenset(("message", "error", "ping", "done"))
"""Of events, where the data does not say the same: words of the protocol, like the types in the data."""


_Lines = tuple[bytes, str | None]
"""What stands beside the data, and the event's type, which is not looked at where the lines repeat it."""


class NonDataLines:
    """The lines of a frame that are not its data, as one text: an upstream may write anything there."""

    __slots__ = ("_fields", "_lines", "line")

    def __init__(self, frame: Frame, payload: Any) -> None:
        kind = _kind(payload)
        self._fields: list[str] = []
        self._lines: list[Slot] = []
        for line in frame.others.decode("utf-8", "replace").splitlines(keepends=True):
            found = _FIELD.match(line)
            field = found[0] if found is not None else ""
            text = line[len(field) :]
            name = text.rstrip("\n")
            if field.startswith("event") and (name == kind or name in _NAMES):
                field, text = line, ""
            self._fields.append(field)
            self._lines.append(Slot(None, None, text, "lines"))
        self.line = Line(self._lines, parts=False)

    def __bool__(self) -> bool:
        """There is something to be looked at."""
        return any(slot.text for slot in self._lines)

    @property
    def masked(self) -> str | None:
        """None: nothing is."""
        if all(slot.new is None for slot in self._lines):
            return None
        texts = [slot.text if slot.new is None else slot.new for slot in self._lines]
        return "".join([field + text for field, text in zip(self._fields, texts, strict=True)])


def _kind(payload: Any) -> str | None:
    """The event's type, where it is a word of the protocol."""
    kind = payload.get("type") if type(payload) is dict else None
    return kind if type(kind) is str and is_word(kind) else None


def _names_its_type(frame: Frame, payload: Any) -> bool:
    """What stands beside the data is the event's type, and nothing else: so it is with most events of a response."""
    kind = _kind(payload)
    return kind is not None and frame.others == b"event: " + kind.encode()


class Event:
    """A frame and what is in it. Data that is no JSON is kept as its text."""

    __slots__ = ("_root", "_source", "beside", "frame", "plain", "reading")

    def __init__(self, frame: Frame, reader: Reader) -> None:
        self.frame = frame
        self.plain = False
        self.beside: NonDataLines | None = None
        """The lines that are not data, where they have to be looked at."""
        self.reading: Reading = NOTHING
        self._root: list[Any] = [None]
        self._source = data = frame.data or b""
        if not data:
            return
        try:
            self._root[0] = orjson.loads(data)
        except orjson.JSONDecodeError:
            if data.strip() == _DONE:
                self.reading = ([], [], [()], [])
                return
            self._source = data.decode("utf-8", "replace").encode()
            self._root[0] = _lenient(self._source)
            if self._root[0] is _BROKEN:
                self.plain = True
                self._root[0] = text = self._source.decode()
                self.reading = ([(("plain",), Slot(self._root, 0, text, "delta"))], [], [], [])
                return
        self.reading = reader.read(self._root[0], frame.name)

    def drop_repeated(self) -> None:
        """Where a key stands twice, nobody has read but the last, and another parser may take the first."""
        if not self.plain and (spans := repeated(self._source, self._root[0])):
            self._source = without(self._source, spans)
            self.frame = Frame(self.frame.with_data(self._source))

    @property
    def payload(self) -> Any:
        return None if self.plain else self._root[0]

    @property
    def raw(self) -> bytes:
        """With its masks."""
        frame = self.frame
        if self.beside is not None and (masked := self.beside.masked) is not None:
            frame = Frame(frame.with_others(masked.encode("utf-8", "replace")))
        slots = [slot for _, slot in self.reading[0] if slot.new is not None]
        for line in self.reading[1]:
            slots += [slot for slot in ((line,) if isinstance(line, Slot) else line.slots) if slot.new is not None]
        if not slots:
            return frame.raw
        if self.plain:
            return frame.with_data((slots[0].new or "").encode("utf-8", "replace"))
        return frame.with_data(splice(self._source, self._source, self._root, slots))


def _lenient(data: bytes) -> Any:
    """What orjson refuses and others accept: lone surrogates, NaN."""
    try:
        return json.loads(data.decode("utf-8-sig"))  # it would guess another encoding
    except (ValueError, RecursionError):
        return _BROKEN


class StreamGuard:
    """Frames of server-sent events in, bytes out: unchanged unless something is masked."""

    holds = True
    """Nothing passes but what it releases."""
    at_end = False
    """All of its inspection is in `finish`, which can be begun again until it has returned."""
    longest = MAX_EVENT_BYTES
    """An event beyond it need not be whole when it is given to the guard."""

    def __init__(self, chain: Chain, route: Route, patience: SearchBudgets) -> None:
        self._chain = chain
        self._route = route
        self._patience = patience
        self._tally = Tally("output")
        self._reader = Reader()
        self._known: set[_Lines] = set()
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

    @property
    def held_bytes(self) -> int:
        """As much as waits."""
        return 0

    def feed(self, frames: list[Frame], pending: int) -> bytes:
        """What may be released now; raises `StreamBlocked`. `pending` bytes have arrived of the frame after these."""
        raise NotImplementedError

    def finish(self, rest: Frame | None, patience: SearchBudgets | None = None) -> bytes:
        """The upstream has ended, with a frame that lacks its end: what is left; raises `StreamBlocked`.

        `patience` is what a guard `at_end` has; the others have had theirs from the beginning.
        """
        raise NotImplementedError

    def late_block(self, by: StreamBlocked) -> bytes:
        """The event that ends this stream for the caller when a part of it has been released."""
        return late_block_event(
            self._route,
            by.guardrail,
            self.response_id,
            self.next_sequence,
            model=self.model,
            timed_out=by.timed_out,
        )

    def _identify(self, payload: Any) -> None:
        if type(payload) is dict:
            head = payload.get("response", payload)
            if type(head) is dict and type(head.get("id")) is str:
                self.response_id = head["id"]
                self.model = head["model"] if type(head.get("model")) is str else ""

    def _blocked(self, blocked: Blocked) -> StreamBlocked:
        blocked.count(self._tally)
        return StreamBlocked(blocked.guard.name, timed_out=blocked.timed_out)

    def _event(self, frame: Frame) -> Event:
        """With the lines beside its data, unless they are known to be clean."""
        event = Event(frame, self._reader)
        if self.holds:
            event.drop_repeated()
        if (
            frame.others
            and not _names_its_type(frame, event.payload)
            and (frame.others, _kind(event.payload)) not in self._known
        ):
            event.beside = NonDataLines(frame, event.payload) or None
        return event

    def _examine_beside(self, event: Event) -> None:
        """What is no data does not go on in another event."""
        if (
            event.beside is not None
            and not self._chain.examine([event.beside.line], self._tally, self._patience)
            and len(self._known) < _KNOWN
        ):
            self._known.add((event.frame.others, _kind(event.payload)))

    def _last_event(self, rest: Frame | None) -> Event | None:
        """The frame that the upstream did not end, or bytes that are none.

        One whose data cannot be understood is dropped: it is half an event, which no client can use, and nobody can say
        what its text would have been.
        """
        if rest is None:
            return None
        event = self._event(rest)
        return None if event.plain else event


class BufferGuard(StreamGuard):
    """Nothing leaves before all is inspected."""

    at_end = True

    def __init__(self, chain: Chain, route: Route, limit: int, patience: SearchBudgets) -> None:
        super().__init__(chain, route, patience)
        self.longest = self._limit = limit
        self._size = 0
        self._events: list[Event] = []
        self._beside: dict[_Lines, NonDataLines] = {}

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
        """Lines that come again and again are looked at once."""
        event = super()._event(frame)
        if event.beside is not None:
            event.beside = self._beside.setdefault((frame.others, _kind(event.payload)), event.beside)
        return event

    def finish(self, rest: Frame | None, patience: SearchBudgets | None = None) -> bytes:
        last = self._last_event(rest)
        events = self._events if last is None else [*self._events, last]
        self._tally = Tally("output")
        try:
            self._examine(events, patience or self._patience)
        except Blocked as blocked:
            raise self._blocked(blocked) from None
        self._events = []
        return b"".join([event.raw for event in events])

    def _examine(self, events: list[Event], patience: SearchBudgets) -> None:
        texts: dict[Key, list[Slot]] = {}
        lines: list[Slot | Line] = []
        for event in events:
            if self.response_id is None:
                self._identify(event.payload)
            pieces, whole, _, _ = event.reading
            for key, slot in pieces:
                try:
                    texts.setdefault(key, []).append(slot)
                except TypeError:
                    texts.setdefault((repr(key),), []).append(slot)
            lines += whole
        lines += [beside.line for beside in self._beside.values()]
        lines += [Line(slots, parts=False) for slots in texts.values()]
        self._chain.examine(lines, self._tally, patience)


class WatchGuard(StreamGuard):
    """Of a chain that enforces nothing: everything passes at once, and what is found is counted."""

    holds = False

    def __init__(self, chain: Chain, route: Route, limit: int, patience: SearchBudgets) -> None:
        super().__init__(chain, route, patience)
        self._channels = Channels(chain, self._tally, limit, patience)
        self._watching = True

    def feed(self, frames: list[Frame], pending: int) -> bytes:
        del pending  # beyond the longest event there would be a part among the frames
        for frame in frames:
            if isinstance(frame, Part) and self._watching:
                self._give_up()
            if self._watching:
                self._watch(self._event(frame))
        return b""

    def finish(self, rest: Frame | None, patience: SearchBudgets | None = None) -> bytes:
        del patience
        if self._watching:
            event = self._last_event(rest)
            if event is not None:
                self._watch(event)
            self._channels.close(())
            self._watching = False
        return b""

    def _watch(self, event: Event) -> None:
        if self.response_id is None:
            self._identify(event.payload)
        self._last = event.payload
        pieces, whole, ended, _ = event.reading
        try:
            self._examine_beside(event)
            for key, slot in pieces:
                self._channels.at(key).add(slot.text)
            if whole:
                self._chain.examine(whole, self._tally, self._patience)
            for beginning in ended:
                self._channels.close(beginning)
        except StreamBlocked:
            self._give_up()

    def _give_up(self) -> None:
        """An event is too long to be read, or there are too many texts: nobody knows what is in the rest."""
        self._watching = False
        for guard in self._chain.guards:
            guard.gives_up(self._tally)
