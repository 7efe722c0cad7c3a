"""Reads the body of a request. It counts against the memory of the worker until the request ends."""

from __future__ import annotations

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from penstock.gateway.ending import CallerGoneError
from penstock.gateway.inbound.connection import CallerRequest
from penstock.gateway.inbound.large_bodies import join
from penstock.gateway.memory import Holding
from penstock.gateway.refusal import Refusal
from penstock.gateway.replies import too_large


class BodyEndedError(Exception):
    """The gateway does not wait for the rest of the body."""


class BodyReader:
    """The body of one request."""

    def __init__(self, request: CallerRequest, holding: Holding, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._holding = holding
        self._request = request
        self._length: int | None = None
        self.waiting = False
        """True while the body has not arrived."""

    def check_length(self) -> None:
        """Raise Refusal if the announced length exceeds the limit."""
        length = self._request.headers.get("content-length")
        if length is not None:
            if int(length) > self._max_bytes:
                raise too_large(self._max_bytes)
            self._length = int(length)

    async def read(self) -> bytes:
        """Return the body. Raise Refusal, BodyEndedError, or CallerGoneError if the caller leaves before its end."""
        request = self._request
        payload = request.content
        if self._length is not None:
            self._holding.take_body(self._length)
        if payload.is_eof() and payload.exception() is None:
            data = payload.read_nowait()
            if self._length is None:
                self._count(len(data))
            return data
        if not request.is_http10 and request.headers.get("expect", "").lower() == "100-continue":
            request.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.waiting = True
        try:
            return await join(await self._pieces())
        except ConnectionError:
            raise CallerGoneError from None
        except (web.RequestPayloadError, HttpProcessingError):
            message = "The chunks of the request body are not valid."
            raise Refusal(400, "invalid_request_error", message) from None
        finally:
            self.waiting = False

    async def _pieces(self) -> list[bytes]:
        pieces: list[bytes] = []
        payload = self._request.content
        size = 0
        while piece := await payload.readany():
            pieces.append(piece)
            size += len(piece)
            if self._length is None:
                self._count(size, len(piece))
        error = payload.exception()
        if error is not None:  # a read that waits when the body breaks only returns its end
            raise error
        return pieces

    def _count(self, size: int, more: int | None = None) -> None:
        """Check the size so far of a body whose length was not announced, and hold `more` bytes."""
        if size > self._max_bytes:
            raise too_large(self._max_bytes)
        self._holding.take_body(size if more is None else more)

    def end(self) -> None:
        """Raise BodyEndedError in `read`, if that is waiting."""
        if self.waiting:
            self._request.content.set_exception(BodyEndedError())
