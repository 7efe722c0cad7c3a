"""Processes exchanges that have ended: interprets the reply and writes the record.

Exchanges wait in a queue and are processed in slices of 0.5 ms between polls of the event loop. If each were processed when
it ends, 500 streams that end together would stall the loop, and the first reads of the next streams would cover many tokens.
The queue is bounded: while it is full, the worker sends nothing new.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic_ns

import msgspec

from penstock.endpoints.base import Endpoint
from penstock.endpoints.reply import Failure, Reply
from penstock.records.interpret import interpret
from penstock.records.log import LogWriter
from penstock.records.raw_replies import ReplyWriter
from penstock.records.record import Record
from penstock.records.worker_report import WorkerReport
from penstock.secrets import redact_values
from penstock.wire.exchange import Exchange
from penstock.workers.live_measures import LiveMeasures

_SLICE_NS = 500_000
_MAX_QUEUED = 512
_MAX_BYTES = 64 << 20
_FROM_REPLY = (
    *("outputs", "reasonings", "head_outputs", "head_tokens", "finish", "usage", "model", "response_id", "warnings"),
    *("images", "stamps", "pieces", "coalesced", "earliest", "first_output"),
)
"""Fields of a record that an endpoint sets."""


class ReplyProcessor:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoint: Endpoint,
        log: LogWriter,
        report: WorkerReport,
        epoch: int,
        secrets: tuple[str, ...],
        on_reply: Callable[[Exchange, Record, Reply | None], None],
        on_space: Callable[[], None],
        replies: ReplyWriter | None = None,
    ) -> None:
        """`secrets` are removed from error messages; `on_reply` receives every exchange with its record and reply;
        `on_space` is called after each slice that leaves the queue less than half full. `replies` keeps the bytes of the
        replies."""
        self._loop = loop
        self._endpoint = endpoint
        self._log = log
        self.report = report
        """Counts are added to this report; the worker replaces it at the start of a phase."""
        self._epoch = epoch
        self._secrets = secrets
        self._on_reply = on_reply
        self._on_space = on_space
        self._replies = replies
        self.live = LiveMeasures()
        """Measures for the progress of a phase; the worker replaces them at its start."""
        self._queue: deque[Exchange] = deque()
        self._bytes = 0
        self._scheduled = False
        self.failed = 0

    def add(self, exchange: Exchange) -> None:
        self._queue.append(exchange)
        self._bytes += exchange.bytes_received
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._slice)

    @property
    def full(self) -> bool:
        return len(self._queue) >= _MAX_QUEUED or self._bytes >= _MAX_BYTES

    @property
    def empty(self) -> bool:
        return not self._queue

    def _slice(self) -> None:
        """Process exchanges for 0.5 ms, then let the loop poll."""
        deadline = monotonic_ns() + _SLICE_NS
        queue, endpoint, epoch, replies = self._queue, self._endpoint, self._epoch, self._replies
        while queue:
            exchange = queue.popleft()
            self._bytes -= exchange.bytes_received
            record, reply = interpret(exchange, endpoint, epoch)
            if record.failure is not None:
                record.failure = msgspec.structs.replace(
                    record.failure, message=redact_values(record.failure.message, self._secrets)
                )
            if replies is not None and exchange.start >= 0:
                record.raw_reply = replies.add(exchange, record.bytes_sent, epoch)
            try:
                self._log.record(record)
            except OSError:
                raise
            except Exception as error:  # values of another package's endpoint that cannot be encoded
                _drop_reply(record, error)
                reply = None
                self._log.record(record)
            self._count(record)
            self._on_reply(exchange, record, reply)
            if monotonic_ns() >= deadline:
                break
        if queue:
            self._loop.call_soon(self._slice)
        else:
            self._scheduled = False
        if len(queue) < _MAX_QUEUED // 2:
            self._on_space()

    def _count(self, record: Record) -> None:
        report = self.report
        report.requests += 1
        if record.failure is not None and not record.cancelled:
            self.failed += 1
        sampled = report.requests & 7 == 1  # every eighth is enough for the mean and for the progress
        if sampled:
            report.latency.add(record.end - record.start)
        self.live.count(record, sampled)


def _drop_reply(record: Record, error: Exception) -> None:
    """Turn the record into that of a failed request, without what the endpoint has read from the reply."""
    empty = Record(0, 0, 0, 0, 0, 0, 0, "", "", 0, 0)
    for name in _FROM_REPLY:
        setattr(record, name, getattr(empty, name))
    text = f"The log cannot hold what the endpoint has read from the reply ({type(error).__name__}: {error})."
    record.failure = Failure("UnreadableReply", text, "penstock")
