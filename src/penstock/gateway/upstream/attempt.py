"""One attempt at an upstream: send the request, read the reply, and feed a successful one to its receiver as it arrives.

    start ─▶ HEAD ─┬─▶ COLLECT   an error: its body is read by the request
                   └─▶ FEED      a success: its bytes, decompressed, go to the receiver

Everything runs in event loop callbacks, so that data of a stream reaches the caller in the same iteration of the loop in
which it arrived. The coroutine of the request only waits for the end. The attempt knows nothing of the request: it asks
for a receiver when the head has arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from math import inf
from time import monotonic
from typing import Literal, Protocol

from penstock.gateway.upstream.decompression import CODINGS, PIECE_BYTES, Decompressor
from penstock.gateway.upstream.target import CALLER_GONE, TIMEOUT, UNDECODABLE, Target, coding_of
from penstock.wire.content_encoding import BadCoding
from penstock.wire.exchange import Exchange, WireError

_TIMED_OUT = WireError(TIMEOUT, "The upstream did not answer in time.", "server")
_UNDECODABLE = WireError(UNDECODABLE, "The upstream's reply cannot be decompressed.", "server")
_TOO_LARGE = WireError("ProtocolError", "The upstream's reply is too large.", "server")
_INTERNAL_ERROR = WireError("InternalError", "Penstock failed.", "penstock")
SHUTTING_DOWN = WireError("ShuttingDown", "The gateway is shutting down.", "penstock")
AFTER_END_S = 2.0
"""How long an upstream may keep its connection open after the event that ends the stream."""
MAX_HEAD = 1 << 20
MAX_REPLY = 256 << 20

Mode = Literal["head", "collect", "feed"]


class Timeouts:
    """Timeouts of an attempt in seconds; None is no limit."""

    def __init__(self, connect_s: float | None, total_s: float | None, silence_s: float | None) -> None:
        # The total and silence timeouts include connecting, so connecting cannot take longer.
        self.connect_s = min((limit for limit in (connect_s, total_s, silence_s) if limit is not None), default=None)
        self.total_s = total_s
        self.silence_s = silence_s


class Receiver(Protocol):
    """What gets the bytes of a successful reply. It may pause the attempt."""

    max_bytes: float

    @property
    def complete(self) -> bool:
        """True if nothing more is expected."""

    def feed(self, data: bytes) -> None: ...


class UpstreamAttempt:
    """One exchange with an upstream."""

    mode: Mode = "head"
    _receiver: Receiver | None = None
    _ended_at = 0.0
    """When the receiver was complete."""
    _read_until = _stop_after = inf
    """When the attempt ends, whatever arrives, and after how many bytes."""
    _fed = 0
    _internal_error: Exception | None = None
    _paused_at: float | None = None
    _decompressor: Decompressor | None = None
    _plain_pieces: Iterator[bytes] | None = None
    """Decompressed data that has not been processed yet."""
    _end_pending = False
    """True if the exchange has ended and only decompressed data is left."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        target: Target,
        message: bytes,
        timeouts: Timeouts,
        make_receiver: Callable[[UpstreamAttempt], Receiver],
    ) -> None:
        """`make_receiver` is called when the head of a successful reply has arrived."""
        self._loop = loop
        self.target = target
        self._timeouts = timeouts
        self._make_receiver = make_receiver
        self._done: asyncio.Future[None] = loop.create_future()
        self._started_at = self._last_data_at = monotonic()
        self.due = self._started_at
        """The time of the next call of `tick`."""
        self.headers: dict[bytes, bytes] = {}
        """Headers of the reply by lower-case name; the first of repeated ones."""
        self.exchange = exchange = Exchange(message, self._on_end)
        exchange.on_data = self._on_data

    async def run(self) -> None:
        """Send the request and wait until the exchange has ended, successfully or not."""
        exchange = self.exchange
        self.target.host.start(exchange, self._timeouts.connect_s)
        try:
            await self._done
        finally:
            if not self._done.done():
                self.abort(CALLER_GONE)
            # Break reference cycles: collecting them would cost 25 µs per request.
            exchange.on_data = None
            exchange.on_end = _ignore_end
            exchange.tag = None
            self._receiver = None
        self.raise_internal_error()

    def raise_internal_error(self) -> None:
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

    def fail(self, error: Exception) -> None:
        """End the exchange after an internal error, which `run` raises. The event loop would only log it."""
        self._internal_error = error
        self.abort(_INTERNAL_ERROR)

    def read_on(self, seconds: float, max_bytes: float) -> None:
        """Read the rest of the reply within these limits, whatever the timeouts are."""
        self._read_until = monotonic() + seconds
        self._stop_after = self._fed + max_bytes
        self.due = min(self.due, self._read_until)
        if self._receiver is not None and self._receiver.complete:
            self.abort(CALLER_GONE)

    @property
    def running(self) -> bool:
        return not self._done.done()

    @property
    def was_sent(self) -> bool:
        """True if the upstream may have received the whole request."""
        return self.exchange.status != 0 or self.exchange.sent >= 0

    @property
    def elapsed_ms(self) -> float:
        return (monotonic() - self._started_at) * 1000

    # -- data from the upstream ---------------------------------------------------------------------------------------

    def _on_end(self, exchange: Exchange) -> None:
        host = self.target.host
        if self._paused_at is not None:
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
            self.fail(error)

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
                self.abort(_TOO_LARGE)
            return
        pieces = exchange.pieces
        if not pieces or self._plain_pieces is not None or self._done.done():
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self._decompressor is None:
            self._feed(data)
        else:
            self._plain_pieces = self._decompressor.feed(data)
            self._decompress()

    def _choose_mode(self, exchange: Exchange) -> None:
        exchange.data = b""  # free the request: it is not sent again, and streams are long
        headers = self.headers = dict(reversed(exchange.headers))
        if not 200 <= exchange.status < 300:
            self.mode = "collect"
            return
        self.mode = "feed"
        coding = coding_of(headers)
        if coding in CODINGS:
            self._decompressor = Decompressor()
        elif coding != b"identity":
            self.abort(_UNDECODABLE)
            return
        self._receiver = self._make_receiver(self)
        self.due = min(self.due, self._next_deadline())

    def _decompress(self) -> None:
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
            self._feed(plain)
            if self._done.done() or self._paused_at is not None:
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
        if self._done.done() or self._paused_at is not None or self._plain_pieces is None:
            return
        self._last_data_at = monotonic()
        try:
            self._decompress()
        except Exception as error:
            self.fail(error)

    def _feed(self, data: bytes) -> None:
        receiver = self._receiver
        assert receiver is not None
        self._fed += len(data)
        if self._fed > receiver.max_bytes:
            self.abort(_TOO_LARGE)
            return
        receiver.feed(data)
        self._check_end(receiver)

    def _check_end(self, receiver: Receiver) -> None:
        """End soon after the receiver has got everything."""
        if self._done.done():
            return
        if self._read_until < inf and (receiver.complete or self._fed > self._stop_after):
            self.abort(CALLER_GONE)
        elif not self._ended_at and receiver.complete:
            self._ended_at = monotonic()
            self.due = min(self.due, self._next_deadline())

    # -- pauses: the time of a pause counts for no timeout ------------------------------------------------------------

    def pause(self) -> None:
        if not self._done.done() and self._paused_at is None:
            self._paused_at = monotonic()
            self.target.host.pause(self.exchange)

    def resume(self) -> None:
        if self._done.done() or self._paused_at is None:
            return
        paused_s = monotonic() - self._paused_at
        self._paused_at = None
        self._last_data_at += paused_s
        self._started_at += paused_s
        self.due = self._next_deadline()
        if self._plain_pieces is not None:
            self._continue_decompressing()
        else:
            self.target.host.resume(self.exchange)
        if self._receiver is not None:
            self._check_end(self._receiver)

    # -- time -------------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Check the timeouts. Call this when `due` has passed."""
        if self._done.done():
            return
        if now >= self.target.host.connect_due(self.exchange):
            self.target.host.try_next_address(self.exchange, _TIMED_OUT)
            if self._done.done():
                return
        # Data may have arrived since and moved the deadline.
        self.due = self._next_deadline()
        if now >= self.due:
            self.abort(CALLER_GONE if self._ended_at or self._read_until < inf else _TIMED_OUT)

    def _next_deadline(self) -> float:
        if self._ended_at:
            return self._ended_at + AFTER_END_S
        if self._read_until < inf:
            return self._read_until
        if self._paused_at is not None:
            return inf
        timeouts = self._timeouts
        due = self.target.host.connect_due(self.exchange)
        if timeouts.total_s is not None:
            due = min(due, self._started_at + timeouts.total_s)
        if timeouts.silence_s is not None:
            due = min(due, self._last_data_at + timeouts.silence_s)
        return due


def _ignore_end(_exchange: Exchange) -> None:
    """Replaces `on_end` of a finished exchange."""
