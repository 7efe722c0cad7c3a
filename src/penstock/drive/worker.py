"""The loop that sends and receives: one for each process, driven by its share of the plan.

What follows an exchange (reading the reply, writing the record) waits in a queue and is done in slices of half a
millisecond between polls. Done where the exchange ends, 500 streams that end together would stall the loop, and the first
reads of the next ones would cover many tokens. The queue is bounded; while it is full, nothing new is sent, and that time
is counted.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable
from random import Random
from time import monotonic_ns

from penstock.datasets.sampling import picker
from penstock.drive import board as cells
from penstock.drive.board import Board
from penstock.drive.job import Job
from penstock.drive.report import Machine, WorkerReport
from penstock.endpoints.registry import endpoint
from penstock.plan.phases import PhasePlan
from penstock.plan.stepper import Share, Stepper, split
from penstock.records.log import LogWriter, PayloadStore
from penstock.records.reader import Ticket, read
from penstock.wire.clock import Clock
from penstock.wire.exchange import Exchange, Trouble
from penstock.wire.gauge import Gauge
from penstock.wire.pool import Pool
from penstock.wire.timer import Timer

__all__ = ["Worker"]

_SLICE_NS = 500_000
_QUEUE_LIMIT = 512
_QUEUE_BYTES = 64 << 20
_TICK_S = 0.01
_CLOCK_EVERY = 5  # ticks


class Worker:
    def __init__(
        self, job: Job, share: Share, board: Board, loop: asyncio.AbstractEventLoop, on_tick: Callable[[], None] | None = None
    ) -> None:
        self._job = job
        self._share = share
        self._me = share.worker
        self._board = board
        self._loop = loop
        self._on_tick = on_tick
        self._clock = Clock()
        self._gauge = Gauge()
        self._report = WorkerReport(worker=share.worker)
        self._payloads = PayloadStore(job.log)
        self._pick = picker(job.sampling, self._payloads.conversations, job.seed)  # type: ignore[arg-type]
        self._log = LogWriter(job.log, share.worker)
        self._endpoint = endpoint(job.endpoint)
        self._pools = [Pool(loop, t.origin, self._clock, self._gauge, reuse=job.reuse) for t in job.targets]
        self._timer = Timer(loop, self._pump)
        self._ids = Random()  # request ids are unique, not reproducible
        self._queue: deque[Exchange] = deque()
        self._queue_bytes = 0
        self._slicing = False
        self._held_since = 0
        self._waiting_turns = 0
        self._sent = self._ended = self._failed = 0
        self._phase = 0
        self._plan: PhasePlan = job.phases[0]
        self._stepper: Stepper = self._plan.stepper(share)
        self._running = False
        self._over: asyncio.Future[None] | None = None
        self._ticks = 0
        self._tick_due = 0.0
        self._stop_seen = 0

    # -- the run ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        machine = Machine()
        await self._open_ahead()
        gc.collect()
        gc.freeze()
        gc.disable()  # nothing on the hot path makes cycles; a collection in mid-run would be a stall
        self._tick_due = time.monotonic() + _TICK_S
        tick = self._loop.call_later(_TICK_S, self._tick)
        try:
            for index, plan in enumerate(self._job.phases):
                await self._run_phase(index, plan)
        finally:
            tick.cancel()
            self._running = False
            gc.enable()
        machine.stop()
        self._timer.close()
        for pool in self._pools:
            pool.close()
        self._report.gauge = self._gauge
        self._report.clock_steps = self._clock.steps
        self._report.machine = machine.facts()
        self._log.report(self._report)
        self._log.close()
        self._payloads.close()
        self._board.set(self._me, cells.FINISHED, 1)

    async def _open_ahead(self) -> None:
        wanted = split(self._job.open_ahead, self._share)
        self._board.set(self._me, cells.READY, 0)
        if wanted and self._job.reuse:
            each = [split(wanted, Share(n, len(self._pools))) for n in range(len(self._pools))]
            waiting = [self._open_pool(pool, count) for pool, count in zip(self._pools, each, strict=True) if count]
            await asyncio.gather(*waiting)
        self._board.set(self._me, cells.READY, 1)

    async def _open_pool(self, pool: Pool, count: int) -> None:
        done: asyncio.Future[None] = self._loop.create_future()

        def opened(n: int, trouble: Trouble | None) -> None:
            self._board.set(self._me, cells.CONNECTED, n)
            if not done.done() and (trouble is not None or n >= count):
                if trouble is not None and n == 0:
                    done.set_exception(ConnectError(trouble))
                else:
                    done.set_result(None)

        pool.open_ahead(count, opened)
        await done

    async def _run_phase(self, index: int, plan: PhasePlan) -> None:
        while (begin := self._board.gone(index)) is None:
            if self._board.stop:
                self._board.set(self._me, cells.PHASE_DONE, index + 1)
                return
            await asyncio.sleep(0.001)
        self._phase = index
        self._plan = plan
        self._stepper = plan.stepper(self._share)
        self._stepper.begin(begin)
        self._over = self._loop.create_future()
        self._running = True
        self._timer.at(begin)
        await self._over
        self._running = False
        while self._queue:
            await asyncio.sleep(0.001)
        self._log.flush()
        self._board.set(self._me, cells.PHASE_DONE, index + 1)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send everything that is due."""
        if not self._running:
            return
        stepper = self._stepper
        while True:
            if len(self._queue) >= _QUEUE_LIMIT or self._queue_bytes >= _QUEUE_BYTES:
                if not self._held_since:
                    self._held_since = monotonic_ns()
                return
            now = monotonic_ns()
            if self._held_since:
                self._report.held_ns += now - self._held_since
                self._held_since = 0
            step = stepper.next(now)
            if step.kind == "send":
                number = step.number
                conversation = self._pick(self._plan.first + number)
                self._send(number, conversation, 0, self._uuid(), step.at, step.free)
            elif step.kind == "wait":
                self._timer.at(step.at)
                return
            elif step.kind == "full":
                return
            else:
                self._check_over(now)
                return

    def _uuid(self) -> str:
        bits = self._ids.getrandbits(128) & 0xFFFFFFFFFFFF0FFF3FFFFFFFFFFFFFFF | 0x40008000000000000000
        h = f"{bits:032x}"
        return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    def _send(self, number: int, conversation: int, turn: int, correlation: str, intended: int, issued: int) -> None:
        payload = self._payloads.turns(conversation)[turn]
        body = self._payloads.body(payload)
        asked = self._payloads.entry(payload).output_tokens
        url = (self._plan.first + number) % len(self._pools)
        request = self._uuid()
        ticket = Ticket(
            self._phase,
            number,
            conversation,
            turn,
            payload,
            self._me,
            url,
            request,
            correlation,
            intended,
            issued,
            len(body),
            asked if asked >= 0 else None,
        )
        head = (
            f"X-Request-ID: {request}\r\nX-Correlation-ID: {correlation}\r\nX-Session-Affinity: {correlation}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        data = b"".join((self._job.targets[url].head, head.encode(), body))
        self._sent += 1
        self._pools[url].start(Exchange(data, self._on_end, ticket))

    # -- ending -------------------------------------------------------------------------------------------------------

    def _on_end(self, exchange: Exchange) -> None:
        ticket: Ticket = exchange.tag
        self._pools[ticket.url].ended(exchange)
        exchange.data = b""
        if exchange.start >= 0:
            self._report.lateness.add(exchange.start - ticket.issued - exchange.connect_ns)
            if ticket.issued > ticket.intended:
                self._report.queued.add(ticket.issued - ticket.intended)
        self._ended += 1
        if exchange.trouble is not None or exchange.status != 200:
            self._failed += 1
        self._queue.append(exchange)
        self._queue_bytes += exchange.bytes_received
        if not self._slicing:
            self._slicing = True
            self._loop.call_soon(self._slice)
        end = exchange.end if exchange.end >= 0 else monotonic_ns()
        if len(self._payloads.turns(ticket.conversation)) > ticket.turn + 1 and self._stepper.another_turn(monotonic_ns()):
            self._send(ticket.number, ticket.conversation, ticket.turn + 1, ticket.correlation_id, end, end)
            return
        self._stepper.ended(end)
        self._pump()

    def _slice(self) -> None:
        """Turn finished exchanges into records for half a millisecond, then let the loop poll."""
        until = monotonic_ns() + _SLICE_NS
        queue, log, report = self._queue, self._log, self._report
        dialect, epoch = self._endpoint, self._job.epoch
        while queue:
            exchange = queue.popleft()
            self._queue_bytes -= exchange.bytes_received
            record = read(exchange, dialect, epoch)
            log.record(record)
            if record.stamps:
                report.streams += 1
                report.first_coalesced += record.first_coalesced
                report.stamps += len(record.stamps)
                report.coalesced += record.coalesced
                report.ttft.add(record.stamps[0])
            if record.failure is None:
                report.latency.add(record.end - record.start)
            if monotonic_ns() >= until:
                break
        if queue:
            self._loop.call_soon(self._slice)
        else:
            self._slicing = False
        if self._held_since and len(queue) < _QUEUE_LIMIT // 2:
            self._pump()

    def _check_over(self, now: int) -> None:
        if self._over is None or self._over.done():
            return
        if self._stepper.live == 0:
            self._over.set_result(None)
            return
        ends_at, grace = self._stepper.ends_at, self._plan.grace_s
        if ends_at is not None and grace is not None and now >= ends_at + grace * 1e9:
            self._cancel_all(f"Cut off: it was still running {grace:g} s after the end of the benchmark duration.")

    def _cancel_all(self, why: str) -> None:
        for pool in self._pools:
            for exchange in list(pool.busy):
                exchange.cancelled = True
                pool.abort(exchange, Trouble("Cancelled", why, "penstock"))

    # -- ten milliseconds ---------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        late = time.monotonic() - self._tick_due
        self._report.stalls.add(round(late * 1e9))
        self._tick_due = time.monotonic() + _TICK_S
        self._loop.call_later(_TICK_S, self._tick)
        self._ticks += 1
        now = monotonic_ns()
        if self._ticks % _CLOCK_EVERY == 0:
            self._clock.refresh()
            self._log.flush_if_due(now)
        self._time_out(now)
        stop = self._board.stop
        if stop > self._stop_seen:
            self._stop_seen = stop
            self._stepper.stop()
            if stop >= 2:
                self._cancel_all("Cancelled: the run was interrupted.")
        me, board = self._me, self._board
        board.set(me, cells.SENT, self._sent)
        board.set(me, cells.ENDED, self._ended)
        board.set(me, cells.FAILED, self._failed)
        board.set(me, cells.LIVE, self._stepper.live)
        if self._running:
            self._pump()
        if self._on_tick is not None:
            self._on_tick()

    def _time_out(self, now: int) -> None:
        limit = self._job.timeout_ns
        for pool in self._pools:
            for exchange in list(_overdue(pool, now - limit)):
                text = f"No complete reply within {limit / 1e9:g} s."
                pool.abort(exchange, Trouble("Timeout", text, "server"))


def _overdue(pool: Pool, before: int) -> list[Exchange]:
    """In flight since before that time. The oldest come first, so the first young one ends the search."""
    found = []
    for exchange in pool.busy:
        ticket: Ticket = exchange.tag
        if ticket.issued > before:
            break
        found.append(exchange)
    return found


class ConnectError(Exception):
    """Not one connection to a target could be opened."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble
