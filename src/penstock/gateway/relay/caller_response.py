"""The one who asked: everything that is sent to it, and the headers that go with whatever it is."""

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

_LONGEST_ID = 256


class CallerResponse:
    __slots__ = ("_address", "_app", "_kept", "books", "outlet", "protocol", "request_id")

    def __init__(self, app: App, address: str, protocol: HTTPProtocol, request_id: str, books: Accounting) -> None:
        self._app = app
        self._address = address
        self.protocol = protocol
        self.request_id = request_id
        self.books = books
        self.outlet: ResponseStream | None = None
        """None until the head of a stream has been sent."""
        self._kept: tuple[tuple[str, str], ...] = ()

    def keep(self, headers: tuple[tuple[str, str], ...]) -> None:
        """These go with the reply, whatever it is."""
        self._kept = headers

    def answer(self, status: int, kind: tuple[str, str], body: bytes, *more: tuple[str, str]) -> None:
        self.books.entry.bytes_out = len(body)
        headers = [
            kind,
            ("server-timing", server_timing(self.books.phases_at_head())),
            *self._app.standing_headers,
            ("x-penstock-request-id", self.request_id),
            *self._kept,
            *more,
        ]
        self.protocol.response_bytes(status, headers, body)

    def refuse(self, refusal: Refusal) -> None:
        self.books.failed(refusal.status, refusal.type)
        self.books.entry.limited_by = refusal.limited_by
        more = [pair for pair in refusal.headers if pair not in self._kept]
        if refusal.retry_after is not None:
            more.append(("retry-after", str(refusal.retry_after)))
        self.answer(refusal.status, JSON, refusal.body(), *more)

    def begin_stream(self, forward: UpstreamAttempt) -> ResponseStream:
        """Send the head of a stream."""
        self.note_upstream(forward)
        self.note_target(forward.target)
        headers = [
            content_type(forward, "text/event-stream"),
            ("cache-control", "no-cache"),
            ("server-timing", server_timing(self.books.phases_at_first_byte(forward.exchange, forward.guard_s))),
            *self._app.standing_headers,
            ("x-penstock-request-id", self.request_id),
            *self._kept,
        ]
        app, status = self._app, forward.exchange.status
        self.outlet = ResponseStream(app.loop, app.peers, self._address, self.protocol, status, headers)
        return self.outlet

    def close(self) -> None:
        if self.outlet is not None:
            self.outlet.close()
            self.books.entry.bytes_out = self.outlet.sent

    def note_upstream(self, forward: UpstreamAttempt) -> None:
        """The upstream's headers that a caller gets to see."""
        value = forward.headers.get(b"x-request-id")
        if value and len(value) <= _LONGEST_ID and value.isascii():
            given = value.decode()
            if given.isprintable() and forward.target.redact(given) == given:
                self._note("x-upstream-request-id", given)

    def note_target(self, target: Target) -> None:
        """Which of a group's models it was."""
        if target.model.name != self.books.entry.model:
            self._note("x-penstock-served-by", target.model.name)

    def _note(self, name: str, value: str) -> None:
        """Of several attempts the last counts."""
        self._kept = (*(pair for pair in self._kept if pair[0] != name), (name, value))
