"""The response to the caller: whole replies and streams, with the headers that both share."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.gateway.observe.timing import server_timing
from penstock.gateway.relay.context import WorkerContext
from penstock.gateway.relay.response_stream import ResponseStream
from penstock.gateway.rsgi import HTTPProtocol

__all__ = ["CallerResponse"]


class CallerResponse:
    """Sends the response of one request."""

    __slots__ = ("_address", "_context", "_extra_headers", "_id_headers", "protocol", "stream")

    def __init__(
        self, context: WorkerContext, address: str, protocol: HTTPProtocol, id_headers: list[tuple[str, str]]
    ) -> None:
        self._context = context
        self._address = address
        self._id_headers = id_headers
        self.protocol = protocol
        self.stream: ResponseStream | None = None
        """None until the head of a stream has been sent."""
        self._extra_headers: tuple[tuple[str, str], ...] = ()

    def set_headers(self, headers: tuple[tuple[str, str], ...]) -> None:
        """Set headers that are sent with any kind of reply."""
        self._extra_headers = headers

    def set_header(self, name: str, value: str) -> None:
        """Set a header, replacing the one of an earlier attempt."""
        self._extra_headers = (*(pair for pair in self._extra_headers if pair[0] != name), (name, value))

    def send(
        self,
        status: int,
        content_type: tuple[str, str],
        body: bytes,
        phases_ms: Mapping[str, float],
        *more: tuple[str, str],
    ) -> None:
        extra = self._extra_headers
        headers = [
            content_type,
            ("server-timing", server_timing(phases_ms)),
            *self._context.common_headers,
            *self._id_headers,
            *extra,
        ]
        if more:
            headers += [pair for pair in more if pair not in extra]
        self.protocol.response_bytes(status, headers, body)

    def begin_stream(
        self, status: int, content_type: tuple[str, str], phases_ms: Mapping[str, float], more: tuple[str, str]
    ) -> ResponseStream:
        """Send the head of a body that is sent in pieces."""
        headers = [
            content_type,
            more,
            ("server-timing", server_timing(phases_ms)),
            *self._context.common_headers,
            *self._id_headers,
            *self._extra_headers,
        ]
        context = self._context
        self.stream = ResponseStream(
            context.loop, context.client_sockets, self._address, self.protocol, status, headers
        )
        return self.stream
