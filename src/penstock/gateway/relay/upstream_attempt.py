"""One attempt at an upstream: send, read, and relay what is a stream as it comes.

                    ┌─▶ COLLECT   a whole reply, judged when it is complete
    start ─▶ HEAD ──┤
                    └─▶ STREAM ─┬─▶ done
                                └─▶ DRAIN     blocked: nothing more is relayed, but what was billed is still read

All of it runs in the callbacks of the loop: a piece of a stream that has arrived is on its way to the caller before the
loop turns. The coroutine of the request waits for the end alone.
"""

from __future__ import annotations

import asyncio
from time import monotonic, perf_counter
from typing import Literal, Protocol

from penstock.gateway.guardrails import Guards, StreamBlocked, StreamGuard
from penstock.gateway.relay.decompression import CODINGS, Unpacker
from penstock.gateway.relay.model_names import ModelNames
from penstock.gateway.relay.response_stream import ResponseStream
from penstock.gateway.relay.upstream import GONE, TIMEOUT, UNDECODABLE, Target, coding_of
from penstock.gateway.relay.usage import StreamReader
from penstock.gateway.routes import Route
from penstock.gateway.sse_frames import FRAME_BYTES, Frame, Frames, joined
from penstock.wire.content_encoding import BadCoding
from penstock.wire.exchange import Exchange, WireError

__all__ = ["ENDED", "Owner", "Timeouts", "UpstreamAttempt"]

WATCH_S = 0.1
"""How long a request runs before its caller's connection is watched: most are over by then, and watching costs 10 µs."""
_TIMED_OUT = WireError(TIMEOUT, "The upstream did not answer in time.", "server")
_UNDECODABLE = WireError(UNDECODABLE, "The upstream's stream cannot be unpacked.", "server")
ENDED = WireError("ShuttingDown", "The gateway ends.", "penstock")
AFTER_TERMINAL_S = 2.0
"""How long an upstream may leave its connection open behind the event that ends the stream."""
DRAIN_S = 5.0
"""How long a blocked reply is still read for the token counts at its end."""
MAX_HEAD = 1 << 20
MAX_REPLY = 256 << 20

Mode = Literal["head", "collect", "stream", "drain"]


class Timeouts:
    """Seconds; None is no limit."""

    __slots__ = ("connect_s", "silence_s", "total_s")

    def __init__(self, connect_s: float | None, total_s: float | None, silence_s: float | None) -> None:
        # Connecting is part of the whole: addresses that are tried one after the other share what there is.
        self.connect_s = min((limit for limit in (connect_s, total_s, silence_s) if limit is not None), default=None)
        self.total_s = total_s
        self.silence_s = silence_s


class Owner(Protocol):
    """The request that an attempt is made for."""

    route: Route
    gone: bool
    """The caller has left, or reads no more."""

    @property
    def outlet(self) -> ResponseStream | None:
        """None until the head of a stream has been sent."""

    def watch(self) -> None:
        """Notice from now on when the caller goes away."""

    def commit(self, forward: UpstreamAttempt) -> ResponseStream:
        """Send the head of a stream."""

    def block(self, forward: UpstreamAttempt, by: StreamBlocked) -> None:
        """Tell the caller, in whatever form is still possible."""


