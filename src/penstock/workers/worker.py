"""The loop that sends and receives: one for each process, driven by its share of the plan.

The plan says when, the deck and the bodies say what, the pools send it, and the desk reads what comes back. While the desk is
full nothing new is sent, and that time is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any

from penstock.endpoints.registry import endpoint
from penstock.endpoints.reply import Reply
from penstock.errors import RunError
from penstock.records.interpret import InFlight
from penstock.records.log import LogWriter
from penstock.records.payloads import MissingBody, PayloadStore
from penstock.records.record import Record
from penstock.records.worker_report import WorkerReport
from penstock.schedule.phases import PhasePlan
from penstock.schedule.scheduler import Scheduler, Share
from penstock.schedule.server_assignment import arm
from penstock.secrets import secret_values
from penstock.wire.clock import Clock
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.pool import Pool
from penstock.wire.stats import WireStats
from penstock.wire.timer import Timer
from penstock.workers import shared_state as cells
from penstock.workers.conversation_picker import ConversationPicker
from penstock.workers.job import Job
from penstock.workers.machine_counters import Machine
from penstock.workers.preconnect import Preconnect
from penstock.workers.reply_processor import ReplyProcessor
from penstock.workers.session import BodyBuilder, Session
from penstock.workers.shared_state import SharedState

__all__ = ["Worker"]

_BURST = 32  # sends before the loop may read again: about a millisecond
_TICK_S = 0.01
_CLOCK_EVERY = 5  # ticks
_LOOK_EVERY = 100
_LOOK_NS = 1_000_000_000


class Worker:
    def __init__(
        self,
        job: Job,
        share: Share,
        board: SharedState,
        loop: asyncio.AbstractEventLoop,
        on_tick: Callable[[], None] | None = None,
    ) -> None:
        self._job = job
        self._share = share
        self._me = share.worker
        self._board = board
        self._loop = loop
        self._on_tick = on_tick
        self._clock = Clock()
        self._wire_stats = WireStats()
        self._report = WorkerReport(worker=share.worker)
        self._payloads = PayloadStore(job.log, job.files)
        self._deck = ConversationPicker(self._payloads, job.sampling, job.seed, board)
        self._endpoint = endpoint(job.endpoint, job.settings)
        self._bodies = BodyBuilder(job.log, self._payloads, self._endpoint, job.settings, share.worker)
        self._log = LogWriter(job.log, share.worker, self._bodies.flush)
        self._pools = [Pool(loop, t.origin, self._clock, self._wire_stats, reuse=job.reuse) for t in job.targets]
        self._opening = Preconnect(job, share, board, loop, self._clock, self._pools)
        self._timer = Timer(loop, self._pump)
        self._id_prefix = str(uuid.uuid4())[:24]
        self._id = secrets.randbits(40)
        secrets_ = secret_values(job.settings.headers, job.settings.api_key, job.settings.urls)
        self._desk = ReplyProcessor(
            loop, self._endpoint, self._log, self._report, job.epoch, secrets_, self._on_read, self._on_room
        )
        self._held_since = 0
        self._later: list[tuple[int, int, Session]] = []  # a heap of turns that wait for their time
        self._sent = self._ended = 0
        self._ticking = False
        self._pump_again = False
        self._fault: Exception | None = None
        self._phase = 0
        self._plan: PhasePlan = job.phases[0]
        self._stepper: Scheduler = self._plan.scheduler(share)
        self._running = False
        self._over: asyncio.Future[None] | None = None
        self._ticks = 0
        self._tick_due = 0.0
        self._stop_seen = 0
        self._open_ended = False
        self._machine: Machine | None = None

    # -- the run ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        self._loop.set_exception_handler(self._on_fault)
        gc.collect()
        gc.freeze()
        gc.disable()  # nothing on the hot path makes cycles; a collection in mid-run would be a stall
        self._ticking = True
        self._tick_due = time.monotonic()
        self._tick()
        try:
            await self._opening.run()
            if self._fault is not None:
                raise self._fault
            for index, plan in enumerate(self._job.phases):
                await self._run_phase(index, plan)
            if self._machine is not None:
                self._report.machine = self._machine.facts()
        except MissingBody:
            raise RunError(f"The run's own file of request bodies in {self._job.log} is gone.") from None
        finally:
            self._ticking = False
            self._running = False
            gc.enable()
            with contextlib.suppress(OSError):
                self._log.flush()  # what a fault ends was still measured
        self._timer.close()
        for pool in self._pools:
            pool.close()
        self._report.wire_stats = self._wire_stats
        self._report.clock_steps = self._clock.steps
        self._report.stopped = self._stop_seen > 0
        self._log.report(self._report)
        self._log.close()
        self._bodies.close()
        self._payloads.close()

    def _on_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of ours raised: end the run with that, rather than wait for what will not come."""
        error = context.get("exception") or RuntimeError(context.get("message", "unknown"))
        if self._fault is None:
            self._fault = error if isinstance(error, Exception) else RuntimeError(repr(error))
        if self._over is not None and not self._over.done():
            self._over.set_exception(self._fault)
        self._opening.cancel()

    async def _run_phase(self, index: int, plan: PhasePlan) -> None:
        while (begin := self._board.gone(index)) is None:
            if self._board.stop:
                self._board.set(self._me, cells.PHASE_DONE, index + 1)
                return
            await asyncio.sleep(0.001)
        if self._machine is None:
            self._machine = Machine()
        self._phase = index
        self._plan = plan
        self._stepper = plan.scheduler(self._share, self._recorded_times() if plan.scale is not None else None)
        self._open_ended = plan.whole
        self._close_plan()
        if self._stop_seen:
            self._stepper.stop()
        self._stepper.begin(begin)
        self._over = self._loop.create_future()
        if self._fault is not None:
            raise self._fault
        self._running = True
        self._timer.at(begin)
        await self._over
        self._running = False
        while not self._desk.empty:
            await asyncio.sleep(0.001)
            if self._fault is not None:
                raise self._fault
        self._log.flush()
        self._publish()
        self._board.set(self._me, cells.PHASE_DONE, index + 1)

    def _close_plan(self) -> None:
        """A plan that lasts as long as the dataset ends where the dataset does, once that is known."""
        if self._open_ended and self._deck.size is not None:
            self._open_ended = False
            all_there_are = self._deck.size * self._plan.arms
            wanted = self._plan.conversations
            self._stepper.limit(all_there_are if wanted is None else min(wanted, all_there_are))

    def _recorded_times(self) -> Iterator[int]:
        """When the recording says that each conversation began, in ns from its start; None of them twice."""
        number = 0
        scale = (self._plan.scale or 1.0) * 1e6
        while self._deck.size is None or number < self._deck.size:
            first = self._payloads.turns(number)[0]
            yield from (round(self._payloads.entry(first).timestamp_ms * scale),) * self._plan.arms
            number += 1
        while True:  # never sent: the plan ends with the last conversation
            yield 1 << 62

    # -- sending ------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what is due, a burst at most: the loop reads in between."""
        if not self._running:
            return
        scheduler, later = self._stepper, self._later
        for _ in range(_BURST):
            if self._desk.full:
                self._held_since = self._held_since or monotonic_ns()
                return
            now = monotonic_ns()
            if self._held_since:
                self._report.held_ns += now - self._held_since
                self._held_since = 0
            if later and (later[0][0] <= now or scheduler.closed(now)):
                due, _, session = heapq.heappop(later)
                self._next_turn(session, due, now)
                continue
            picked = self._deck.pick(self._plan.first + scheduler.number // self._plan.arms)
            if picked is None and scheduler.ready(now):
                self._report.starved_ticks += 1  # it is not indexed yet; the next tick asks again
                if later:
                    self._timer.at(later[0][0])
                return
            if self._open_ended:
                self._close_plan()  # the end may have become known with this very pick
            step = scheduler.next(now)
            if step.kind == "send" and picked is not None:
                self._begin(step.number, picked, step.at, step.free)
                continue
            if step.kind == "wait":
                self._timer.at(min(step.at, later[0][0]) if later else step.at)
            elif later:
                self._timer.at(later[0][0])
            elif step.kind == "over":
                self._check_over(now)
            return
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pump_again:
            self._pump_again = True
            self._loop.call_soon(self._pump_on)

    def _pump_on(self) -> None:
        self._pump_again = False
        self._pump()

    def _begin(self, number: int, conversation: int, intended: int, issued: int) -> None:
        plan = self._plan
        url = arm(number, plan.arms, plan.seed) if plan.arms > 1 else (plan.first + number) % len(self._pools)
        session = Session(number, conversation, self._payloads.turns(conversation), url, self._uuid())
        self._send(session, intended, issued)

    def _next_turn(self, session: Session, due: int, now: int) -> None:
        """Send the turn that was due then, if the plan still allows it."""
        if self._stepper.another_turn(now):
            session.turn += 1
            self._send(session, due, due)
        else:
            self._stepper.ended(now)

    def _uuid(self) -> str:
        """The shape of a UUID 4. Random for the worker, counted within it: a tenth of the cost of drawing each one."""
        self._id += 1
        return f"{self._id_prefix}{self._id & 0xFFFFFFFFFFFF:012x}"

    def _send(self, session: Session, intended: int, issued: int) -> None:
        try:
            entry, payload, body, built = self._bodies.next(session)
        except MissingBody as missing:
            if missing.file == 0:
                raise
            self._board.broken = missing.file
            self._stepper.stop()
            self._stepper.ended(monotonic_ns())
            return
        request = self._uuid()
        correlation = session.correlation_id
        epoch, length = self._job.epoch, len(body)
        record = Record(
            self._phase,
            session.number,
            session.conversation,
            session.turn,
            payload,
            self._me,
            session.url,
            request,
            correlation,
            intended - epoch,
            issued - epoch,
            bytes_sent=length,
            requested_output=entry.output_tokens if entry.output_tokens >= 0 else None,
            built=built,
        )
        target = self._job.targets[session.url]
        data = b"".join((target.head, target.own.format(request, correlation, length).encode(), body))
        self._sent += 1
        self._pools[session.url].start(Exchange(data, self._on_end, InFlight(record, session)))

    # -- ending -------------------------------------------------------------------------------------------------------

    def _on_end(self, exchange: Exchange) -> None:
        ticket: InFlight = exchange.tag
        record = ticket.record
        self._pools[record.url].ended(exchange)
        if exchange.start >= 0:
            ours = exchange.start - self._job.epoch - record.issued - exchange.connect_ns - exchange.lost_ns
            self._report.lateness.add(ours)
            if record.issued > record.intended:
                self._report.queued.add(record.issued - record.intended)
        self._ended += 1
        self._desk.add(exchange)
        session: Session = ticket.session
        if not session.has_next:
            self._stepper.ended(exchange.end)
        elif self._bodies.waits_for_reply(session):
            return  # goes on in `_on_read`
        else:
            self._schedule(session, exchange.end)
        # Not here: when 500 streams end in one poll, 500 sends between their reads would hold up the rest for 15 ms.
        self._pump_soon()

    def _schedule(self, session: Session, end: int) -> None:
        """The next turn: at its recorded time, or its delay after the end of the one before."""
        entry = self._bodies.following(session)
        due = end + round(entry.delay_ms * 1e6)
        if self._plan.scale is not None and entry.has_timestamp:
            due = max(end, self._stepper.began + round(entry.timestamp_ms * 1e6 * self._plan.scale))
        heapq.heappush(self._later, (due, session.number, session))

    def _on_read(self, exchange: Exchange, record: Record, reply: Reply | None) -> None:
        """Carries on a conversation whose next turn holds this reply. Without a good reply there is no next turn."""
        session: Session = exchange.tag.session
        if session.parts is None or not session.has_next:
            return
        if reply is None or record.failure is not None:
            self._stepper.ended(exchange.end)
        else:
            self._bodies.remember(session, reply)
            self._schedule(session, exchange.end)
        self._pump()

    def _on_room(self) -> None:
        if self._held_since:
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
        self._running = False  # each end would look for the end of the phase, and come back here
        for pool in self._pools:
            for exchange in list(pool.busy):
                exchange.cancelled = True
                pool.abort(exchange, WireError("Cancelled", why, "penstock"))
        self._running = self._over is not None and not self._over.done()

    # -- ten milliseconds ---------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self._ticking:
            return
        if self._running:
            self._report.stalls.add(round((time.monotonic() - self._tick_due) * 1e9))
        self._tick_due = time.monotonic() + _TICK_S
        self._loop.call_later(_TICK_S, self._tick)
        self._ticks += 1
        now = monotonic_ns()
        if self._ticks % _CLOCK_EVERY == 0:
            self._clock.refresh()
            self._log.flush_if_due(now)
        if self._ticks % _LOOK_EVERY == 0:
            for pool in self._pools:
                pool.check_resets(now - _LOOK_NS)
        if self._open_ended:
            self._close_plan()
        self._time_out(now)
        self._opening.look(now)
        stop = self._board.stop
        if stop > self._stop_seen:
            self._stop_seen = stop
            self._opening.cancel()
            self._stepper.stop()
            if stop >= 2:
                self._cancel_all("Cancelled: the run was interrupted.")
        self._publish()
        if self._running:
            self._pump()
        if self._on_tick is not None:
            self._on_tick()

    def _publish(self) -> None:
        me, board = self._me, self._board
        board.set(me, cells.SENT, self._sent)
        board.set(me, cells.ENDED, self._ended)
        board.set(me, cells.FAILED, self._desk.failed)
        board.set(me, cells.LIVE, self._stepper.live)

    def _time_out(self, now: int) -> None:
        limit = self._job.timeout_ns
        for pool in self._pools:
            for exchange in _overdue(pool, now - limit - self._job.epoch):
                text = f"No complete reply within {limit / 1e9:g} s."
                pool.abort(exchange, WireError("Timeout", text, "server"))


def _overdue(pool: Pool, before: int) -> list[Exchange]:
    """In flight since before that time. The oldest come first, so the first young one ends the search."""
    found = []
    for exchange in pool.busy:
        ticket: InFlight = exchange.tag
        if ticket.record.issued > before:
            break
        found.append(exchange)
    return found
