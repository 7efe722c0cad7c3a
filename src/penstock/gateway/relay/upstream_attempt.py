"""One attempt at an upstream: send the request, read the reply, and relay a stream as it arrives.

                    ┌─▶ COLLECT   a whole reply, processed when it is complete
    start ─▶ HEAD ──┤
                    └─▶ STREAM ─┬─▶ done
                                └─▶ DRAIN     blocked: relay nothing more, but read the usage at the end

Everything runs in event loop callbacks, so that data of a stream goes to the caller in the same iteration of the loop in
which it arrived. The coroutine of the request only waits for the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from math import inf
from time import monotonic, perf_counter
from typing import Literal, Protocol

from penstock.gateway.dialects.base import Dialect, StreamReader
from penstock.gateway.guardrails import KEEP_ALIVE, ContentPolicy, StreamBlocked, StreamGuard
from penstock.gateway.outbound.response import ResponseStream
from penstock.gateway.relay.decompression import CODINGS, PIECE_BYTES, Decompressor
from penstock.gateway.relay.model_names import ModelNames
from penstock.gateway.relay.upstream import CALLER_GONE, TIMEOUT, UNDECODABLE, Target, coding_of
from penstock.gateway.sse_frames import FRAME_BYTES, Frame, Frames, joined
from penstock.wire.content_encoding import BadCoding
from penstock.wire.exchange import Exchange, WireError

__all__ = ["SHUTTING_DOWN", "Owner", "Timeouts", "UpstreamAttempt"]

_TIMED_OUT = WireError(TIMEOUT, "The upstream did not answer in time.", "server")
_UNDECODABLE = WireError(UNDECODABLE, "The upstream's stream cannot be decompressed.", "server")
SHUTTING_DOWN = WireError("ShuttingDown", "The gateway is shutting down.", "penstock")
AFTER_TERMINAL_S = 2.0
"""How long an upstream may keep its connection open after the event that ends the stream."""
DRAIN_S = 5.0
"""How long a blocked stream is still read for the usage at its end."""
MAX_HEAD = 1 << 20
MAX_REPLY = 256 << 20

Mode = Literal["head", "collect", "stream", "drain"]


class Timeouts:
    """Timeouts of an attempt in seconds; None is no limit."""

    __slots__ = ("connect_s", "silence_s", "total_s")

    def __init__(self, connect_s: float | None, total_s: float | None, silence_s: float | None) -> None:
        # The total and silence timeouts include connecting, so connecting cannot take longer.
        self.connect_s = min((limit for limit in (connect_s, total_s, silence_s) if limit is not None), default=None)
        self.total_s = total_s
        self.silence_s = silence_s


class Owner(Protocol):
    """The request that an attempt is made for."""

    @property
    def dialect(self) -> Dialect: ...

    caller_gone: bool
    """True if the caller has disconnected, or has stopped reading."""

    @property
    def stream(self) -> ResponseStream | None:
        """None until the head of a stream has been sent."""

    def begin_stream(self, attempt: UpstreamAttempt) -> ResponseStream:
        """Send the head of a stream."""

    def bind_reply(self, reply_id: str, target: Target) -> None:
        """Record who made a reply, before its first bytes are sent."""

    def block(self, attempt: UpstreamAttempt, cause: StreamBlocked) -> None:
        """Report a block to the caller: with a status, or with an event if the stream has begun."""


class UpstreamAttempt:
    """One exchange with an upstream. `owner` is the request that it serves."""

    __slots__ = (
        "_awaits_id",
        "_binds_id",
        "_decompressor",
        "_done",
        "_edits_frames",
        "_end_pending",
        "_frames",
        "_guards",
        "_incomplete_frame",
        "_internal_error",
        "_last_data_at",
        "_last_sent_at",
        "_loop",
        "_model_names",
        "_owner",
        "_paused",
        "_plain_pieces",
        "_queued",
        "_started_at",
        "_strips_usage",
        "_terminal_at",
        "_timeouts",
        "_verdict",
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
        self, loop: asyncio.AbstractEventLoop, owner: Owner, target: Target, message: bytes, timeouts: Timeouts
    ) -> None:
        self._loop = loop
        self._owner = owner
        self.target = target
        self._timeouts = timeouts
        self._done: asyncio.Future[None] = loop.create_future()
        self._started_at = self._last_data_at = monotonic()
        self._terminal_at = 0.0
        self._internal_error: Exception | None = None
        self.due = self._started_at
        """The time of the next call of `tick`."""
        self._paused = False
        self._verdict: asyncio.Future[bytes] | None = None
        """The verdict of the guard that is awaited."""
        self._queued: list[Frame] = []
        """Frames that arrived meanwhile."""
        self._last_sent_at = 0.0
        self._guards: ContentPolicy | None = None
        self._model_names: ModelNames | None = None
        self._strips_usage = False
        self._edits_frames = False
        """True if the caller gets other bytes than the upstream sends, also without guardrails."""
        self._binds_id = self._awaits_id = owner.dialect.stores_replies
        """Whether the id of the reply has to be recorded, and whether only complete events are sent until then."""
        self._frames: Frames
        self._decompressor: Decompressor | None = None
        self._plain_pieces: Iterator[bytes] | None = None
        """Decompressed data that has not been processed yet."""
        self._end_pending = False
        """True if the exchange has ended and only decompressed data is left."""
        self._incomplete_frame: Frame | None = None
        """The last frame, if the stream ended in the middle of an event."""
        self.mode: Mode = "head"
        self.reader: StreamReader | None = None
        """Reads the usage from a stream; None for a whole reply."""
        self.guard: StreamGuard | None = None
        self.guard_s = 0.0
        """Seconds spent in `guard`."""
        self.headers: dict[bytes, bytes] = {}
        """Headers of the reply by lower-case name; the first of repeated ones."""
        self.blocked_by: StreamBlocked | None = None
        self.exchange = exchange = Exchange(message, self._on_end)
        exchange.on_data = self._on_data

    def prepare(self, guards: ContentPolicy | None, alias: str | None, *, strips_usage: bool) -> None:
        """Set the output guardrails for a stream, and the `alias` that replaces the model name in it. `strips_usage` says
        that the caller did not ask for the event with the usage."""
        self._guards = guards
        if alias is not None:
            self._model_names = ModelNames(alias)
        self._strips_usage = strips_usage
        self._edits_frames = strips_usage or alias is not None

    async def run(self) -> None:
        """Send the request and wait until the exchange has ended, successfully or not."""
        exchange = self.exchange
        self.target.host.start(exchange, self._timeouts.connect_s)
        try:
            await self._done
            while self._verdict is not None:
                await asyncio.wait((self._verdict,))
        finally:
            if not self._done.done():
                self.abort(CALLER_GONE)
            # Break reference cycles: collecting them would cost 25 µs per request.
            exchange.on_data = None
            exchange.on_end = _ignore_end
            exchange.tag = None
        if self._internal_error is not None:
            raise self._internal_error

    def abort(self, error: WireError) -> None:
        if self._done.done():
            return
        self._plain_pieces = None
        if self._end_pending:
            self.exchange.error = error
            self._complete()
        else:
            self.target.host.abort(self.exchange, error)

    @property
    def complete(self) -> bool:
        """True if the caller has been sent the whole stream."""
        if self.reader is None or not self.reader.terminal:
            return False
        return self.guard is None or not self.guard.waiting

    @property
    def lacks_end(self) -> bool:
        """True if the event that must end the stream has not arrived."""
        if self.reader is None or self.reader.terminal:
            return False
        return not self._owner.dialect.has_done_marker or self.target.key.stream_done_marker == "required"

    @property
    def mid_event(self) -> bool:
        """True if the stream ended in the middle of an event, which the caller may have been sent in part."""
        return self._incomplete_frame is not None or len(self._frames) > 0

    @property
    def elapsed_ms(self) -> float:
        return (monotonic() - self._started_at) * 1000

    # -- data from the upstream ---------------------------------------------------------------------------------------

    def _on_end(self, exchange: Exchange) -> None:
        host = self.target.host
        if self._paused:
            host.resume(exchange)  # the connection returns to the pool, which must notice its end
        host.ended(exchange)
        if self._plain_pieces is not None and exchange.error is None:
            self._end_pending = True  # until the data has been decompressed
        else:
            self._complete()

    def _complete(self) -> None:
        exchange = self.exchange
        if self._decompressor is not None and not self._decompressor.complete and exchange.error is None:
            exchange.error = _UNDECODABLE
        if not self._done.done():
            self._done.set_result(None)

    def _on_data(self, exchange: Exchange) -> None:
        try:
            self._process(exchange)
        except Exception as error:
            # The event loop would only log this; `run` raises it in the request's coroutine.
            self._internal_error = error
            self.abort(WireError("InternalError", "Penstock failed.", "penstock"))

    def _process(self, exchange: Exchange) -> None:
        if not exchange.status:
            if exchange.bytes_received > MAX_HEAD:
                self.abort(WireError("ProtocolError", "The upstream's head is too large.", "server"))
            return
        self._last_data_at = monotonic()
        exchange.times.clear()  # else they grow with the stream
        exchange.counts.clear()
        if self.mode == "head":
            self._choose_mode(exchange)
        if self.mode == "collect":
            if exchange.bytes_received > MAX_REPLY:
                self.abort(WireError("ProtocolError", "The upstream's reply is too large.", "server"))
            return
        pieces = exchange.pieces
        if not pieces or self._plain_pieces is not None:
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        assert self.reader is not None
        if self._decompressor is None:
            self._process_stream(data, self.reader)
            return
        self._plain_pieces = self._decompressor.feed(data)
        self._decompress(self.reader)

    def _decompress(self, reader: StreamReader) -> None:
        """Decompress one piece in an iteration of the event loop, because a megabyte can expand to a gigabyte. The upstream
        is paused meanwhile."""
        while self._plain_pieces is not None:
            try:
                plain = next(self._plain_pieces, b"")
            except BadCoding:
                self.abort(_UNDECODABLE)
                return
            if not plain:
                self._plain_pieces = None
                break
            self._process_stream(plain, reader)
            if self._done.done() or self._paused:
                return
            if len(plain) == PIECE_BYTES:
                self.target.host.pause(self.exchange)
                self._loop.call_soon(self._continue_decompressing)
                return
        if self._end_pending:
            self._complete()
        else:
            self.target.host.resume(self.exchange)
            if self.exchange.pieces:
                self._process(self.exchange)

    def _continue_decompressing(self) -> None:
        if self._done.done() or self._paused or self._plain_pieces is None or self.reader is None:
            return
        self._last_data_at = monotonic()
        try:
            self._decompress(self.reader)
        except Exception as error:
            self._internal_error = error
            self.abort(WireError("InternalError", "Penstock failed.", "penstock"))

    def _process_stream(self, data: bytes, reader: StreamReader) -> None:
        if self.mode == "stream":
            self._relay(data, reader)
            return
        _read_frames(reader, self._frames.feed(data))
        if reader.terminal:
            self.abort(CALLER_GONE)

    def _choose_mode(self, exchange: Exchange) -> None:
        exchange.data = b""  # free the request: it is not sent again, and streams are long
        headers = self.headers = dict(reversed(exchange.headers))
        if (
            headers.get(b"content-type", b"").lower().startswith(b"text/event-stream")
            and 200 <= exchange.status < 300
            and ((coding := coding_of(headers)) == b"identity" or coding in CODINGS)
        ):
            self.mode = "stream"
            if coding in CODINGS:
                self._decompressor = Decompressor()
            self.reader = self._owner.dialect.stream_reader()
            if self._guards is not None and self._guards.has_output:
                self.guard = self._guards.stream(self._owner.dialect.name)
            self._frames = Frames(FRAME_BYTES if self.guard is None else self.guard.max_event_bytes)
            self._last_sent_at = monotonic()
            self.due = min(self.due, self._next_deadline())
        else:
            self.mode = "collect"

    def _relay(self, data: bytes, reader: StreamReader) -> None:
        guard = self.guard
        if guard is not None and guard.holds:
            frames = self._prepare_frames(reader, self._frames.feed(data))
            self._inspect(guard, frames, reader)
        else:
            if self._edits_frames or self._awaits_id:
                frames = self._prepare_frames(reader, self._frames.feed(data))
                self._send(joined(frames))
                if self._awaits_id and not self._binds_id:  # send bytes as they arrive from now on
                    self._awaits_id = False
                    self._send(self._frames.pending)
            else:
                self._send(data)  # before parsing, for the lowest latency
                frames = self._frames.feed(data)
                _read_frames(reader, frames)
            if guard is not None:
                self._inspect(guard, frames, reader)
        if not self._terminal_at and self.complete:
            self._terminal_at = monotonic()
            self.due = min(self.due, self._next_deadline())

    def _inspect(self, guard: StreamGuard, frames: list[Frame], reader: StreamReader) -> None:
        """Send what the guard releases. While a verdict is awaited, pause the upstream and queue the frames."""
        if self._verdict is not None:
            self._queued += frames
            return
        began = perf_counter()
        try:
            verdict = guard.feed(frames, len(self._frames))
        except StreamBlocked as blocked:
            self._block(blocked, reader)
            return
        finally:
            self.guard_s += perf_counter() - began
        if isinstance(verdict, bytes):
            self._send(verdict)
            return
        self._verdict = asyncio.ensure_future(verdict)
        self._verdict.add_done_callback(lambda done: self._on_verdict(done, guard, reader, began))
        if not self._done.done():
            self._paused = True
            self.target.host.pause(self.exchange)

    def _on_verdict(
        self, verdict: asyncio.Future[bytes], guard: StreamGuard, reader: StreamReader, began: float
    ) -> None:
        self._verdict = None
        self._last_data_at = monotonic()
        self.guard_s += perf_counter() - began
        frames, self._queued = self._queued, []
        try:
            clean = verdict.result()
            if not self._owner.caller_gone:  # may have changed meanwhile
                self._send(clean)
            if frames:
                self._inspect(guard, frames, reader)
        except StreamBlocked as blocked:
            self._block(blocked, reader)
        except Exception as error:
            self._internal_error = error
            self.abort(WireError("InternalError", "Penstock failed.", "penstock"))
        self._resume()
        if not self._terminal_at and self.complete:
            self._terminal_at = monotonic()
            self.due = min(self.due, self._next_deadline())

    def read_rest(self) -> None:
        """Read the last event, which may lack its blank line, after the upstream has ended its stream."""
        rest = self._frames.rest()
        if rest is not None and self.reader is not None and self._prepare_frames(self.reader, [rest]):
            self._incomplete_frame = rest

    async def inspect_rest(self) -> bytes:
        """Inspect what is still held, after `read_rest`, and return it. A block is reported to the owner."""
        reader, guard, rest = self.reader, self.guard, self._incomplete_frame
        assert reader is not None
        if guard is None or not guard.holds:
            if guard is not None:
                await guard.finish(rest)
            return rest.raw if rest is not None and (self._edits_frames or self._awaits_id) else b""
        try:
            return await guard.finish(rest)
        except StreamBlocked as blocked:
            self._block(blocked, reader)
            return b""

    def send_rest(self, data: bytes) -> None:
        """Send the result of `inspect_rest`."""
        if not self._owner.caller_gone:  # may have changed during the inspection
            self._send(data)

    def _prepare_frames(self, reader: StreamReader, frames: list[Frame]) -> list[Frame]:
        """Read frames, and return those that are meant for the caller."""
        if self._model_names is not None:
            for frame in frames:
                self._model_names.restore(frame)
        if self._strips_usage:
            frames = [frame for frame in frames if not reader.read(frame)]
        else:
            _read_frames(reader, frames)
        if self._binds_id and reader.id is not None:
            self._binds_id = False
            self._owner.bind_reply(reader.id, self.target)
        return frames

    def _send(self, data: bytes) -> None:
        if not data:
            return
        stream = self._owner.stream
        if stream is None:
            stream = self._owner.begin_stream(self)
        self._last_sent_at = monotonic()
        stream.send(data)
        if stream.closed:
            self._owner.caller_gone = True
            self.abort(CALLER_GONE)
        elif stream.full and not self._done.done():
            self._paused = True
            self.target.host.pause(self.exchange)
            stream.wait_until_writable(self._on_writable)

    def _on_writable(self) -> None:
        self._last_data_at = monotonic()
        self._resume()

    def _resume(self) -> None:
        """Read on, unless a verdict is awaited or the caller does not read."""
        stream = self._owner.stream
        if self._done.done() or self._verdict is not None or (stream is not None and stream.full):
            return
        self._paused = False
        if self._plain_pieces is not None:
            self._continue_decompressing()
        else:
            self.target.host.resume(self.exchange)

    def _block(self, blocked: StreamBlocked, reader: StreamReader) -> None:
        self.blocked_by = blocked
        self._owner.block(self, blocked)
        if self._done.done():
            return
        if reader.terminal:
            self.abort(CALLER_GONE)
            return
        self.mode = "drain"
        self._frames.limit = FRAME_BYTES
        self._started_at = monotonic()
        self.due = min(self.due, self._next_deadline())

    # -- time -------------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Check the timeouts. Call this when `due` has passed."""
        if self._done.done():
            return
        if now >= self.target.host.connect_due(self.exchange):
            self.target.host.try_next_address(self.exchange, _TIMED_OUT)
            if self._done.done():
                return
        if now >= self._heartbeat_due():
            assert self.guard is not None
            self._send(KEEP_ALIVE if self._verdict is not None else self.guard.heartbeat())
            if self._done.done():
                return
        # Data may have arrived since and moved the deadline.
        self.due = self._next_deadline()
        if now < self.due:
            return
        stream = self._owner.stream
        if self._terminal_at or self.mode == "drain":
            self.abort(CALLER_GONE)
        elif stream is not None and stream.full:
            self._owner.caller_gone = True  # the caller has read nothing during the timeout
            self.abort(CALLER_GONE)
        else:
            self.abort(_TIMED_OUT)

    def _next_deadline(self) -> float:
        timeouts = self._timeouts
        if self.mode == "drain":
            return self._started_at + DRAIN_S
        if self._terminal_at:
            return self._terminal_at + AFTER_TERMINAL_S
        due = self.target.host.connect_due(self.exchange)
        if timeouts.total_s is not None:
            due = min(due, self._started_at + timeouts.total_s)
        if timeouts.silence_s is not None and self._verdict is None:
            due = min(due, self._last_data_at + timeouts.silence_s)
        return min(due, self._heartbeat_due())

    def _heartbeat_due(self) -> float:
        """Return when a guarded stream needs a comment, so that no proxy takes it for dead."""
        stream = self._owner.stream
        if self.guard is None or self.guard.heartbeat_s is None or self.mode != "stream" or self._terminal_at:
            return inf
        if stream is not None and stream.full:
            return inf
        return self._last_sent_at + self.guard.heartbeat_s


def _read_frames(reader: StreamReader, frames: list[Frame]) -> None:
    for frame in frames:
        reader.read(frame)


def _ignore_end(_exchange: Exchange) -> None:
    """Replaces `on_end` of a finished exchange."""
