"""The response to the caller: whole replies, refusals and streams, with the headers that all of them share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.gateway.observe.timing import server_timing
from penstock.gateway.refusal import Refusal
from penstock.gateway.relay.accounting import Accounting
from penstock.gateway.relay.replies import JSON, content_type
from penstock.gateway.relay.response_stream import ResponseStream
from penstock.gateway.relay.upstream import Target
from penstock.gateway.relay.upstream_attempt import UpstreamAttempt
from penstock.gateway.rsgi import HTTPProtocol

if TYPE_CHECKING:
    from penstock.gateway.serving.app import App

__all__ = ["CallerResponse"]

_MAX_ID_CHARS = 256


class CallerResponse:
    """Sends the response of one request."""

    __slots__ = ("_address", "_app", "_extra_headers", "accounting", "protocol", "request_id", "stream")

    def __init__(self, app: App, address: str, protocol: HTTPProtocol, request_id: str, accounting: Accounting) -> None:
        self._app = app
        self._address = address
        self.protocol = protocol
        self.request_id = request_id
        self.accounting = accounting
        self.stream: ResponseStream | None = None
        """None until the head of a stream has been sent."""
        self._extra_headers: tuple[tuple[str, str], ...] = ()

    def set_headers(self, headers: tuple[tuple[str, str], ...]) -> None:
        """Set headers that are sent with any kind of reply."""
        self._extra_headers = headers

    def send(self, status: int, kind: tuple[str, str], body: bytes, *more: tuple[str, str]) -> None:
        self.accounting.entry.bytes_out = len(body)
        headers = [
            kind,
            ("server-timing", server_timing(self.accounting.phases_at_head())),
            *self._app.common_headers,
            ("x-penstock-request-id", self.request_id),
            *self._extra_headers,
            *more,
        ]
        self.protocol.response_bytes(status, headers, body)

    def refuse(self, refusal: Refusal) -> None:
        self.accounting.record_failure(refusal.status, refusal.type)
        self.accounting.entry.limited_by = refusal.limited_by
        more = [pair for pair in refusal.headers if pair not in self._extra_headers]
        if refusal.retry_after is not None:
            more.append(("retry-after", str(refusal.retry_after)))
        self.send(refusal.status, JSON, refusal.body(), *more)

    def begin_stream(self, attempt: UpstreamAttempt) -> ResponseStream:
        """Send the head of a stream."""
        self.add_upstream_headers(attempt)
        self.add_served_by(attempt.target)
        headers = [
            content_type(attempt, "text/event-stream"),
            ("cache-control", "no-cache"),
            ("server-timing", server_timing(self.accounting.phases_at_first_byte(attempt.exchange, attempt.guard_s))),
            *self._app.common_headers,
            ("x-penstock-request-id", self.request_id),
            *self._extra_headers,
        ]
        app, status = self._app, attempt.exchange.status
        self.stream = ResponseStream(app.loop, app.client_sockets, self._address, self.protocol, status, headers)
        return self.stream

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
            self.accounting.entry.bytes_out = self.stream.sent

    def add_upstream_headers(self, attempt: UpstreamAttempt) -> None:
        """Pass on the upstream's request id."""
        value = attempt.headers.get(b"x-request-id")
        if value and len(value) <= _MAX_ID_CHARS and value.isascii():
            upstream_id = value.decode()
            if upstream_id.isprintable() and attempt.target.redact(upstream_id) == upstream_id:
                self._set_header("x-upstream-request-id", upstream_id)

    def add_served_by(self, target: Target) -> None:
        """Name the model of a group that served the request."""
        if target.model.name != self.accounting.entry.model:
            self._set_header("x-penstock-served-by", target.model.name)

    def _set_header(self, name: str, value: str) -> None:
        """Set a header, replacing the one of an earlier attempt."""
        self._extra_headers = (*(pair for pair in self._extra_headers if pair[0] != name), (name, value))
