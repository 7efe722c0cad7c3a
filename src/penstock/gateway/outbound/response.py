"""The response to the caller: whole replies, and bodies that are sent in pieces, with the headers that both share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from time import time

from penstock.gateway.inbound.connection import CallerConnection, CallerRequest
from penstock.gateway.observe.timing import server_timing
from penstock.gateway.outbound.cross_origin import CrossOrigin

Header = tuple[str, str]

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class CommonHeaders:
    """The headers of all responses of a worker: the date, those for pages of other origins, and `Connection: close` while it
    drains."""

    def __init__(self, cors_origins: tuple[str, ...] = ()) -> None:
        self.cross_origin = CrossOrigin(cors_origins)
        self.draining = False
        self._date = ""
        self._date_s = 0

    def date(self) -> str:
        """Return the current date as HTTP writes it. Formatting takes 3 µs, so it is done once a second."""
        now = int(time())
        if now != self._date_s:
            self._date_s, self._date = now, formatdate(now, usegmt=True)
        return self._date


class ResponseStream:
    """A body that is sent in pieces. Its head is written with its first piece, and its end with the last one if that arrives in
    the same iteration of the event loop: a write to a socket takes 10 µs."""

    def __init__(self, connection: CallerConnection, head: bytes, length: int | None, *, chunked: bool) -> None:
        self._connection = connection
        self._unwritten = head
        self._length = length
        self._chunked = chunked
        self._ended = False
        self.sent = 0
        self.closed = False
        """True if the caller has closed the connection."""

    @property
    def is_cut(self) -> bool:
        """True if the caller has been sent less than was announced."""
        return self._length is not None and self.sent < self._length

    @property
    def full(self) -> bool:
        """True if the caller does not read: wait until it is writable."""
        return self._connection.full

    def send(self, data: bytes, *, is_last: bool = False) -> None:
        """Send a piece. If it `is_last`, wait for `close` until the next iteration of the event loop."""
        if self._ended or not data:
            return
        self._unwritten += b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
        if is_last:
            self._connection.call_after_next(self._write)
        else:
            self._write()
        if not self.closed:
            self.sent += len(data)

    def _write(self) -> None:
        data, self._unwritten = self._unwritten, b""
        if data and not self._connection.write(data):
            self.closed = True

    def wait_until_writable(self, on_writable: Callable[[], None]) -> None:
        """Call `on_writable` once, when the caller has read on or has disconnected."""
        self._connection.on_writable = on_writable

    def close(self) -> None:
        """End the body."""
        if not self._ended:
            self._ended = True
            self._connection.on_writable = None
            if self._chunked:
                self._unwritten += b"0\r\n\r\n"
            self._write()


class CallerResponse:
    """Sends the response of one request."""

    def __init__(
        self, common: CommonHeaders, request: CallerRequest, id_headers: tuple[str, ...], request_id: str
    ) -> None:
        self._common = common
        self._connection = request.connection
        self._is_http10 = request.is_http10
        self._is_head = request.method == "HEAD"
        self._ids = "".join([f"{name}: {request_id}\r\n" for name in id_headers])
        if common.cross_origin:
            for name, value in common.cross_origin.headers(request.headers.get("origin")):
                self._ids += f"{name}: {value}\r\n"
        self._keeps_alive = request.keep_alive
        self.stream: ResponseStream | None = None
        """None until the head of a stream has been sent."""
        self._extra_headers: tuple[Header, ...] = ()

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another request after this one."""
        return self._keeps_alive and (self.stream is None or not self.stream.is_cut)

    def set_headers(self, headers: tuple[Header, ...]) -> None:
        """Set headers that are sent with any kind of reply."""
        self._extra_headers = headers

    def set_header(self, name: str, value: str) -> None:
        """Set a header, replacing the one of an earlier attempt."""
        self._extra_headers = (*(pair for pair in self._extra_headers if pair[0] != name), (name, value))

    def send(self, status: int, body: bytes, phases_ms: Mapping[str, float], *headers: Header) -> None:
        """Send a whole reply."""
        head = self._head(status, phases_ms, headers, ("content-length", str(len(body))))
        self._connection.write(head if self._is_head else head + body)

    def begin_stream(
        self, status: int, phases_ms: Mapping[str, float], *headers: Header, length: int | None = None
    ) -> ResponseStream:
        """Begin a body that is sent in pieces. Without a length, the body of HTTP/1.0 ends with the connection."""
        chunked = length is None and not self._is_http10
        if length is not None:
            framing: tuple[Header, ...] = (("content-length", str(length)),)
        elif chunked:
            framing = (("transfer-encoding", "chunked"),)
        else:
            self._keeps_alive = False
            framing = ()
        head = self._head(status, phases_ms, headers, *framing)
        self.stream = ResponseStream(self._connection, head, length, chunked=chunked)
        return self.stream

    def _head(
        self, status: int, phases_ms: Mapping[str, float], headers: tuple[Header, ...], *framing: Header
    ) -> bytes:
        extra = self._extra_headers
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\ndate: {self._common.date()}\r\n"
            f"server-timing: {server_timing(phases_ms)}\r\n{self._ids}"
        )
        for name, value in extra:
            head += f"{name}: {value}\r\n"
        for header in (*headers, *framing):
            if header not in extra:
                head += f"{header[0]}: {header[1]}\r\n"
        if self._common.draining:
            self._keeps_alive = False
        if not self._keeps_alive:
            head += "connection: close\r\n"
        elif self._is_http10:
            head += "connection: keep-alive\r\n"
        return f"{head}\r\n".encode()
