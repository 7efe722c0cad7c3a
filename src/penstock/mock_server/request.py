"""One request, and the reply to it while it is written."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING

from penstock.mock_server.request_log import LoggedRequest
from penstock.mock_server.write_steps import HANG, RESET, Step

if TYPE_CHECKING:
    from penstock.mock_server.connection import Connection
    from penstock.mock_server.dialect import PlannedReply

WRITES_IN_A_ROW = 512
"""Writes of one reply before other replies may write."""
LONGEST_WAIT_NS = 10_000_000_000
"""A longer wait between arrival and reply means that the wall clock was set in between."""
CLOCK_READ_NS = 5_000
"""A longer time between readings of the two clocks means that the process was interrupted."""


def time_since(arrived_ns: int) -> tuple[int, int]:
    """Return the monotonic time now, and the nanoseconds since `arrived_ns` on the wall clock."""
    for _ in range(4):
        before = monotonic_ns()
        waited = time_ns() - arrived_ns
        now = monotonic_ns()
        if now - before < CLOCK_READ_NS:
            break
    return now, waited if 0 <= waited < LONGEST_WAIT_NS else 0


class MockRequest:
    def __init__(
        self, connection: Connection, method: bytes, url: bytes, headers: dict[bytes, bytes], *, keep_alive: bool
    ) -> None:
        self.connection = connection
        self.method = method
        self.url = url
        self.headers = headers
        self.keep_alive = keep_alive
        """The connection stays open after the reply."""
        self.body = b""
        self.sha256: str | None = None
        self.arrived_ns = 0
        self.base_ns = 0
        """Monotonic time from which the times of the steps count: when the request arrived, or got its slot."""
        self.has_slot = False
        self.queue_ns = 0
        self.kernel_stamped = False
        self.parse_error: str | None = None
        self.number: int | None = None
        self.planned: PlannedReply | None = None
        self.status = 200
        self.fault: str | None = None
        self.tokens = 0
        self.first_write_ns: int | None = None
        self.write_ns: list[int] | None = None
        self.write_tokens: list[int] | None = None
        self.blocked_writes = 0
        self.end_due_ns = 0
        """Monotonic time at which the last byte was due; 0 if the reply is not complete or the client delayed it."""
        self.ended = False
        self.ended_ns = 0
        self.paused = False

    # writing the reply

    def send(self, data: bytes, tokens: int = 0) -> None:
        """Send the whole reply in one write."""
        if tokens:
            now = self.first_write_ns = time_ns()
            if self.write_ns is not None and self.write_tokens is not None:
                self.write_ns.append(now)
                self.write_tokens.append(tokens)
        if not self.connection.write(data):
            if self.ended:
                return
            self.blocked_writes += 1
        self.tokens = tokens
        self.finish("complete")

    def send_steps(self, steps: Iterator[Step]) -> None:
        """Send the reply step by step, at times that count from the request's arrival, or from `base_ns` if it is set."""
        if self.base_ns:
            now = monotonic_ns()
        else:
            now, waited = time_since(self.arrived_ns)
            self.base_ns = now - waited
        self.steps = steps
        self.step = next(steps)
        due = self.base_ns + self.step[0]
        if due <= now:
            due = self.on_due(now)
        if due:
            self.connection.server.pacer.push(due, self)

    def on_due(self, now: int) -> int:
        """Write the steps that are due and return the time of the next one; 0 means never."""
        connection = self.connection
        writes_left = WRITES_IN_A_ROW
        while not self.ended:
            _, data, tokens, action = self.step
            if action:
                self.end_early(action)
                return 0
            if connection.unsent and connection.full:
                self.paused = True
                return 0
            if tokens:
                write_ns = time_ns()
                if self.first_write_ns is None:
                    self.first_write_ns = write_ns
                if self.write_ns is not None and self.write_tokens is not None:
                    self.write_ns.append(write_ns)
                    self.write_tokens.append(tokens)
                self.tokens += tokens
            if not connection.write(data):
                self.blocked_writes += 1
            for step in self.steps:
                self.step = step
                due = self.base_ns + step[0]
                writes_left -= 1
                if due > now or not writes_left:
                    return due
                break
            else:
                if not self.ended:
                    if not self.blocked_writes:
                        self.end_due_ns = self.base_ns + self.step[0]
                    self.finish("complete")
        return 0

    def resume(self) -> None:
        """Continue a paused reply after the client has read the unsent bytes."""
        if self.paused:
            self.paused = False
            self.connection.server.pacer.push(monotonic_ns(), self)

    # ending the reply

    def end_early(self, action: int) -> None:
        if action == HANG:
            return
        self.keep_alive = False
        if action == RESET:
            self.record_end("cut")
            self.connection.active = None
            self.connection.reset()
        else:
            self.finish("cut")

    def finish(self, end: str) -> None:
        self.record_end(end)
        self.connection.reply_ended(self.keep_alive)

    def abort(self) -> None:
        """Record that the client closed the connection before the end of the reply."""
        if not self.ended:
            self.record_end("aborted")

    def record_end(self, end: str) -> None:
        self.ended = True
        self.ended_ns = time_ns()
        self.connection.server.record_end(self, end)

    def log_entry(self, end: str) -> LoggedRequest:
        planned = self.planned
        parsed = None if planned is None else planned.request
        request_id = self.headers.get(b"x-request-id")
        correlation_id = self.headers.get(b"x-correlation-id")
        return LoggedRequest(
            k=self.number,
            request_id=None if request_id is None else request_id.decode("latin-1"),
            correlation_id=None if correlation_id is None else correlation_id.decode("latin-1"),
            connection=self.connection.number,
            method=self.method.decode("latin-1"),
            path=self.url.decode("latin-1"),
            stream=parsed is not None and parsed.stream,
            status=self.status,
            arrived_ns=self.arrived_ns,
            kernel_stamp=self.kernel_stamped,
            queue_ns=self.queue_ns,
            first_write_ns=self.first_write_ns,
            ended_ns=self.ended_ns,
            tokens=self.tokens,
            reasoning_tokens=0 if planned is None else min(self.tokens, planned.reasoning * planned.request.choices),
            prompt_tokens=0 if parsed is None else parsed.prompt_tokens,
            cached_tokens=0 if planned is None else planned.cached_tokens or 0,
            completion_tokens=0 if planned is None else planned.completion_tokens,
            images=0 if parsed is None else parsed.images,
            audios=0 if parsed is None else parsed.audios,
            fault=self.fault,
            end=end,
            blocked=self.blocked_writes,
            body_bytes=len(self.body),
            body_sha256=self.sha256,
            write_ns=self.write_ns,
            write_tokens=self.write_tokens,
        )
