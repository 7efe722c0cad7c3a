"""One request, and the reply to it while it is written."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING

from penstock.mock.request_log import LoggedRequest
from penstock.mock.write_steps import HANG, RESET, Step

if TYPE_CHECKING:
    from penstock.mock.connection import Connection
    from penstock.mock.dialect import Say

__all__ = ["MockRequest"]

TURN = 512
"""Writes in a row before other calls have theirs."""
SANE_NS = 10_000_000_000
"""A request that seems to have waited longer than this was stamped before the wall clock was set."""
CLOSE_NS = 5_000
"""Readings of two clocks that are further apart than this were interrupted."""


def since(arrived: int) -> tuple[int, int]:
    """The monotonic clock now, and how long ago `arrived`, a stamp on the wall clock, was."""
    for _ in range(4):
        before = monotonic_ns()
        waited = time_ns() - arrived
        now = monotonic_ns()
        if now - before < CLOSE_NS:
            break
    return now, waited if 0 <= waited < SANE_NS else 0


class MockRequest:
    __slots__ = (
        "arrived",
        "base",
        "blocked",
        "body",
        "conn",
        "fault",
        "first_write",
        "headers",
        "keep",
        "method",
        "number",
        "over",
        "paused",
        "say",
        "sha256",
        "stamped",
        "status",
        "step",
        "steps",
        "tokens",
        "url",
        "write_tokens",
        "writes",
        "wrong",
    )

    def __init__(self, conn: Connection, method: bytes, url: bytes, headers: dict[bytes, bytes], *, keep: bool) -> None:
        self.conn = conn
        self.method = method
        self.url = url
        self.headers = headers
        self.keep = keep
        """The connection outlives the reply."""
        self.body = b""
        self.sha256: str | None = None
        self.arrived = 0
        self.stamped = False
        self.wrong: str | None = None
        """Why it is no request at all."""
        self.number: int | None = None
        self.say: Say | None = None
        self.status = 200
        self.fault: str | None = None
        self.tokens = 0
        self.first_write: int | None = None
        self.writes: list[int] | None = None
        self.write_tokens: list[int] | None = None
        self.blocked = 0
        self.over = False
        self.paused = False

    # ways to answer

    def send(self, data: bytes, tokens: int = 0) -> None:
        """The whole reply in one write."""
        if tokens:
            now = self.first_write = time_ns()
            if self.writes is not None and self.write_tokens is not None:
                self.writes.append(now)
                self.write_tokens.append(tokens)
        if not self.conn.write(data):
            if self.over:
                return
            self.blocked += 1
        self.tokens = tokens
        self.finish("complete")

    def play(self, steps: Iterator[Step]) -> None:
        """The reply step by step, on a schedule that counts from the request's arrival."""
        conn = self.conn
        now, waited = since(self.arrived)
        self.base = now - waited
        self.steps = steps
        self.step = next(steps)
        due = self.base + self.step[0]
        if due <= now:
            due = self.fire(now)
        if due:
            conn.server.pacer.push(due, self)

    def fire(self, now: int) -> int:
        """Write the step that is due, and others that are by now. Returns when to be called again; 0 is never."""
        conn = self.conn
        left = TURN
        while not self.over:
            _, data, tokens, act = self.step
            if act:
                self.stop(act)
                return 0
            if conn.held and conn.full:
                self.paused = True
                return 0
            if tokens:
                stamp = time_ns()
                if self.first_write is None:
                    self.first_write = stamp
                if self.writes is not None and self.write_tokens is not None:
                    self.writes.append(stamp)
                    self.write_tokens.append(tokens)
                self.tokens += tokens
            if not conn.write(data):
                self.blocked += 1
            for step in self.steps:
                self.step = step
                due = self.base + step[0]
                left -= 1
                if due > now or not left:
                    return due
                break
            else:
                if not self.over:
                    self.finish("complete")
        return 0

    def resume(self) -> None:
        """The client has taken what was held."""
        if self.paused:
            self.paused = False
            self.conn.server.pacer.push(monotonic_ns(), self)

    # ways to end

    def stop(self, act: int) -> None:
        if act == HANG:
            return
        self.keep = False
        if act == RESET:
            self.close("cut")
            self.conn.active = None
            self.conn.reset()
        else:
            self.finish("cut")

    def finish(self, end: str) -> None:
        self.close(end)
        self.conn.ended(self.keep)

    def abort(self) -> None:
        """The client left."""
        if not self.over:
            self.close("aborted")

    def close(self, end: str) -> None:
        self.over = True
        self.conn.server.done(self, end)

    def truth(self, end: str) -> LoggedRequest:
        say = self.say
        reasoning = 0
        if say is not None:
            reasoning = min(self.tokens, say.reasoning * say.ask.choices)
        request_id = self.headers.get(b"x-request-id")
        correlation_id = self.headers.get(b"x-correlation-id")
        return LoggedRequest(
            k=self.number,
            request_id=None if request_id is None else request_id.decode("latin-1"),
            correlation_id=None if correlation_id is None else correlation_id.decode("latin-1"),
            connection=self.conn.number,
            method=self.method.decode("latin-1"),
            path=self.url.decode("latin-1"),
            stream=say is not None and say.ask.stream,
            status=self.status,
            arrived_ns=self.arrived,
            kernel_stamp=self.stamped,
            first_write_ns=self.first_write,
            ended_ns=time_ns(),
            tokens=self.tokens,
            reasoning_tokens=reasoning,
            prompt_tokens=0 if say is None else say.ask.prompt_tokens,
            completion_tokens=0 if say is None else say.completion,
            images=0 if say is None else say.ask.images,
            audios=0 if say is None else say.ask.audios,
            fault=self.fault,
            end=end,
            blocked=self.blocked,
            body_bytes=len(self.body),
            body_sha256=self.sha256,
            write_ns=self.writes,
            write_tokens=self.write_tokens,
        )
