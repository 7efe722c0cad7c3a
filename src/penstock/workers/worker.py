"""The worker: sends its share of the requests and records the replies, on one event loop.

The scheduler decides when to send, the conversation picker and the body builder what to send. The pools send it, and the
reply processor reads the replies. While the reply processor is full nothing new is sent, and that time is counted.
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
from penstock.schedule.server_assignment import assign_server
from penstock.secrets import secret_values
from penstock.wire.clock import Clock
from penstock.wire.connection import Origin
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.loop_marks import LoopMarks
from penstock.wire.pool import Pool
from penstock.wire.stats import WireStats
from penstock.wire.timer import Timer
from penstock.workers.conversation_picker import ConversationPicker
from penstock.workers.job import Job
from penstock.workers.machine_counters import MachineCounters
from penstock.workers.preconnect import Preconnect
from penstock.workers.redirects import FOLLOWED, Redirects
from penstock.workers.reply_processor import ReplyProcessor
from penstock.workers.session import BodyBuilder, Session
from penstock.workers.shared_state import ENDED, FAILED, IN_FLIGHT, PHASE_DONE, SENT, SharedState

__all__ = ["Worker"]

_MAX_BURST = 32
"""Requests that are sent before the event loop polls again: about 1 ms."""
_TICK_S = 0.01
_CLOCK_TICKS = 5
"""Ticks between readings of the wall clock."""
_PROBE_TICKS = 100
"""Ticks between checks of old exchanges for a lost connection."""
_PROBE_AGE_NS = 1_000_000_000
"""Age from which an exchange is checked."""


class Worker:
    def __init__(
        self,
        job: Job,
        share: Share,
        shared: SharedState,
        loop: asyncio.AbstractEventLoop,
        on_tick: Callable[[], None] | None = None,
    ) -> None:
        self._job = job
        self._share = share
        self._number = share.worker
        self._shared = shared
        self._loop = loop
        self._on_tick = on_tick
        self._clock = Clock()
        self._wire_stats = WireStats()
        self._marks = LoopMarks(loop)
        self._report = WorkerReport(worker=share.worker)
        self._payloads = PayloadStore(job.log, job.files)
        self._picker = ConversationPicker(self._payloads, job.sampling, job.seed, shared)
        self._endpoint = endpoint(job.endpoint, job.settings)
        self._bodies = BodyBuilder(job.log, self._payloads, self._endpoint, job.settings, share.worker)
        self._log = LogWriter(job.log, share.worker, self._bodies.flush)
        self._pools: list[Pool] = []
        """One for each target, then those of other origins that redirects led to."""
        for target in job.targets:
            self._open_pool(target.origin)
        self._redirects = Redirects(job, self._pools, self._open_pool)
        self._preconnect = Preconnect(job, share, shared, loop, self._clock, self._pools)
        self._timer = Timer(loop, self._pump)
        self._id_prefix = str(uuid.uuid4())[:24]
        self._id = secrets.randbits(40)
        hidden = secret_values(job.settings.headers, job.settings.api_key, job.settings.urls)
        self._processor = ReplyProcessor(
            loop, self._endpoint, self._log, self._report, job.epoch, hidden, self._on_reply, self._on_space
        )
        self._held_since = 0
        self._next_turns: list[tuple[int, int, Session]] = []
        """Heap of (due, session number, session): next turns that wait for their time."""
        self._sent = self._ended = 0
        self._ticking = False
        self._pump_scheduled = False
        self._error: Exception | None = None
        self._phase_index = 0
        self._phase: PhasePlan = job.phases[0]
        self._scheduler: Scheduler = self._phase.scheduler(share)
        self._running = False
        self._phase_over: asyncio.Future[None] | None = None
        self._ticks = 0
        self._tick_due = 0.0
        self._stop_level = 0
        self._size_unknown = False
        """True while the phase sends the whole dataset and its size is not known."""

    def _open_pool(self, origin: Origin) -> Pool:
        pool = Pool(
            self._loop, origin, self._clock, self._wire_stats, reuse=self._job.reuse_connections, marks=self._marks
        )
        self._pools.append(pool)
        return pool

    # -- the run ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        self._loop.set_exception_handler(self._on_exception)
        gc.collect()
        gc.freeze()
        gc.disable()  # the hot path creates no cycles, and a collection would stall the loop
        self._ticking = True
        self._tick_due = time.monotonic()
        self._tick()
        self._marks.start()
        try:
            await self._preconnect.run()
            if self._error is not None:
                raise self._error
            for index, phase in enumerate(self._job.phases):
                await self._run_phase(index, phase)
        except MissingBody:
            raise RunError(
                f"The file of request bodies in {self._job.log} was removed or truncated during the run."
            ) from None
        finally:
            self._ticking = False
            self._running = False
            self._marks.stop()
            gc.enable()
            with contextlib.suppress(OSError):
                self._log.flush()  # keep what was measured before an error
        self._timer.close()
        for pool in self._pools:
            pool.close()
        self._log.close()
        self._bodies.close()
        self._payloads.close()

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the run with the exception that a callback raised, because the phase may never end otherwise."""
        error = context.get("exception") or RuntimeError(context.get("message", "unknown"))
        if self._error is None:
            self._error = error if isinstance(error, Exception) else RuntimeError(repr(error))
        if self._phase_over is not None and not self._phase_over.done():
            self._phase_over.set_exception(self._error)
        self._preconnect.cancel()

    async def _run_phase(self, index: int, phase: PhasePlan) -> None:
        while (start := self._shared.phase_start(index)) is None:
            if self._shared.stop:
                self._log.report(WorkerReport(self._number, index, stopped=True))
                self._shared.set(self._number, PHASE_DONE, index + 1)
                return
            await asyncio.sleep(0.001)
        self._report = self._processor.report = WorkerReport(self._number, index)
        machine = MachineCounters()
        clock_steps = self._clock.steps
        self._phase_index = index
        self._phase = phase
        self._scheduler = phase.scheduler(self._share, self._recorded_times() if phase.scale is not None else None)
        self._size_unknown = phase.whole
        self._limit_to_dataset()
        if self._stop_level:
            self._scheduler.stop()
        self._scheduler.begin(start)
        self._phase_over = self._loop.create_future()
        if self._error is not None:
            raise self._error
        self._running = True
        self._timer.at(start)
        await self._phase_over
        self._running = False
        while not self._processor.empty:
            await asyncio.sleep(0.001)
            if self._error is not None:
                raise self._error
        self._report.machine = machine.facts()
        self._report.wire_stats = self._wire_stats
        self._report.clock_steps = self._clock.steps - clock_steps
        self._report.stopped = self._stop_level > 0
        self._log.report(self._report)
        self._wire_stats.clear()
        self._log.flush()
        self._publish()
        self._shared.set(self._number, PHASE_DONE, index + 1)

    def _limit_to_dataset(self) -> None:
        """Limit a phase that sends the whole dataset to the dataset's size, once that is known."""
        if self._size_unknown and self._picker.size is not None:
            self._size_unknown = False
            sessions = self._picker.size * self._phase.servers
            limit = self._phase.conversations
            self._scheduler.limit(sessions if limit is None else min(limit, sessions))

    def _recorded_times(self) -> Iterator[int]:
        """Yield the recorded start of each session, in ns from the start of the phase."""
        number = 0
        scale = (self._phase.scale or 1.0) * 1e6
        while self._picker.size is None or number < self._picker.size:
            first = self._payloads.turns(number)[0]
            yield from (round(self._payloads.entry(first).timestamp_ms * scale),) * self._phase.servers
            number += 1
        while True:  # the scheduler reads one time ahead, and the phase ends before this one is used
            yield 1 << 62

    # -- sending ------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what is due, but at most `_MAX_BURST` requests before the loop polls again."""
        if not self._running:
            return
        scheduler, next_turns = self._scheduler, self._next_turns
        for _ in range(_MAX_BURST):
            if self._processor.full:
                self._held_since = self._held_since or monotonic_ns()
                return
            now = monotonic_ns()
            if self._held_since:
                self._report.held_ns += now - self._held_since
                self._held_since = 0
            if next_turns and (next_turns[0][0] <= now or scheduler.closed(now)):
                due, _, session = heapq.heappop(next_turns)
                self._next_turn(session, due, now)
                continue
            conversation = self._picker.pick(self._phase.first + scheduler.number // self._phase.servers)
            if conversation is None and scheduler.ready(now):
                self._report.starved_ticks += 1  # not indexed yet; the next tick tries again
                if next_turns:
                    self._timer.at(next_turns[0][0])
                return
            if self._size_unknown:
                self._limit_to_dataset()  # `pick` may have found the end of the dataset
            decision = scheduler.next(now)
            if decision.kind == "send" and conversation is not None:
                self._begin(decision.number, conversation, decision.intended, decision.slot_free_at)
                continue
            if decision.kind == "wait":
                self._timer.at(min(decision.intended, next_turns[0][0]) if next_turns else decision.intended)
            elif next_turns:
                self._timer.at(next_turns[0][0])
            elif decision.kind == "over":
                self._check_over(now)
            return
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._scheduled_pump)

    def _scheduled_pump(self) -> None:
        self._pump_scheduled = False
        self._pump()

    def _begin(self, number: int, conversation: int, intended: int, issued: int) -> None:
        phase = self._phase
        if phase.servers > 1:
            url = assign_server(number, phase.servers, phase.seed)
        else:
            url = (phase.first + number) % len(self._job.targets)
        session = Session(number, conversation, self._payloads.turns(conversation), url, self._uuid())
        self._send(session, intended, issued)

    def _next_turn(self, session: Session, due: int, now: int) -> None:
        """Send the next turn, or end the session if the phase sends nothing more."""
        if self._scheduler.another_turn(now):
            session.turn += 1
            self._send(session, due, due)
        else:
            self._scheduler.ended(now)

    def _uuid(self) -> str:
        """Return a string in the form of a UUID 4: a random prefix per worker and a counter, at a tenth of the cost."""
        self._id += 1
        return f"{self._id_prefix}{self._id & 0xFFFFFFFFFFFF:012x}"

    def _send(self, session: Session, intended: int, issued: int) -> None:
        try:
            entry, payload, body, built = self._bodies.next(session)
        except MissingBody as missing:
            if missing.file == 0:
                raise
            self._shared.changed_file = missing.file
            self._scheduler.stop()
            self._scheduler.ended(monotonic_ns())
            return
        request = self._uuid()
        correlation = session.correlation_id
        epoch, length = self._job.epoch, len(body)
        record = Record(
            self._phase_index,
            session.number,
            session.conversation,
            session.turn,
            payload,
            self._number,
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
        data = b"".join((target.head, target.request_headers.format(request, correlation, length).encode(), body))
        self._sent += 1
        self._pools[session.url].start(Exchange(data, self._on_end, InFlight(record, session)))

    # -- ending -------------------------------------------------------------------------------------------------------

    def _on_end(self, exchange: Exchange) -> None:
        in_flight: InFlight = exchange.tag
        record = in_flight.record
        self._pools[record.url].ended(exchange)
        if exchange.status in FOLLOWED and self._follow(exchange, record.url):
            return
        if exchange.redirect is not None:
            self._end_redirects(exchange, exchange.redirect.first)
        if exchange.start >= 0:
            delay = exchange.start - self._job.epoch - record.issued - exchange.connect_ns - exchange.lost_ns
            self._report.lateness.add(delay)
            if record.issued > record.intended:
                self._report.queued.add(record.issued - record.intended)
        self._ended += 1
        self._processor.add(exchange)
        session: Session = in_flight.session
        if not session.has_next:
            self._scheduler.ended(exchange.end)
        elif self._bodies.waits_for_reply(session):
            return  # `_on_reply` continues
        else:
            self._schedule_next_turn(session, exchange.end)
        # Not now: when 500 streams end in one poll, 500 sends between their reads would delay the last by 15 ms.
        self._pump_soon()

    def _follow(self, exchange: Exchange, target: int) -> bool:
        """Follow a redirect, and return whether it is followed. The request keeps its slot."""
        hop = self._redirects.hop(exchange, target)
        if hop is None:
            return False
        following = Exchange(hop.data, self._on_end, exchange.tag)
        following.redirect = hop.redirect
        hop.pool.start(following)
        return True

    def _end_redirects(self, exchange: Exchange, first: Exchange) -> None:
        """Count the time of a redirected request from its first send."""
        for pool in self._pools:
            pool.ended(exchange)
        exchange.start, exchange.connect_ns, exchange.lost_ns = first.start, first.connect_ns, first.lost_ns
        exchange.reused = first.reused
        exchange.retries += first.retries

    def _schedule_next_turn(self, session: Session, end: int) -> None:
        """Schedule the next turn at its recorded time, or with its delay after the end of this one."""
        entry = self._bodies.next_entry(session)
        due = end + round(entry.delay_ms * 1e6)
        if self._phase.scale is not None and entry.has_timestamp:
            due = max(end, self._scheduler.began_at + round(entry.timestamp_ms * 1e6 * self._phase.scale))
        heapq.heappush(self._next_turns, (due, session.number, session))

    def _on_reply(self, exchange: Exchange, record: Record, reply: Reply | None) -> None:
        """Continue a conversation whose next turn contains this reply, or end it if the request failed."""
        session: Session = exchange.tag.session
        if session.parts is None or not session.has_next:
            return
        if reply is None or record.failure is not None:
            self._scheduler.ended(exchange.end)
        else:
            self._bodies.remember(session, reply)
            self._schedule_next_turn(session, exchange.end)
        self._pump()

    def _on_space(self) -> None:
        if self._held_since:
            self._pump()

    def _check_over(self, now: int) -> None:
        if self._phase_over is None or self._phase_over.done():
            return
        if self._scheduler.active == 0:
            self._phase_over.set_result(None)
            return
        ends_at, grace = self._scheduler.ends_at, self._phase.grace_s
        if ends_at is not None and grace is not None and now >= ends_at + grace * 1e9:
            self._cancel_all(f"Cut off: it was still running {grace:g} s after the end of the benchmark duration.")

    def _cancel_all(self, reason: str) -> None:
        self._running = False  # each ended exchange would check for the end of the phase, and call this again
        for pool in self._pools:
            for exchange in list(pool.busy):
                exchange.cancelled = True
                pool.abort(exchange, WireError("Cancelled", reason, "penstock"))
        self._running = self._phase_over is not None and not self._phase_over.done()

    # -- every 10 ms --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self._ticking:
            return
        if self._running:
            self._report.stalls.add(round((time.monotonic() - self._tick_due) * 1e9))
        self._tick_due = time.monotonic() + _TICK_S
        self._loop.call_later(_TICK_S, self._tick)
        self._ticks += 1
        now = monotonic_ns()
        if self._ticks % _CLOCK_TICKS == 0:
            self._clock.refresh()
            self._log.flush_if_due(now)
        if self._ticks % _PROBE_TICKS == 0:
            for pool in self._pools:
                pool.check_resets(now - _PROBE_AGE_NS)
        if self._size_unknown:
            self._limit_to_dataset()
        self._abort_overdue(now)
        self._preconnect.check_timeout(now)
        stop = self._shared.stop
        if stop > self._stop_level:
            self._stop_level = stop
            self._preconnect.cancel()
            self._scheduler.stop()
            if stop >= 2:
                self._cancel_all("Cancelled: the run was interrupted.")
        self._publish()
        if self._running:
            self._pump()
        if self._on_tick is not None:
            self._on_tick()

    def _publish(self) -> None:
        worker, shared = self._number, self._shared
        shared.set(worker, SENT, self._sent)
        shared.set(worker, ENDED, self._ended)
        shared.set(worker, FAILED, self._processor.failed)
        shared.set(worker, IN_FLIGHT, self._scheduler.active)

    def _abort_overdue(self, now: int) -> None:
        limit = self._job.timeout_ns
        for pool in self._pools:
            for exchange in _overdue(pool, now - limit - self._job.epoch):
                text = f"No complete reply within {limit / 1e9:g} s."
                pool.abort(exchange, WireError("Timeout", text, "server"))


def _overdue(pool: Pool, before: int) -> list[Exchange]:
    """Return the exchanges that were issued before `before`. The pool lists the oldest first."""
    overdue = []
    for exchange in pool.busy:
        in_flight: InFlight = exchange.tag
        if in_flight.record.issued > before:
            break
        overdue.append(exchange)
    return overdue
