"""One client connection: bytes in, requests out in their order; replies in, bytes out.

Reads go through one buffer that all connections share, and carry the kernel's stamp where there is one. Requests are not
pipelined: a connection closes after the reply during which more bytes arrived. What the client does not take is held, and
when too much is held, its call waits.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import sys
from collections import deque
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any

import httptools

from penstock.mock.request import MockRequest

if TYPE_CHECKING:
    from penstock.mock.server import Server

__all__ = ["Connection"]

SO_TIMESTAMPNS = 35
STAMPED = sys.platform == "linux"
TIMESPEC = struct.Struct("@ll")
CONTROL_SPACE = socket.CMSG_SPACE(TIMESPEC.size) if STAMPED else 0

BUFFER = bytearray(256 << 10)
BUFFERS = [BUFFER]
VIEW = memoryview(BUFFER)

HELD_BYTES = 1 << 20
"""More than this waiting for the client, and the reply pauses."""
LINGER_NS = 2_000_000_000
"""How long a connection that we closed may still read, so that no reset destroys the end of the reply."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WANTED = frozenset((b"x-mock", b"x-request-id", b"x-correlation-id", b"expect"))


class Connection:
    __slots__ = (
        "active",
        "ancillary",
        "body",
        "closed",
        "closing",
        "expects",
        "fd",
        "half",
        "hasher",
        "headers",
        "held",
        "held_bytes",
        "idle_since",
        "number",
        "parser",
        "reading",
        "received",
        "recv",
        "send",
        "server",
        "sock",
        "url",
        "writing",
    )

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
        """A complete request that is not yet answered."""
        self.active: MockRequest | None = None
        self.held: deque[memoryview] = deque()
        self.held_bytes = 0
        self.writing = False
        self.closing = False
        """No further request is read; the connection ends when all is written."""
        self.half = False
        """Our side is shut; what the client still sends is thrown away."""
        self.closed = False
        self.reading = False
        """A request has begun to arrive."""
        self.expects = False
        """Its client waits for leave to send the body."""
        self.idle_since = 0
        """When its last reply ended."""
        self.ancillary: list[tuple[int, int, bytes]] = []
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.body: list[bytes] = []
        self.hasher: Any = None
        server.loop.add_reader(self.fd, self.readable)

    # bytes in

    def readable(self) -> None:
        try:
            size, self.ancillary, _, _ = self.recv(BUFFERS, CONTROL_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if not size:
            # A client that shuts only its sending side looks the same as one that cancels: both are gone.
            self.lose()
            return
        if self.closing:
            return
        if self.active is not None:
            self.active.keep = False
            self.closing = True
            return
        try:
            self.parser.feed_data(VIEW[:size])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.closing = True
            self.received = MockRequest(self, b"", self.url, {}, keep=False)
            self.received.wrong = f"this is not a plain HTTP/1.1 request ({type(error).__name__}: {error})"
        if self.received is not None:
            self.active, self.received = self.received, None
            self.server.answer(self.active)
        elif self.expects:
            self.expects = False
            self.write(CONTINUE)

    # what the parser finds

    def on_message_begin(self) -> None:
        self.reading = True
        self.url = b""
        self.headers = {}
        self.body = []

    def on_url(self, url: bytes) -> None:
        self.url = self.url + url if self.url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in WANTED:
            self.headers[name] = value

    def on_headers_complete(self) -> None:
        self.expects = self.headers.get(b"expect", b"").lower() == b"100-continue"
        log = self.server.log
        self.hasher = hashlib.sha256() if log is not None and log.hashes else None

    def on_body(self, data: bytes) -> None:
        self.body.append(data)
        if self.hasher is not None:
            self.hasher.update(data)

    def on_message_complete(self) -> None:
        parser = self.parser
        self.reading = self.expects = False
        if self.received is not None:
            self.received.keep = False
            self.closing = True
            return
        call = MockRequest(self, parser.get_method(), self.url, self.headers, keep=parser.should_keep_alive())
        if parser.get_http_version() != "1.1":
            call.keep = False
            call.wrong = "the mock serves HTTP/1.1 only"
        body = self.body
        call.body = body[0] if len(body) == 1 else b"".join(body)
        self.body = []
        if self.hasher is not None:
            call.sha256 = self.hasher.hexdigest()
        if self.ancillary:
            seconds, nanoseconds = TIMESPEC.unpack(self.ancillary[0][2])
            call.arrived = seconds * 1_000_000_000 + nanoseconds
            call.stamped = True
        else:
            call.arrived = time_ns()
        self.received = call

    # bytes out

    def write(self, data: bytes) -> bool:
        """Whether all of it went out at once."""
        if self.held:
            self.hold(memoryview(data))
            return False
        try:
            sent = self.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.lose()
            return False
        if sent == len(data):
            return True
        self.hold(memoryview(data)[sent:])
        return False

    def hold(self, data: memoryview) -> None:
        self.held.append(data)
        self.held_bytes += len(data)
        if not self.writing:
            self.writing = True
            self.server.loop.add_writer(self.fd, self.writable)

    def writable(self) -> None:
        held = self.held
        while held:
            data = held[0]
            try:
                sent = self.send(data)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.lose()
                return
            self.held_bytes -= sent
            if sent < len(data):
                held[0] = data[sent:]
                return
            held.popleft()
        self.server.loop.remove_writer(self.fd)
        self.writing = False
        if self.active is not None:
            self.active.resume()
        elif self.closing:
            self.shut()

    @property
    def full(self) -> bool:
        return self.held_bytes > HELD_BYTES

    # ends

    def ended(self, keep: bool) -> None:
        """The active call has written all it will."""
        self.active = None
        self.idle_since = monotonic_ns()
        if not keep:
            self.closing = True
            if not self.held:
                self.shut()

    def shut(self) -> None:
        """Send FIN, and read on for a moment."""
        if self.half or self.closed:
            return
        self.half = self.closing = True
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.lose()
            return
        self.idle_since = monotonic_ns()
        self.server.pacer.push(self.idle_since + LINGER_NS, self)

    def reset(self) -> None:
        """Send RST instead of FIN, whatever is still on its way."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.lose()

    def lose(self) -> None:
        if self.closed:
            return
        self.closed = self.closing = True
        loop = self.server.loop
        loop.remove_reader(self.fd)
        if self.writing:
            loop.remove_writer(self.fd)
        self.held.clear()
        self.sock.close()
        self.parser = None  # the parser and its connection refer to each other
        call, self.active = self.active, None
        if call is not None:
            call.abort()
        self.server.forget(self)

    def fire(self, now: int) -> int:
        """Called by the pacer: to end a closed connection, or one that is idle for too long."""
        if self.closed:
            return 0
        limit = LINGER_NS if self.half else self.server.idle_ns
        if self.active is not None or (self.reading and not self.half):
            return now + limit
        if now - self.idle_since < limit:
            return self.idle_since + limit
        if self.half:
            self.lose()
        else:
            self.shut()
        return 0
