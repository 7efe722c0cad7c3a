"""One client connection: it parses requests and writes replies.

All connections read into one shared buffer. The kernel's receive timestamp comes with the data on Linux. Pipelining is not
supported: when bytes arrive before a reply has ended, the connection closes after that reply. Bytes that the socket does
not accept are kept, and the reply pauses when there are too many.
"""

from __future__ import annotations

import hashlib
import socket
import struct
from collections import deque
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any

import httptools

from penstock.mock_server.request import MockRequest
from penstock.wire.kernel_stamps import CONTROL_SPACE, READ_BUFFER, TIMESPEC

if TYPE_CHECKING:
    from penstock.mock_server.server import Server

BUFFERS = [READ_BUFFER]

MAX_UNSENT_BYTES = 1 << 20
"""A reply pauses when the connection keeps more unsent bytes than this."""
LINGER_NS = 2_000_000_000
"""How long a connection is still read after it was shut: closing it at once could reset it and lose the reply's end."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
KEPT_HEADERS = frozenset((b"x-mock", b"x-request-id", b"x-correlation-id", b"expect"))


class Connection:
    def __init__(self, server: Server, sock: socket.socket, number: int) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server = server
        self.sock = sock
        self.fd = sock.fileno()
        self.number = number
        self.recv = sock.recvmsg_into
        self.send = sock.send
        self.parser: Any = httptools.HttpRequestParser(self)
        self.received: MockRequest | None = None
        """A complete request whose reply has not begun."""
        self.active: MockRequest | None = None
        """The request whose reply is being written."""
        self.unsent: deque[memoryview] = deque()
        self.unsent_bytes = 0
        self.writer_added = False
        self.closing = False
        """No further request is read; the connection ends when all is written."""
        self.shut_down = False
        """FIN is sent; bytes that still arrive are discarded."""
        self.closed = False
        self.receiving = False
        """A request has begun to arrive."""
        self.expects_continue = False
        """The client waits for status 100 before it sends the body."""
        self.idle_since = 0
        """Monotonic time at which the last reply ended."""
        self.ancillary: list[tuple[int, int, bytes]] = []
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.body: list[bytes] = []
        self.hasher: Any = None
        server.loop.add_reader(self.fd, self.on_readable)

    def on_readable(self) -> None:
        try:
            size, self.ancillary, _, _ = self.recv(BUFFERS, CONTROL_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if not size:
            # A client that closes only its sending side looks like one that cancels; both end the connection.
            self.close()
            return
        if self.closing:
            return
        if self.active is not None:
            self.active.keep_alive = False
            self.closing = True
            return
        try:
            self.parser.feed_data(READ_BUFFER[:size])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.closing = True
            self.received = MockRequest(self, b"", self.url, {}, keep_alive=False)
            self.received.parse_error = f"this is not a plain HTTP/1.1 request ({type(error).__name__}: {error})"
        if self.received is not None:
            self.active, self.received = self.received, None
            self.server.answer(self.active)
        elif self.expects_continue:
            self.expects_continue = False
            self.write(CONTINUE)

    # callbacks of the parser

    def on_message_begin(self) -> None:
        self.receiving = True
        self.url = b""
        self.headers = {}
        self.body = []

    def on_url(self, url: bytes) -> None:
        self.url = self.url + url if self.url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in KEPT_HEADERS:
            self.headers[name] = value

    def on_headers_complete(self) -> None:
        self.expects_continue = self.headers.get(b"expect", b"").lower() == b"100-continue"
        log = self.server.log
        self.hasher = hashlib.sha256() if log is not None and log.hashes else None

    def on_body(self, data: bytes) -> None:
        self.body.append(data)
        if self.hasher is not None:
            self.hasher.update(data)

    def on_message_complete(self) -> None:
        parser = self.parser
        self.receiving = self.expects_continue = False
        if self.received is not None:
            self.received.keep_alive = False
            self.closing = True
            return
        request = MockRequest(self, parser.get_method(), self.url, self.headers, keep_alive=parser.should_keep_alive())
        if parser.get_http_version() != "1.1":
            request.keep_alive = False
            request.parse_error = "the mock serves HTTP/1.1 only"
        body = self.body
        request.body = body[0] if len(body) == 1 else b"".join(body)
        self.body = []
        if self.hasher is not None:
            request.sha256 = self.hasher.hexdigest()
        if self.ancillary:
            seconds, nanoseconds = TIMESPEC.unpack(self.ancillary[0][2])
            request.arrived_ns = seconds * 1_000_000_000 + nanoseconds
            request.kernel_stamped = True
        else:
            request.arrived_ns = time_ns()
        self.received = request

    # writing

    def write(self, data: bytes) -> bool:
        """Write `data` and tell whether the socket accepted all of it."""
        if self.unsent:
            self._keep_unsent(memoryview(data))
            return False
        try:
            sent = self.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()
            return False
        if sent == len(data):
            return True
        self._keep_unsent(memoryview(data)[sent:])
        return False

    def _keep_unsent(self, data: memoryview) -> None:
        self.unsent.append(data)
        self.unsent_bytes += len(data)
        if not self.writer_added:
            self.writer_added = True
            self.server.loop.add_writer(self.fd, self.on_writable)

    def on_writable(self) -> None:
        unsent = self.unsent
        while unsent:
            data = unsent[0]
            try:
                sent = self.send(data)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                return
            self.unsent_bytes -= sent
            if sent < len(data):
                unsent[0] = data[sent:]
                return
            unsent.popleft()
        self.server.loop.remove_writer(self.fd)
        self.writer_added = False
        if self.active is not None:
            self.active.resume()
        elif self.closing:
            self.shut()

    @property
    def full(self) -> bool:
        return self.unsent_bytes > MAX_UNSENT_BYTES

    # closing

    def reply_ended(self, keep_alive: bool) -> None:
        """Called when the active request has written its whole reply."""
        self.active = None
        self.idle_since = monotonic_ns()
        if not keep_alive:
            self.closing = True
            if not self.unsent:
                self.shut()

    def shut(self) -> None:
        """Send FIN, and keep reading for `LINGER_NS`."""
        if self.shut_down or self.closed:
            return
        self.shut_down = self.closing = True
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        self.idle_since = monotonic_ns()
        self.server.pacer.push(self.idle_since + LINGER_NS, self)

    def reset(self) -> None:
        """Send RST instead of FIN and discard unsent bytes."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = self.closing = True
        loop = self.server.loop
        loop.remove_reader(self.fd)
        if self.writer_added:
            loop.remove_writer(self.fd)
        self.unsent.clear()
        self.sock.close()
        self.parser = None  # breaks the reference cycle between the parser and the connection
        request, self.active = self.active, None
        if request is not None:
            request.abort()
        self.server.connections.discard(self)

    def on_due(self, now: int) -> int:
        """Called by the pacer: close a connection that lingers, or one that is idle for too long."""
        if self.closed:
            return 0
        limit = LINGER_NS if self.shut_down else self.server.idle_ns
        if self.active is not None or (self.receiving and not self.shut_down):
            return now + limit
        if now - self.idle_since < limit:
            return self.idle_since + limit
        if self.shut_down:
            self.close()
        else:
            self.shut()
        return 0
