"""One HTTP connection: a non-blocking socket on an asyncio loop that carries one exchange at a time.

    connecting ─▶ (tunnel through a proxy) ─▶ (TLS handshake) ─▶ idle ◀─▶ busy ─▶ closed

The hot path (`_readable`) reads into a shared buffer with the kernel's stamp, feeds the HTTP reader and returns to the
loop. It does not interpret the reply.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from time import monotonic_ns
from typing import NamedTuple

from penstock.wire import kernel_stamps
from penstock.wire.clock import Clock
from penstock.wire.connection_errors import connect_error, lost_error, protocol_error, proxy_error, tls_error
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.http1 import ProtocolError, ResponseReader, request_head
from penstock.wire.kernel_stamps import (
    READ_BUFFER,
    TCP_CLOSE,
    TCP_ESTABLISHED,
    PlainReceiver,
    StampedReceiver,
    UntimedReceiver,
    acknowledged,
    is_open,
    round_trip_and_retransmits,
    round_trip_ns,
    tcp_info,
    tcp_state,
)
from penstock.wire.loop_marks import LoopMarks
from penstock.wire.stats import WireStats
from penstock.wire.tls import TLS

_PRIVATE_BUFFER = 1 << 16
_ENCRYPTED_BYTES = 1 << 18
"""How much of a request is encrypted at a time."""


class Origin(NamedTuple):
    host: str
    port: int
    family: int
    address: tuple[str, int] | tuple[str, int, int, int]
    tls: ssl.SSLContext | None
    proxy: str = ""
    """Host and port of the HTTP proxy whose address `address` is; empty for a direct connection."""
    proxy_authorization: str = ""

    @property
    def host_port(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def peer(self) -> str:
        """The other end of the TCP connection, for messages."""
        return f"the proxy {self.proxy}" if self.proxy else self.host_port

    @property
    def tunnel_request(self) -> bytes:
        """The request for a tunnel through the proxy. Requests without TLS need none: the proxy reads them."""
        if not self.proxy or self.tls is None:
            return b""
        target = f"[{self.host}]:{self.port}" if ":" in self.host else self.host_port
        headers = [("Proxy-Authorization", self.proxy_authorization)] if self.proxy_authorization else []
        return request_head("CONNECT", target, target, headers) + b"\r\n"


_FIRST_RETRANSMIT_NS = 4_000_000
"""A system sends a segment again after some milliseconds at the earliest. TCP_INFO from before a shorter exchange is as good
as from after it, and saves 2 µs."""


class Connection:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        origin: Origin,
        clock: Clock,
        stats: WireStats,
        on_idle: Callable[[Connection], None],
        on_closed: Callable[[Connection, WireError | None], None],
        *,
        stamps: bool = True,
        marks: LoopMarks | None = None,
        private_buffer: bool = False,
    ) -> None:
        """Start to connect. On a system without stamps, a read is dated when it happens. Without `stamps`, reads are dated so
        as well, and nothing more is measured, which saves two system calls in an exchange. `marks` narrow the time in which
        the segments of one read can have arrived. With `private_buffer`, the connection has no stamps, and its loop may run
        in another thread than that of other connections."""
        self._loop = loop
        self._origin = origin
        self._retransmits = 0
        self._stats = stats
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._reader = ResponseReader()
        self._tls: TLS | None = None
        self._unsent: memoryview | None = None
        self._plain = memoryview(b"")
        """The part of the request that is not encrypted yet."""
        self.exchange: Exchange | None = None
        self.closed = False
        self.used = False
        """The connection has been idle before."""
        self._info_before = b""
        """TCP_INFO right before the current request, if the connection was idle then."""
        self.unreceived = False
        """The connection ended before the server received any of the request."""
        self.connect_started = monotonic_ns()
        self.connected = -1
        """When the connection was ready for requests, after TLS; -1 until then."""
        self.idle_since = -1
        """When the last exchange ended, or when a connection without one was ready."""
        sock = self._sock = socket.socket(origin.family, socket.SOCK_STREAM)
        self._fd = sock.fileno()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(_PRIVATE_BUFFER)) if private_buffer else READ_BUFFER
        self._measures = stamps
        receiver: StampedReceiver | PlainReceiver | UntimedReceiver
        if not stamps:
            receiver = UntimedReceiver(sock, stats, self._buffer)
        elif kernel_stamps.AVAILABLE and not private_buffer:
            receiver = StampedReceiver(sock, clock, stats, marks)
        else:
            receiver = PlainReceiver(sock, stats, marks, self._buffer)
        self._receive = receiver.receive
        self._sent_at = None if isinstance(receiver, UntimedReceiver) else receiver.bounds.sent
        code = sock.connect_ex(origin.address)
        if code in (0, errno.EINPROGRESS):
            loop.add_writer(self._fd, self._tcp_connected)
        else:  # the caller does not have this object yet: report the error on the loop's next iteration
            loop.call_soon(self._close, connect_error(code, origin.peer))

    # -- connecting ---------------------------------------------------------------------------------------------------

    def _tcp_connected(self) -> None:
        if self.closed:
            return
        self._loop.remove_writer(self._fd)
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._close(connect_error(code, self._origin.peer))
            return
        if self._origin.tls is None:
            self._loop.add_reader(self._fd, self._readable)
            self._ready()
        elif request := self._origin.tunnel_request:
            self._loop.add_reader(self._fd, self._readable_tunnel)
            self._write(request)
        else:
            self._start_tls()

    def _readable_tunnel(self) -> None:
        """Read the proxy's reply to the request for a tunnel."""
        if self.closed:
            return
        read = self._read()
        if read is None:
            return
        reader = self._reader
        try:
            reader.feed(self._buffer[: read[0]])
        except ProtocolError:
            self._close(proxy_error(self._origin.proxy, self._origin.host_port, "its reply is not valid HTTP/1.1"))
            return
        if reader.status and not 200 <= reader.status < 300:
            self._close(proxy_error(self._origin.proxy, self._origin.host_port, f"HTTP status {reader.status}"))
        elif reader.status:
            reader.close()  # the parser waits for a body, which this reply does not have
            reader.reset()
            self._start_tls()

    def _start_tls(self) -> None:
        assert self._origin.tls is not None
        self._tls = TLS(self._origin.tls, self._origin.host)
        self._loop.add_reader(self._fd, self._readable_tls)
        self._continue_handshake()

    @property
    def in_handshake(self) -> bool:
        """The server has accepted the connection, and the TLS handshake is not complete."""
        return self._tls is not None and self.connected < 0

    def _continue_handshake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.handshake()
        except ssl.SSLError as error:
            self._write(self._tls.outgoing())
            self._close(tls_error(error, self._origin.host_port))
            return
        self._write(self._tls.outgoing())
        if self._tls.ready and not self.closed:
            self._ready()

    def _ready(self) -> None:
        self.connected = monotonic_ns()
        self._stats.connects += 1
        self._stats.connect.add(self.connected - self.connect_started)
        if self.exchange is not None:
            self.exchange.connect_ns = self.connected - self.connect_started
            self._send()
        else:
            self.idle_since = self.connected
            self.used = True
            self._on_idle(self)

    # -- sending ------------------------------------------------------------------------------------------------------

    def check_open(self) -> bool:
        """Return whether an idle connection is still open. Call this right before `start`."""
        info = self._info_before = tcp_info(self._sock)
        return info[0] == TCP_ESTABLISHED if info else is_open(self._sock)

    def start(self, exchange: Exchange) -> None:
        """Carry this exchange now, or as soon as the connection is ready."""
        self.exchange = exchange
        exchange.reused = self.used
        if self.connected >= 0:
            self._send()

    def _send(self) -> None:
        exchange = self.exchange
        assert exchange is not None
        data = exchange.data
        exchange.start = monotonic_ns()
        if self._sent_at is not None:
            self._sent_at(exchange.start)
        if self._tls is not None:
            self._plain = memoryview(data)
            self._encrypt_more(self._tls)
            return
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
        self._unsent = memoryview(data)[n:]
        self._loop.add_writer(self._fd, self._writable)

    def _encrypt_more(self, tls: TLS) -> None:
        """Encrypt and send the next part of the request. 64 MiB in one call would block the loop for 40 ms."""
        plain = self._plain
        part, self._plain = plain[:_ENCRYPTED_BYTES], plain[_ENCRYPTED_BYTES:]
        self._write(tls.encrypt(part))

    def _write(self, data: bytes) -> None:
        """Send TLS records, after those that are still unsent."""
        if not data:
            return
        if self._unsent is not None:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return
        self._unsent = memoryview(data)
        self._loop.add_writer(self._fd, self._writable)
        self._writable()

    def _writable(self) -> None:
        unsent = self._unsent
        if unsent is None or self.closed:
            return
        try:
            n = self._sock.send(unsent)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error)
            return
        if n < len(unsent):
            self._unsent = unsent[n:]
            return
        self._unsent = None
        self._loop.remove_writer(self._fd)
        if self._plain and self._tls is not None:
            self._loop.call_soon(self._send_next_part)
            return
        if self.exchange is not None and self.exchange.start >= 0:
            self.exchange.sent = monotonic_ns()

    def _send_next_part(self) -> None:
        if self._plain and self._tls is not None and not self.closed:
            self._encrypt_more(self._tls)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[int, int, int | None] | None:
        """Read once into the buffer. Return (bytes, newest arrival, earliest arrival if it can be another), or None if there
        was nothing or the connection ended, which this method then handles."""
        try:
            n, arrived, earliest, state = self._receive()
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            self._lost(error)
            return None
        if n == 0:
            self._lost(None)
            return None
        if state == TCP_CLOSE:
            self._read_again_soon()
        return n, arrived, earliest

    def _read_again_soon(self) -> None:
        """Read what follows a reset. libuv stops polling a socket after it reported an error, so the loop would not call
        this connection again."""
        self._loop.call_soon(self._readable if self._tls is None else self._readable_tls)

    def check_reset(self) -> None:
        """Detect a reset that the loop did not report: the kernel signals the error before it changes the TCP state."""
        if not self.closed and self.connected >= 0 and tcp_state(self._sock) == TCP_CLOSE:
            self._read_again_soon()

    def _readable(self) -> None:
        if self.closed:
            return
        read = self._read()
        if read is None:
            return
        n, arrived, earliest = read
        self._feed(self._buffer[:n], arrived, earliest, n)
        if not self._measures and self.exchange is not None:
            self.check_reset()

    def _readable_tls(self) -> None:
        tls = self._tls
        if self.closed or tls is None:
            return
        read = self._read()
        if read is None:
            return
        n, arrived, earliest = read
        tls.feed(self._buffer[:n])
        if not tls.ready:
            self._continue_handshake()
            if not tls.ready or self.closed:
                return
        try:
            plain = tls.decrypt()
        except ssl.SSLError as error:
            self._close(tls_error(error, self._origin.host_port))
            return
        self._write(tls.outgoing())
        if plain and not self.closed:
            self._feed(plain[0] if len(plain) == 1 else b"".join(plain), arrived, earliest, n)
        if tls.ended and not self.closed:
            self._lost(None)  # some servers keep the socket open until the client closes it
        if not self._measures and self.exchange is not None:
            self.check_reset()

    def _feed(self, data: memoryview | bytes, arrived: int, earliest: int | None, n: int) -> None:
        """Give bytes of a reply to the HTTP reader; `n` is their number on the network, before decryption."""
        exchange = self.exchange
        reader = self._reader
        if exchange is None:
            self._close(None)  # bytes that answer no request would be taken for the next reply
            return
        try:
            reader.feed(data)
        except ProtocolError as error:
            self._record_read(exchange, arrived, earliest, n)
            self._close(protocol_error(str(error), bytes(data[:2]), tls=self._tls is not None))
            return
        self._record_read(exchange, arrived, earliest, n)
        if exchange.on_content is not None and reader.pieces:
            on_content, exchange.on_content = exchange.on_content, None
            on_content(exchange, arrived)
        if exchange.on_data is not None:
            self._move_reply(exchange)
            exchange.on_data(exchange)
            if self.exchange is not exchange:
                return  # the callback aborted the exchange
        if reader.complete:
            self._finish(exchange, reusable=reader.reusable and self._unsent is None and not self._plain)

    def _record_read(self, exchange: Exchange, arrived: int, earliest: int | None, n: int) -> None:
        if exchange.first_byte < 0:
            exchange.first_byte = arrived
        if earliest is not None:
            exchange.coalesced.append(len(exchange.times))
            exchange.earliest.append(earliest)
        exchange.times.append(arrived)
        exchange.counts.append(len(self._reader.pieces))
        exchange.bytes_received += n

    def keep_alive(self) -> None:
        """Enable TCP keep-alive probes."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def pause(self) -> None:
        """Stop reading, so that the kernel's buffer fills up and the server has to wait."""
        if not self.closed:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        if not self.closed:
            self._loop.add_reader(self._fd, self._readable if self._tls is None else self._readable_tls)

    def _move_reply(self, exchange: Exchange) -> None:
        """Move what the reader has parsed to the exchange."""
        reader = self._reader
        exchange.status = reader.status
        exchange.headers = reader.headers
        exchange.pieces += reader.pieces
        reader.pieces.clear()

    def _end_exchange(self, exchange: Exchange) -> None:
        self._move_reply(exchange)
        exchange.end = exchange.times[-1] if exchange.times else monotonic_ns()
        if not self._measures:
            return
        info = self._info_before
        if not info or exchange.end - exchange.start >= _FIRST_RETRANSMIT_NS:
            info = tcp_info(self._sock)
        if info:
            exchange.rtt_us, total = round_trip_and_retransmits(info)
            exchange.retransmits = total - self._retransmits
            self._retransmits = total

    def _finish(self, exchange: Exchange, *, reusable: bool) -> None:
        self._end_exchange(exchange)
        self.exchange = None
        self.idle_since = exchange.end
        self.used = True
        if reusable:
            self._reader.reset()
            self._on_idle(self)
        else:
            self._close(None)
        exchange.on_end(exchange)

    # -- closing ------------------------------------------------------------------------------------------------------

    @property
    def reply_started(self) -> bool:
        """Whether bytes of the current reply have arrived."""
        return self._reader.started

    def _lost(self, error: OSError | None) -> None:
        """Handle a connection that the other side ended; `error` is None at the end of its stream."""
        exchange = self.exchange
        if exchange is None:
            self._close(None)
            return
        if self.connected < 0:
            code = error.errno if error and error.errno else errno.ECONNRESET
            self._close(connect_error(code, self._origin.peer))
            return
        if error is None and self._reader.eof():
            self._finish(exchange, reusable=False)
            return
        self.unreceived = self._is_unreceived(exchange, error)
        tls_hint = self._tls is None and self._stats.reads == 0
        self._close(lost_error(error, reply_started=self._reader.started, tls_hint=tls_hint))

    def _is_unreceived(self, exchange: Exchange, error: OSError | None) -> bool:
        """Return whether the server cannot have received any of the request, so that it can be sent again.

        The end of the server's stream acknowledges all that the server has received, so one that leaves the request
        unacknowledged was on its way when the request was sent. A reset acknowledges nothing: only one that arrives
        within a round trip of the send was on its way."""
        if not self._info_before or self._reader.started:
            return False
        info = tcp_info(self._sock)
        if acknowledged(info) != acknowledged(self._info_before):
            return False
        return error is None or monotonic_ns() - exchange.start <= round_trip_ns(info)

    def abandon(self) -> None:
        """Close the connection; the exchange in flight keeps what has arrived of its reply."""
        if self.exchange is not None:
            self._end_exchange(self.exchange)
            self.exchange.end = monotonic_ns()
            self.exchange = None
        self._close(None)

    def _close(self, error: WireError | None) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self.exchange is not None:
            self._end_exchange(self.exchange)
            if not self.exchange.times or error is not None:
                self.exchange.end = monotonic_ns()
        self._sock.close()
        self._reader.close()
        self._on_closed(self, error)

    def close(self) -> None:
        self._close(None)
