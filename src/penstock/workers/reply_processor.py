"""What follows an exchange: reading the reply, writing the record.

It waits in a queue and is done in slices of half a millisecond between polls. Done where the exchange ends, 500 streams that
end together would stall the loop, and the first reads of the next ones would cover many tokens. The queue is bounded: while
it is full, the worker sends nothing new.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic_ns

import msgspec

from penstock.endpoints.base import Endpoint
from penstock.endpoints.reply import Reply
from penstock.records.interpret import interpret
from penstock.records.log import LogWriter
from penstock.records.record import Record
from penstock.records.worker_report import WorkerReport
from penstock.secrets import redact_values
from penstock.wire.exchange import Exchange

__all__ = ["ReplyProcessor"]

_SLICE_NS = 500_000
_LIMIT = 512
_LIMIT_BYTES = 64 << 20


class ReplyProcessor:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoint: Endpoint,
        log: LogWriter,
        report: WorkerReport,
        epoch: int,
        secrets: tuple[str, ...],
        on_read: Callable[[Exchange, Record, Reply | None], None],
        on_room: Callable[[], None],
    ) -> None:
        """`secrets` are kept out of failures; `on_read` gets every exchange with its record; `on_room` is called while the
        queue is less than half full."""
        self._loop = loop
        self._endpoint = endpoint
        self._log = log
        self._report = report
        self._epoch = epoch
        self._secrets = secrets
        self._on_read = on_read
        self._on_room = on_room
        self._queue: deque[Exchange] = deque()
        self._bytes = 0
        self._busy = False
        self.failed = 0

    def add(self, exchange: Exchange) -> None:
        self._queue.append(exchange)
        self._bytes += exchange.bytes_received
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._slice)

    @property
    def full(self) -> bool:
        return len(self._queue) >= _LIMIT or self._bytes >= _LIMIT_BYTES

    @property
    def empty(self) -> bool:
        return not self._queue

    def _slice(self) -> None:
        """Read replies for half a millisecond, then let the loop poll."""
        until = monotonic_ns() + _SLICE_NS
        queue, endpoint, epoch = self._queue, self._endpoint, self._epoch
        while queue:
            exchange = queue.popleft()
            self._bytes -= exchange.bytes_received
            record, reply = interpret(exchange, endpoint, epoch)
            if record.failure is not None:
                record.failure = msgspec.structs.replace(
                    record.failure, message=redact_values(record.failure.message, self._secrets)
                )
            self._log.record(record)
            self._count(record)
            self._on_read(exchange, record, reply)
            if monotonic_ns() >= until:
                break
        if queue:
            self._loop.call_soon(self._slice)
        else:
            self._busy = False
        if len(queue) < _LIMIT // 2:
            self._on_room()

    def _count(self, record: Record) -> None:
        report = self._report
        report.requests += 1
        if record.failure is not None and not record.cancelled:
            self.failed += 1
        if record.stamps:
            report.streams += 1
            if report.streams & 7 == 1:
                report.ttft.add(record.stamps[0])
        if report.requests & 7 == 1:  # its median is all that is asked of it
            report.latency.add(record.end - record.start)
