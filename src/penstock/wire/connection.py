"""One connection: a non-blocking socket on an asyncio loop that carries one exchange at a time.

    connecting ─▶ (handshake) ─▶ idle ◀─▶ busy ─▶ closed

On the hot path (`_readable`): read into one shared buffer, take the kernel's stamp, feed the HTTP reader, go back to the
loop. Nothing is understood here.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from time import monotonic_ns
from typing import NamedTuple

from penstock.wire.clock import Clock
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.http1 import ProtocolError, ResponseReader
from penstock.wire.stats import WireStats
from penstock.wire.tls import TLS

__all__ = ["Connection", "Origin"]

# One buffer for all connections of a process: an allocation for each read halves the throughput.
_BUFFER = bytearray(1 << 18)
_VIEW = memoryview(_BUFFER)
_BUFFERS = [_BUFFER]

_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
_TCP_INFO = 11
_TCP_CLOSE = 7  # tcp_info.tcpi_state, its first byte
_SEGMENTS = struct.Struct("I")
_SEGMENTS_AT = 152  # tcp_info.tcpi_data_segs_in
_TCP_INFO_SIZE = _SEGMENTS_AT + 4
_LINUX = sys.platform == "linux"


class Origin(NamedTuple):
    host: str
    port: int
    family: int
    address: tuple[str, int] | tuple[str, int, int, int]
    tls: ssl.SSLContext | None


class Connection:
    __slots__ = (
        "_clock",
        "_fd",
        "_gauge",
        "_loop",
        "_on_closed",
        "_on_idle",
        "_origin",
        "_out",
        "_reader",
        "_segments",
        "_sock",
        "_stamps",
        "_tls",
        "closed",
        "exchange",
        "opened",
        "opening",
        "reset",
        "used",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        origin: Origin,
        clock: Clock,
        gauge: WireStats,
        on_idle: Callable[[Connection], None],
        on_closed: Callable[[Connection, WireError | None], None],
        *,
        stamps: bool = True,
    ) -> None:
        """Without `stamps` arrivals are dated when they are read, as they are where the system has no stamps."""
        self._loop = loop
        self._origin = origin
        self._clock = clock
        self._gauge = gauge
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._reader = ResponseReader()
        self._tls: TLS | None = None
        self._out: memoryview | None = None
        self._segments = 0
        self.exchange: Exchange | None = None
        self.closed = False
        self.used = False
        self.reset = False
        """How it was lost: the server's system refused bytes, or had some that nobody had read."""
        """It has been idle since it was opened: the server may have closed it meanwhile."""
        self.opening = monotonic_ns()
        self.opened = -1
        sock = self._sock = socket.socket(origin.family, socket.SOCK_STREAM)
        self._fd = sock.fileno()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stamps = stamps and _LINUX
        if self._stamps:
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        code = sock.connect_ex(origin.address)
        if code in (0, errno.EINPROGRESS):
            loop.add_writer(self._fd, self._connected)
        else:  # the caller is still in our constructor: report on the next turn of the loop
            loop.call_soon(self._close, _connect_trouble(code, origin))

    # -- opening ------------------------------------------------------------------------------------------------------

    def _connected(self) -> None:
        if self.closed:
            return
        self._loop.remove_writer(self._fd)
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._close(_connect_trouble(code, self._origin))
            return
        if self._origin.tls is None:
            self._loop.add_reader(self._fd, self._readable)
            self._ready()
            return
        self._tls = TLS(self._origin.tls, self._origin.host)
        self._loop.add_reader(self._fd, self._readable_tls)
        self._shake_hands()

    def _shake_hands(self) -> None:
        assert self._tls is not None
        try:
            self._tls.handshake()
        except ssl.SSLError as error:
            self._write(self._tls.pending())
            self._close(_tls_trouble(error, self._origin))
            return
        self._write(self._tls.pending())
        if self._tls.ready and not self.closed:
            self._ready()

    def _ready(self) -> None:
        self.opened = monotonic_ns()
        self._gauge.connects += 1
        self._gauge.connect.add(self.opened - self.opening)
        if self.exchange is not None:
            self.exchange.connect_ns = self.opened - self.opening
            self._send()
        else:
            self.used = True
            self._on_idle(self)

    # -- sending ------------------------------------------------------------------------------------------------------

    def start(self, exchange: Exchange) -> None:
        """Carry this exchange: now, or as soon as the connection is open."""
        self.exchange = exchange
        exchange.reused = self.used
        if self.opened >= 0:
            self._send()

    def _send(self) -> None:
        exchange = self.exchange
        assert exchange is not None
        data = exchange.data
        if self._tls is not None:
            exchange.start = monotonic_ns()
            self._write(self._tls.seal(data))
            return
        exchange.start = monotonic_ns()
        try:
            n = self._sock.send(data)
        except BlockingIOError:
            n = 0
        except OSError as error:
            self._lost(error)
            return
        if n == len(data):
            exchange.sent = monotonic_ns()
            return
        self._out = memoryview(data)[n:]
        self._loop.add_writer(self._fd, self._writable)

    def _write(self, data: bytes) -> None:
        """For TLS, where what is written is not what the exchange holds."""
        if not data:
            return
        if self._out is not None:
            self._out = memoryview(bytes(self._out) + data)
            return
        self._out = memoryview(data)
        self._loop.add_writer(self._fd, self._writable)
        self._writable()

    def _writable(self) -> None:
        out = self._out
        if out is None or self.closed:
            return
        try:
            n = self._sock.send(out)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error)
            return
        if n < len(out):
            self._out = out[n:]
            return
        self._out = None
        self._loop.remove_writer(self._fd)
        if self.exchange is not None and self.exchange.start >= 0:
            self.exchange.sent = monotonic_ns()

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _receive(self) -> tuple[int, int, int]:
        """One read into the shared buffer: (bytes, arrival in monotonic ns, segments it covered or 0 if unknown)."""
        gauge = self._gauge
        if not self._stamps:
            n = self._sock.recv_into(_BUFFER)
            gauge.reads += 1
            self._notice_reset(self._state())
            return n, monotonic_ns(), 0
        n, ancillary, _, _ = self._sock.recvmsg_into(_BUFFERS, _ANCILLARY)
        now = monotonic_ns()
        if n == 0:
            return 0, now, 0
        gauge.reads += 1
        if not ancillary:
            return n, now, 0
        seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
        arrived = seconds * 1_000_000_000 + nanoseconds - self._clock.offset
        gauge.stamped += 1
        gauge.delay.add(now - arrived)
        # Asked after the read, so that a segment which slips in between makes the count too high, never too low.
        info = self._sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TCP_INFO_SIZE)
        total = _SEGMENTS.unpack_from(info, _SEGMENTS_AT)[0]
        self._notice_reset(info[0])
        segments = total - self._segments
        self._segments = total
        return n, arrived if arrived < now else now, segments

    def _notice_reset(self, state: int) -> None:
        """Reset behind the bytes just read. libuv stops watching a socket once it has told of an error, so nobody else
        would call us for the rest."""
        if state == _TCP_CLOSE:
            self._loop.call_soon(self._readable if self._tls is None else self._readable_tls)

    def look(self) -> None:
        """Read on if it was reset unnoticed: the kernel reports an error a moment before it changes the state."""
        if not self.closed and self.opened >= 0:
            self._notice_reset(self._state())

    def _state(self) -> int:
        """That of TCP; 0 where the system does not tell."""
        return self._sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] if _LINUX else 0

    def _read(self) -> tuple[int, int, int] | None:
        """What `_receive` gives; None when there was nothing, or when the other side is gone, which is dealt with."""
        try:
            read = self._receive()
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            self._lost(error)
            return None
        if read[0] == 0:
            self._lost(None)
            return None
        return read

    def _readable(self) -> None:
        if self.closed:
            return
        read = self._read()
        if read is None:
            return
        n, arrived, segments = read
        self._take(_VIEW[:n], arrived, segments, n)

    def _readable_tls(self) -> None:
        tls = self._tls
        if self.closed or tls is None:
            return
        read = self._read()
        if read is None:
            return
        n, arrived, segments = read
        tls.feed(_VIEW[:n])
        if not tls.ready:
            self._shake_hands()
            if not tls.ready or self.closed:
                return
        try:
            plain = tls.plain()
        except ssl.SSLError as error:
            self._close(_tls_trouble(error, self._origin))
            return
        self._write(tls.pending())
        if plain and not self.closed:
            self._take(plain[0] if len(plain) == 1 else b"".join(plain), arrived, segments, n)
        if tls.ended and not self.closed:
            self._lost(None)  # some servers wait for our end before they close the socket

    def _take(self, data: memoryview | bytes, arrived: int, segments: int, n: int) -> None:
        exchange = self.exchange
        reader = self._reader
        if exchange is None:
            self._close(None)  # bytes that nobody asked for: the connection is out of step
            return
        try:
            reader.feed(data)
        except ProtocolError as error:
            self._note(exchange, arrived, segments, n)
            self._close(WireError("ProtocolError", f"The server's reply is not valid HTTP/1.1: {error}.", "server"))
            return
        self._note(exchange, arrived, segments, n)
        if exchange.on_data is not None:
            self._pass_on(exchange)
            exchange.on_data(exchange)
            if self.exchange is not exchange:
                return  # the caller gave it up
        if reader.complete:
            self._finish(exchange, reusable=reader.reusable and self._out is None)

    def _note(self, exchange: Exchange, arrived: int, segments: int, n: int) -> None:
        if exchange.first_byte < 0:
            exchange.first_byte = arrived
        if segments > 1:
            exchange.coarse.append(len(exchange.times))
        exchange.times.append(arrived)
        exchange.counts.append(len(self._reader.pieces))
        exchange.bytes_received += n

    def keep_alive(self) -> None:
        """Let the system ask now and then whether an idle peer is still there."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def pause(self) -> None:
        """Read nothing more for now: the kernel's buffer fills, and the server has to wait."""
        if not self.closed:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        if not self.closed:
            self._loop.add_reader(self._fd, self._readable if self._tls is None else self._readable_tls)

    def _pass_on(self, exchange: Exchange) -> None:
        reader = self._reader
        exchange.status = reader.status
        exchange.headers = reader.headers
        exchange.pieces += reader.pieces
        reader.pieces.clear()

    def _hand_over(self, exchange: Exchange) -> None:
        self._pass_on(exchange)
        exchange.end = exchange.times[-1] if exchange.times else monotonic_ns()

    def _finish(self, exchange: Exchange, *, reusable: bool) -> None:
        self._hand_over(exchange)
        self.exchange = None
        self.used = True
        if reusable:
            self._reader.reset()
            self._on_idle(self)
        else:
            self._close(None)
        exchange.on_end(exchange)

    # -- ending -------------------------------------------------------------------------------------------------------

    @property
    def heard(self) -> bool:
        """Something of the current reply has arrived."""
        return self._reader.started

    def _lost(self, error: OSError | None) -> None:
        """The other side is gone: by an error, or with error None by the end of its stream."""
        exchange = self.exchange
        if exchange is None:
            self._close(None)
            return
        if self.opened < 0:
            self._close(_connect_trouble(error.errno if error and error.errno else errno.ECONNRESET, self._origin))
            return
        if error is None and self._reader.eof():
            self._finish(exchange, reusable=False)
            return
        self.reset = error is not None or self._state() == _TCP_CLOSE
        how = "closed the connection" if error is None else f"connection failed ({os.strerror(error.errno or 0)})"
        subject = "The server" if error is None else "The"
        when = "in the middle of its reply" if self._reader.started else "before it replied"
        by_server = error is None or error.errno in (errno.ECONNRESET, errno.EPIPE)
        self._close(WireError("ConnectionLost", f"{subject} {how} {when}.", "server" if by_server else "network"))

    def abandon(self) -> None:
        """Give up the exchange in flight, leaving with it what has arrived, and close."""
        if self.exchange is not None:
            self._hand_over(self.exchange)
            self.exchange.end = monotonic_ns()
            self.exchange = None
        self._close(None)

    def _close(self, trouble: WireError | None) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self.exchange is not None:
            self._hand_over(self.exchange)
            if not self.exchange.times or trouble is not None:
                self.exchange.end = monotonic_ns()
        self._sock.close()
        self._reader.close()
        self._on_closed(self, trouble)

    def close(self) -> None:
        self._close(None)


def _connect_trouble(code: int, origin: Origin) -> WireError:
    where = f"{origin.host}:{origin.port}"
    if code == errno.ECONNREFUSED:
        return WireError("ConnectionRefused", f"Nothing listens on {where}: the connection was refused.", "server")
    if code == errno.EADDRNOTAVAIL:
        return WireError(
            "NoLocalPort",
            f"This machine has no free local port left for {where}; reuse connections or widen the local port range.",
            "penstock",
        )
    return WireError("ConnectionFailed", f"No connection to {where}: {os.strerror(code)}.", "network")


def _tls_trouble(error: ssl.SSLError, origin: Origin) -> WireError:
    where = f"{origin.host}:{origin.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        text = f"The certificate of {where} is not trusted: {why}. --insecure accepts it all the same."
        return WireError("CertificateError", text, "server")
    # What a plain HTTP server answers to a handshake.
    plain = "; the server may speak http:// there" if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST") else ""
    return WireError("TLSError", f"TLS with {where} failed: {error.reason or error}{plain}.", "network")
