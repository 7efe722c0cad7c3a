"""HTTP/1.1, without I/O: request heads out, response bytes in.

    feed(data) ─▶ head (status, headers) ─▶ pieces of body ─▶ complete
                                                     eof() ─▶ complete, or cut short

The parser is llhttp (httptools). Its body callback is the `append` method of a list, so that a piece of the body costs no
Python frame. This module adds what llhttp leaves to its caller: the end of a body without a declared length, interim
(1xx) replies, and whether the connection can serve another request.
"""

from __future__ import annotations

from collections.abc import Iterable

import httptools


class ProtocolError(Exception):
    """The reply is not valid HTTP/1.1."""


def request_head(method: str, target: str, host: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the request line and the constant headers; the caller appends the headers of each request and a blank line."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")


class ResponseReader:
    """Parses the responses of one connection, one after the other."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        """The body so far. The parser appends to this list as long as the reader exists: copy it before `reset`."""
        self._parser: httptools.HttpResponseParser | None = None
        self.reset()

    def reset(self) -> None:
        """Prepare for the next response."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case."""
        self.pieces.clear()
        self.complete = False
        self.started = False
        self.reusable = False
        self._delimited = False

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpResponseParser(_Callbacks(self))
        self.started = True
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise ProtocolError("it switches to another protocol without being asked to") from None
        except httptools.HttpParserError as error:
            if not self.complete:
                raise ProtocolError(str(error) or "not an HTTP/1.1 response") from None
            # Bytes after a complete response answer no request: the response is valid, but the connection is not reusable.
            self.reusable = False

    def eof(self) -> bool:
        """Return whether the end of the connection is a valid end of the body."""
        return self.status != 0 and not self._delimited

    def close(self) -> None:
        """Break the reference cycle with the parser."""
        self._parser = None


class _Callbacks:
    """The callbacks of httptools, in a class of their own so that `on_body` can be a list method."""

    def __init__(self, reader: ResponseReader) -> None:
        self._reader = reader
        self.on_body = reader.pieces.append

    def on_message_begin(self) -> None:
        if self._reader.complete:
            raise ProtocolError("a second response to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reader.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        reader = self._reader
        parser = reader._parser
        assert parser is not None
        status = parser.get_status_code()
        if status < 200 and status != 101:
            return
        reader.status = status
        reader.reusable = parser.should_keep_alive()
        for name, value in reader.headers:
            if name == b"content-length" or (name == b"transfer-encoding" and value.lower().endswith(b"chunked")):
                reader._delimited = True
        if status in (204, 304):
            reader._delimited = True

    def on_message_complete(self) -> None:
        reader = self._reader
        if reader.status == 0:  # an interim response: the final one follows
            reader.headers.clear()
            return
        reader.complete = True