class UpstreamAttempt:
    __slots__ = (
        "_began",
        "_done",
        "_fault",
        "_frames",
        "_guards",
        "_last",
        "_limits",
        "_loop",
        "_names",
        "_owner",
        "_paused",
        "_rest",
        "_terminal_at",
        "_unpacker",
        "blocked_by",
        "due",
        "exchange",
        "guard",
        "guard_s",
        "headers",
        "mode",
        "reader",
        "target",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: Owner, target: Target, message: bytes, limits: Timeouts
    ) -> None:
        self._loop = loop
        self._owner = owner
        self.target = target
        self._limits = limits
        self._done: asyncio.Future[None] = loop.create_future()
        self._began = self._last = monotonic()
        self._terminal_at = 0.0
        self._fault: Exception | None = None
        self.due = self._began + WATCH_S
        """When `tick` has something to do."""
        self._paused = False
        self._guards: Guards | None = None
        self._names: ModelNames | None = None
        self._frames: Frames
        self._unpacker: Unpacker | None = None
        self._rest: Frame | None = None
        """What the stream ended with in the middle of an event."""
        self.mode: Mode = "head"
        self.reader: StreamReader | None = None
        """Reads what the upstream sent; of a stream only."""
        self.guard: StreamGuard | None = None
        self.guard_s = 0.0
        """Spent in it."""
        self.headers: dict[bytes, bytes] = {}
        """Of the reply, by lower-case name; of several the first."""
        self.blocked_by: StreamBlocked | None = None
        self.exchange = exchange = Exchange(message, self._on_end)
        exchange.on_data = self._on_data

    def prepare(self, guards: Guards | None, alias: str | None) -> None:
        """What a stream has to pass. `alias` is the model's name to be restored in it."""
        if guards is not None and guards.has_output:
            self._guards = guards
            self.guard = guards.stream(self._owner.route)
        if alias is not None:
            self._names = ModelNames(alias)

    async def run(self) -> None:
        """Returns when the exchange has ended, in whatever way."""
        exchange = self.exchange
        self.target.host.start(exchange, self._limits.connect_s)
        try:
            await self._done
        finally:
            self.abort(GONE)
            # A cycle for each request would cost 25 µs of collecting them.
            exchange.on_data = None
            exchange.on_end = _nothing
            exchange.tag = None
        if self._fault is not None:
            raise self._fault

    def abort(self, trouble: WireError) -> None:
        if not self._done.done():
            self.target.host.abort(self.exchange, trouble)

    @property
    def complete(self) -> bool:
        """The caller has the whole stream: its end is on its way."""
        if self.reader is None or not self.reader.terminal:
            return False
        return self.guard is None or not self.guard.waiting

    @property
    def mid_event(self) -> bool:
        """The caller may have been sent the beginning of an event whose end does not come."""
        return self._rest is not None or len(self._frames) > 0

    @property
    def elapsed_ms(self) -> float:
        return (monotonic() - self._began) * 1000

    # -- what arrives -------------------------------------------------------------------------------------------------

    def _on_end(self, exchange: Exchange) -> None:
        host = self.target.host
        if self._paused:
            host.resume(exchange)  # a connection that goes back to the pool must be listened to
        host.ended(exchange)
        if self._unpacker is not None and not self._unpacker.whole and exchange.error is None:
            exchange.error = _UNDECODABLE
        if not self._done.done():
            self._done.set_result(None)

    def _on_data(self, exchange: Exchange) -> None:
        try:
            self._take(exchange)
        except Exception as error:
            # Nobody above us could tell the request; `run` does.
            self._fault = error
            self.abort(WireError("Fault", "Penstock failed.", "penstock"))

    def _take(self, exchange: Exchange) -> None:
        if not exchange.status:
            if exchange.bytes_received > MAX_HEAD:
                self.abort(WireError("ProtocolError", "The upstream's head is too large.", "server"))
            return
        self._last = monotonic()
        exchange.times.clear()  # they would grow with the stream
        exchange.counts.clear()
        if self.mode == "head":
            self._judge(exchange)
        if self.mode == "collect":
            if exchange.bytes_received > MAX_REPLY:
                self.abort(WireError("ProtocolError", "The upstream's reply is too large.", "server"))
            return
        pieces = exchange.pieces
        if not pieces:
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        assert self.reader is not None
        if self._unpacker is None:
            self._pass(data, self.reader)
            return
        try:
            for plain in self._unpacker.feed(data):
                self._pass(plain, self.reader)
                if self._done.done():
                    return
        except BadCoding:
            self.abort(_UNDECODABLE)

    def _pass(self, data: bytes, reader: StreamReader) -> None:
        if self.mode == "stream":
            self._relay(data, reader)
            return
        _read(reader, self._frames.feed(data))
        if reader.terminal:
            self.abort(GONE)

    def _judge(self, exchange: Exchange) -> None:
        exchange.data = b""  # it will not be sent again, and streams live long
        headers = self.headers = dict(reversed(exchange.headers))
        coding = coding_of(headers)
        if (
            headers.get(b"content-type", b"").lower().startswith(b"text/event-stream")
            and 200 <= exchange.status < 300
            and (coding == b"identity" or coding in CODINGS)
        ):
            self.mode = "stream"
            if coding in CODINGS:
                self._unpacker = Unpacker()
            self.reader = StreamReader(self._owner.route)
            self._frames = Frames(FRAME_BYTES if self.guard is None else self.guard.max_event_bytes)
        else:
            self.mode = "collect"

    def _relay(self, data: bytes, reader: StreamReader) -> None:
        guard = self.guard
        if guard is not None and guard.holds:
            frames = self._renamed(self._frames.feed(data))
            _read(reader, frames)
            try:
                clean = self._feed(guard, frames)
            except StreamBlocked as blocked:
                self._block(blocked, reader)
                return
            self._put(clean)
        else:
            if self._names is None:
                self._put(data)  # before anything is understood, and whether or not it ends with an event
                frames = self._frames.feed(data)
            else:
                frames = self._renamed(self._frames.feed(data))
                self._put(joined(frames))
            _read(reader, frames)
            if guard is not None:
                self._feed(guard, frames)
        if not self._terminal_at and self.complete:
            self._terminal_at = monotonic()
            self.due = min(self.due, self._due())

    def _feed(self, guard: StreamGuard, frames: list[Frame]) -> bytes:
        began = perf_counter()
        try:
            return guard.feed(frames, len(self._frames))
        finally:
            self.guard_s += perf_counter() - began

    async def finish(self) -> None:
        """The upstream has ended its stream: release what is still held."""
        reader, guard = self.reader, self.guard
        assert reader is not None
        rest = self._rest = self._frames.rest()
        if rest is not None:
            self._renamed([rest])
            reader.read(rest)
        if guard is None or not guard.holds:
            if rest is not None and self._names is not None:
                self._put(rest.raw)
            if guard is not None:
                guard.finish(rest)
            return
        try:
            if guard.inspects_at_end and self._guards is not None:
                left = await self._guards.run_inspection(guard.held_bytes, lambda budgets: guard.finish(rest, budgets))
            else:
                left = guard.finish(rest)
        except StreamBlocked as blocked:
            self._block(blocked, reader)
            return
        if not self._owner.gone:  # it may have left meanwhile
            self._put(left)

    def _renamed(self, frames: list[Frame]) -> list[Frame]:
        if self._names is not None:
            for frame in frames:
                self._names.restore(frame)
        return frames

    def _put(self, data: bytes) -> None:
        if not data:
            return
        outlet = self._owner.outlet
        if outlet is None:
            outlet = self._owner.commit(self)
        outlet.send(data)
        if outlet.closed:
            self._owner.gone = True
            self.abort(GONE)
        elif outlet.full and not self._done.done():
            self._paused = True
            self.target.host.pause(self.exchange)
            outlet.wait_for_room(self._room)

    def _room(self) -> None:
        self._last = monotonic()
        if not self._done.done():
            self._paused = False
            self.target.host.resume(self.exchange)

    def _block(self, blocked: StreamBlocked, reader: StreamReader) -> None:
        self.blocked_by = blocked
        self._owner.block(self, blocked)
        if self._done.done():
            return
        if reader.terminal:
            self.abort(GONE)
            return
        self.mode = "drain"
        self._frames.limit = FRAME_BYTES
        self._began = monotonic()
        self.due = min(self.due, self._due())

    # -- time -------------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """To be called when it is `due`, or a little later."""
        if self._done.done():
            return
        self._owner.watch()
        if now >= self.target.host.connect_due(self.exchange):
            self.target.host.move_on(self.exchange, _TIMED_OUT)
            if self._done.done():
                return
        # Deadlines move with what arrives; so this one may have been put off.
        self.due = self._due()
        if now < self.due:
            return
        outlet = self._owner.outlet
        if self._terminal_at or self.mode == "drain":
            self.abort(GONE)
        elif outlet is not None and outlet.full:
            self._owner.gone = True  # the silence is the caller's, who does not read, and not the upstream's
            self.abort(GONE)
        else:
            self.abort(_TIMED_OUT)

    def _due(self) -> float:
        limits = self._limits
        if self.mode == "drain":
            return self._began + DRAIN_S
        if self._terminal_at:
            return self._terminal_at + AFTER_TERMINAL_S
        due = self.target.host.connect_due(self.exchange)
        if limits.total_s is not None:
            due = min(due, self._began + limits.total_s)
        if limits.silence_s is not None:
            due = min(due, self._last + limits.silence_s)
        return due


def _read(reader: StreamReader, frames: list[Frame]) -> None:
    for frame in frames:
        reader.read(frame)


def _nothing(_exchange: Exchange) -> None:
    """Nobody waits for it any more."""
