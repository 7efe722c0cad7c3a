"""The worker: sends its share of the requests and records the replies, on one event loop.

The scheduler decides when to send, the body builder what to send. The pools send it, and the reply processor reads the
replies. While the reply processor is full nothing new is sent, and that time is counted. Commands start and stop the phases;
events tell the run about them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import secrets
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from time import monotonic_ns
from typing import Any

from penstock.endpoints.base import endpoint_named
from penstock.endpoints.reply import Reply
from penstock.errors import RunError
from penstock.records.interpret import InFlight
from penstock.records.log import LogWriter
from penstock.records.payloads import MissingBody, PayloadStore
from penstock.records.raw_replies import ReplyWriter
from penstock.records.record import Record
from penstock.records.worker_report import WorkerReport
from penstock.schedule.phase import Phase
from penstock.schedule.scheduler import CUT_OFF, OVER, STARVED, Scheduler, Send, Wait
from penstock.schedule.share import Share
from penstock.secrets import secret_values
from penstock.wire.clock import Clock
from penstock.wire.connection import Origin
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.loop_marks import LoopMarks
from penstock.wire.pool import Pool
from penstock.wire.stats import WireStats
from penstock.wire.timer import Timer
from penstock.workers.job import Job, Target, hidden_headers
from penstock.workers.live_measures import LiveMeasures
from penstock.workers.machine_counters import MachineCounters
from penstock.workers.messages import (
    ChangedFile,
    Close,
    Command,
    Connected,
    DataComplete,
    Event,
    LoadData,
    PhaseDone,
    Progress,
    Ready,
    SetLimits,
    StartPhase,
    Stop,
)
from penstock.workers.preconnect import Preconnect
from penstock.workers.redirects import FOLLOWED, Redirects
from penstock.workers.reply_processor import ReplyProcessor
from penstock.workers.session import BodyBuilder, Session
from penstock.workers.stored_conversations import StoredConversations

_FIRST_WAIT_NS, _LONGEST_WAIT_NS = 10_000_000, 1_000_000_000
"""How long a slot waits after the second refused connection in a row, which doubles with each other one, and at most."""
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
        targets: Sequence[Target],
        share: Share,
        loop: asyncio.AbstractEventLoop,
        *,
        epoch: int,
        on_event: Callable[[Event], None],
        on_tick: Callable[[], None] | None = None,
        progress_ticks: int = 1,
    ) -> None:
        """`epoch` is the zero of the times in records, on the monotonic clock of this process. `on_tick` is called every
        10 ms, and progress is sent to `on_event` every `progress_ticks` of them."""
        self._job = job
        self._targets = targets
        self._share = share
        self._number = job.first_worker + share.worker
        """Number in the log."""
        self._loop = loop
        self._epoch = epoch
        self._on_event = on_event
        self._on_tick = on_tick
        self._progress_ticks = progress_ticks
        self._clock = Clock()
        self._wire_stats = WireStats()
        self._marks = LoopMarks(loop)
        self._report = WorkerReport(worker=self._number)
        self._payloads = PayloadStore(job.log, job.files)
        self._conversations = StoredConversations(self._payloads, job.sampling, job.seed, growing=job.growing)
        self._endpoint = endpoint_named(job.settings.type, job.settings)
        self._bodies = BodyBuilder(job.log, self._payloads, self._endpoint, job.settings, self._number)
        hidden = secret_values(job.settings.headers, job.settings.api_key, job.settings.urls)
        self._replies: ReplyWriter | None = None
        if job.keep_replies:
            headers = hidden_headers(job.settings, self._endpoint.declaration)
            self._replies = ReplyWriter(job.log, self._number, headers, hidden)
        self._log = LogWriter(job.log, self._number, self._flush_bodies, job.flush_ns)
        self._reuse = job.settings.connections == "pooled"
        self._sticky = job.settings.connections == "sticky-user-sessions"
        self._timeout_ns = round(job.settings.timeout_s * 1e9)
        self._pools: list[Pool] = []
        """One pool for each target, then the pools of other origins that redirects led to."""
        for target in targets:
            self._open_pool(target.origin)
        self._refused = [-1] * len(targets)
        """For each server how many connections it has refused in a row; -1 before its first reply."""
        self._redirects = Redirects(job.settings, targets, self._pools, self._open_pool)
        self._preconnect = Preconnect(
            job, targets, share, lambda count: on_event(Connected(count)), loop, self._clock, self._pools
        )
        self._timer = Timer(loop, self._pump)
        self._id_prefix = str(uuid.uuid4())[:24]
        self._id = secrets.randbits(40)
        self._processor = ReplyProcessor(
            loop, self._endpoint, self._log, self._report, epoch, hidden, self._on_reply, self._on_space, self._replies
        )
        self._held_since = 0
        self._sent = self._ended = 0
        self._ticking = False
        self._pump_scheduled = False
        self._error: Exception | None = None
        self._starts: deque[StartPhase] = deque()
        self._started = asyncio.Event()
        """Set when there is a phase to start, or the worker has to end."""
        self._closing = False
        self._phase_index = -1
        self._phase: Phase | None = None
        self._scheduler: Scheduler | None = None
        self._running = False
        self._phase_over: asyncio.Future[None] | None = None
        self._ticks = 0
        self._tick_due = 0.0
        self._stop_level = 0
        self._machine: MachineCounters | None = None

    def _open_pool(self, origin: Origin) -> Pool:
        pool = Pool(self._loop, origin, self._clock, self._wire_stats, reuse=self._reuse, marks=self._marks)
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
            self._on_event(Ready())
            while (start := await self._next_start()) is not None:
                await self._run_phase(start)
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
        if self._replies is not None:
            self._replies.close()

    def _flush_bodies(self) -> None:
        """Write the bodies and the replies to which the records refer."""
        self._bodies.flush()
        if self._replies is not None:
            self._replies.flush()

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the run with the exception that a callback raised, because the phase may never end otherwise."""
        error = context.get("exception") or RuntimeError(context.get("message", "unknown"))
        if self._error is None:
            self._error = error if isinstance(error, Exception) else RuntimeError(repr(error))
        if self._phase_over is not None and not self._phase_over.done():
            self._phase_over.set_exception(self._error)
        self._started.set()
        self._preconnect.cancel()

    # -- commands -----------------------------------------------------------------------------------------------------

    def command(self, command: Command) -> None:
        """Carry out a command of the run."""
        match command:
            case StartPhase():
                self._starts.append(command)
                self._stop_level = 0
                self._started.set()
                if self._running:
                    self._leave_phase_at(command.start)
                else:
                    self._preconnect.top_up(command.connections)
            case SetLimits():
                if self._scheduler is not None:
                    self._scheduler.set_limits(monotonic_ns(), slots=command.slots, prefill_slots=command.prefill_slots)
                    self._pump()
            case Stop():
                self._stop(command.level)
            case LoadData():
                self._load(command)
            case DataComplete():
                self._conversations.complete()
            case Close():
                self._closing = True
                self._started.set()

    def _load(self, data: LoadData) -> None:
        self._payloads.close()
        self._payloads = PayloadStore(data.folder, data.files)
        seed = self._job.seed if data.seed is None else data.seed
        self._conversations = StoredConversations(self._payloads, self._job.sampling, seed)
        self._bodies.use(self._payloads)

    def _stop(self, level: int) -> None:
        if level <= self._stop_level:
            return
        self._stop_level = level
        self._preconnect.cancel()
        if self._scheduler is not None:
            self._scheduler.stop()
            if level > 1:
                self._cancel_all("Cancelled: the run was ended.")
        self._pump()

    async def _next_start(self) -> StartPhase | None:
        """Return the next phase to start; None when the worker has to end."""
        while not self._starts:
            if self._error is not None:
                raise self._error
            if self._closing:
                return None
            self._started.clear()
            await self._started.wait()
        return self._starts.popleft()

    # -- a phase ------------------------------------------------------------------------------------------------------

    async def _run_phase(self, start: StartPhase) -> None:
        carried = 0 if self._scheduler is None else self._scheduler.active
        phase = start.phase
        self._report = self._processor.report = WorkerReport(self._number, start.index)
        self._processor.live = LiveMeasures()
        machine = self._machine = MachineCounters()
        clock_steps = self._clock.steps
        self._phase_index, self._phase = start.index, phase
        self._bodies.warmup = phase.kind == "warmup"
        self._scheduler = Scheduler(
            phase, self._share, self._conversations, servers=len(self._targets), session_type=Session
        )
        self._scheduler.begin(start.start, carried)
        if self._stop_level:  # the command came before the phase began
            self._scheduler.stop()
        self._phase_over = self._loop.create_future()
        if self._error is not None:
            raise self._error
        self._running = True
        self._timer.at(start.start)
        if self._starts:  # the command for the next phase arrived before this one began
            self._leave_phase_at(self._starts[0].start)
        await self._phase_over
        self._running = False
        for pool in self._pools:
            pool.release_all()  # of conversations that were not finished
        while not self._processor.empty and not self._starts:
            await asyncio.sleep(0.001)
            if self._error is not None:
                raise self._error
        self._report.machine = machine.facts()
        self._report.wire_stats = copy.copy(self._wire_stats)
        self._report.clock_steps = self._clock.steps - clock_steps
        self._report.stopped = self._stop_level > 0
        self._log.report(self._report)
        progress = self._progress()
        self._wire_stats.clear()
        self._log.flush()
        self._on_event(PhaseDone(start.index, progress, self._scheduler.next_number))

    def _leave_phase_at(self, start: int) -> None:
        """End the running phase when the next one begins. Its requests in flight go on."""
        self._loop.call_later(max(0, start - monotonic_ns()) / 1e9, self._leave_phase, self._phase_index)

    def _leave_phase(self, index: int) -> None:
        if index != self._phase_index:
            return  # it has ended by itself, and the next one has begun
        if self._scheduler is not None:
            self._scheduler.stop()
            self._scheduler.next(monotonic_ns())  # ends the sessions that wait for their next turn
        if self._phase_over is not None and not self._phase_over.done():
            self._phase_over.set_result(None)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what is due, but at most `_MAX_BURST` requests before the loop polls again."""
        scheduler = self._scheduler
        if not self._running or scheduler is None:
            return
        for _ in range(_MAX_BURST):
            if self._processor.full:
                self._held_since = self._held_since or monotonic_ns()
                return
            now = monotonic_ns()
            if self._held_since:
                self._report.held_ns += now - self._held_since
                self._held_since = 0
            decision = scheduler.next(now)
            if isinstance(decision, Send):
                self._send(decision)
                continue
            if isinstance(decision, Wait):
                if decision.until is not None:
                    self._timer.at(decision.until)
            elif decision is STARVED:
                self._report.starved_ticks += 1  # not indexed yet; the next tick tries again
            elif decision is CUT_OFF:
                grace = 0.0 if self._phase is None else self._phase.grace_s
                self._cancel_all(f"Cut off: it was still running {grace:g} s after the end of the benchmark duration.")
            elif decision is OVER and self._phase_over is not None and not self._phase_over.done():
                self._phase_over.set_result(None)
            return
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._scheduled_pump)

    def _scheduled_pump(self) -> None:
        self._pump_scheduled = False
        self._pump()

    def _uuid(self) -> str:
        """Return a string in the form of a UUID 4: a random prefix per worker and a counter, at a tenth of the cost."""
        self._id += 1
        return f"{self._id_prefix}{self._id & 0xFFFFFFFFFFFF:012x}"

    def _send(self, send: Send) -> None:
        session = send.session
        assert isinstance(session, Session)
        if session.phase < 0:
            session.phase = self._phase_index
            session.correlation_id = self._uuid()
            if (tree := session.tree) is not None:
                tree.root_id = tree.root_id or session.correlation_id
                if session.node == 0:
                    session.correlation_id = tree.root_id
        try:
            entry, payload, body, built = self._bodies.next(session)
        except MissingBody as missing:
            if missing.file == 0:
                raise
            self._on_event(ChangedFile(missing.file))
            self._stop(1)
            self._end_turn(session, monotonic_ns(), more=False)
            return
        request = self._uuid()
        correlation = session.correlation_id
        epoch, length = self._epoch, len(body)
        record = Record(
            session.phase,
            session.number,
            session.conversation,
            session.turn,
            payload,
            self._number,
            session.server,
            request,
            correlation,
            send.intended - epoch,
            send.slot_free_at - epoch,
            bytes_sent=length,
            requested_output=entry.output_tokens if entry.output_tokens >= 0 else None,
            built=built,
            images=entry.images,
            audio_seconds=entry.audio_seconds,
            root_id=None if session.tree is None else session.tree.root_id,
            parent_id=session.parent_id,
        )
        target = self._targets[session.server]
        data = b"".join((target.head, target.request_headers.format(request, correlation, length).encode(), body))
        self._sent += 1
        exchange = Exchange(data, self._on_end, InFlight(record, session))
        if session.prefilling:
            exchange.on_content = self._on_content
        self._pools[session.server].start(exchange, session if self._sticky else None)
        if send.cancel_after_s is not None:
            self._loop.call_later(send.cancel_after_s, self._cancel, exchange, send.cancel_after_s)

    def _on_content(self, exchange: Exchange, at: int) -> None:
        session: Session = exchange.tag.session
        if self._scheduler is not None and session.phase == self._phase_index:
            self._scheduler.first_content(session, at)
            self._pump_soon()

    def _cancel(self, exchange: Exchange, after_s: float) -> None:
        """Close the connection of a request, unless its reply has ended."""
        if exchange.end < 0:
            exchange.cancelled = True
            reason = f"Cancelled {after_s:g} s after it was sent, as --request-cancellation-rate asks."
            for pool in self._pools:
                pool.abort(exchange, WireError("Cancelled", reason, "penstock"))

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
            delay = exchange.start - self._epoch - record.issued - exchange.connect_ns - exchange.lost_ns
            self._report.lateness.add(delay)
            if record.issued > record.intended:
                self._report.queued.add(record.issued - record.intended)
        self._ended += 1
        self._processor.add(exchange)
        session: Session = in_flight.session
        if self._sticky and exchange.status >= 400:
            self._release(session)
        if exchange.error is None:
            self._refused[record.url] = 0
        if session.continues and self._bodies.waits_for_reply(session):
            return  # `_on_reply` continues
        if exchange.error is not None and self._waits_for_server(session, exchange):
            return
        self._end_turn(session, exchange.end)
        # Not now: when 500 streams end in one poll, 500 sends between their reads would delay the last by 15 ms.
        self._pump_soon()

    def _waits_for_server(self, session: Session, exchange: Exchange, *, more: bool = True) -> bool:
        """Keep the slot of a request whose connection was refused for a while, so that a restart of the server does not use up
        the requests. Return whether it waits: not in an open loop, which keeps its schedule."""
        url = exchange.tag.record.url
        if exchange.error is None or exchange.error.type != "ConnectionRefused" or self._refused[url] < 0:
            return False
        self._refused[url] += 1
        in_row = self._refused[url]
        if in_row < 2 or self._phase is None or self._phase.arrivals is not None:
            return False
        wait_ns = min(_FIRST_WAIT_NS << min(in_row - 2, 10), _LONGEST_WAIT_NS)
        self._report.refusals_waited_ns += wait_ns
        self._loop.call_later(wait_ns / 1e9, self._end_wait, session, exchange.end + wait_ns, more)
        return True

    def _end_wait(self, session: Session, at: int, more: bool) -> None:
        self._end_turn(session, at, more=more)
        self._pump()

    def _release(self, session: Session) -> None:
        """Close the connection of a conversation that is over or has failed."""
        for pool in self._pools:
            pool.release(session)

    def _end_turn(self, session: Session, at: int, *, more: bool = True) -> None:
        if self._sticky and not (more and session.has_next):
            self._release(session)
        if self._scheduler is None:
            return
        if session.phase == self._phase_index:
            self._scheduler.ended(session, at, more=more)
        elif session.tree is None or session.tree.leave():
            self._scheduler.carried_ended(at)

    def _follow(self, exchange: Exchange, target: int) -> bool:
        """Follow a redirect, and return whether it is followed. The request keeps its slot."""
        hop = self._redirects.hop(exchange, target)
        if hop is None:
            return False
        following = Exchange(hop.data, self._on_end, exchange.tag)
        following.redirect = hop.redirect
        hop.pool.start(following, exchange.tag.session if self._sticky else None)
        return True

    def _end_redirects(self, exchange: Exchange, first: Exchange) -> None:
        """Count the time of a redirected request from its first send."""
        for pool in self._pools:
            pool.ended(exchange)
        exchange.start, exchange.connect_ns, exchange.lost_ns = first.start, first.connect_ns, first.lost_ns
        exchange.reused = first.reused
        exchange.retries += first.retries

    def _on_reply(self, exchange: Exchange, record: Record, reply: Reply | None) -> None:
        """Continue a conversation whose next turn contains this reply, or end it if the request failed.

        A cancelled request does not end its conversation, as in AIPerf. The next turn contains the part of the reply that had
        arrived; if nothing had arrived, it does not contain the cancelled turn."""
        session: Session = exchange.tag.session
        if session.parts is None or not session.continues:
            return
        more = record.cancelled or (reply is not None and record.failure is None)
        if more and reply is not None and (reply.outputs or not record.cancelled):
            self._bodies.remember(session, reply)
        if more or not self._waits_for_server(session, exchange, more=False):
            self._end_turn(session, exchange.end, more=more)
            self._pump()

    def _on_space(self) -> None:
        if self._held_since:
            self._pump()

    def _cancel_all(self, reason: str) -> None:
        running, self._running = self._running, False  # `_pump`, which each end of an exchange calls, does nothing then
        for pool in self._pools:
            for exchange in list(pool.busy):
                exchange.cancelled = True
                pool.abort(exchange, WireError("Cancelled", reason, "penstock"))
        self._running = running

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
        self._abort_overdue(now)
        self._preconnect.check_timeout(now)
        if self._running and self._ticks % self._progress_ticks == 0:
            self._on_event(self._progress())
        if self._running:
            self._pump()
        if self._on_tick is not None:
            self._on_tick()

    def _progress(self) -> Progress:
        processor, live, scheduler, report = self._processor, self._processor.live, self._scheduler, self._report
        if self._running and self._machine is not None:
            report.wire_stats, report.machine = self._wire_stats, self._machine.cpu_facts()
        return Progress(
            self._sent,
            self._ended,
            processor.failed,
            self._sent - self._ended,
            live.latency,
            live.first_content,
            live.chunk_gap,
            waiting=0 if scheduler is None else scheduler.waiting(monotonic_ns()),
            tokens=live.tokens,
            tokens_reads=live.tokens_reads,
            reads=self._wire_stats.reads,
            errors=live.errors,
            stamps=live.stamps,
            coalesced_stamps=live.coalesced_stamps,
            report=report,
            oldest=min(
                [_issued(next(iter(pool.busy))) for pool in self._pools if pool.busy],
                default=monotonic_ns() - self._epoch,
            ),
        )

    def _abort_overdue(self, now: int) -> None:
        limit = self._timeout_ns
        for pool in self._pools:
            for exchange in _overdue(pool, now - limit - self._epoch):
                text = f"No complete reply within {limit / 1e9:g} s."
                pool.abort(exchange, WireError("Timeout", text, "server"))


def _issued(exchange: Exchange) -> int:
    in_flight: InFlight = exchange.tag
    return in_flight.record.issued


def _overdue(pool: Pool, before: int) -> list[Exchange]:
    """Return the exchanges that were issued before `before`. The pool lists the oldest first."""
    return list(takewhile(lambda exchange: _issued(exchange) <= before, pool.busy))
