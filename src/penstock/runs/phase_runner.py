"""The runner: starts the workers, runs phases on them one after the other, and returns their results. It prints nothing.

with PhaseRunner(backend, log) as runner:
    for phase in phases:
        result = runner.run(phase)
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from penstock.errors import DiskFull, RunError, UserError
from penstock.records.log import (
    INPUT_ERROR,
    Decision,
    LoggedData,
    LoggedPhase,
    LoggedPoint,
    LoggedResume,
    LostWorker,
    RunnerLog,
    Sample,
)
from penstock.runs.companion import Companion
from penstock.schedule.phase import Phase
from penstock.wire.stats import DurationSketch
from penstock.workers.backend import Backend
from penstock.workers.messages import (
    Close,
    Command,
    Connected,
    DataComplete,
    ErrorCause,
    Event,
    LoadData,
    PhaseDone,
    Progress,
    Ready,
    SetLimits,
    StartPhase,
    Stop,
    WorkerDied,
    WorkerFailed,
)

_ECHO_NS = 100_000_000
"""A wrapper such as `timeout` forwards the SIGINT that the terminal has already sent to the whole process group. A second
signal within this time is such a copy, because nobody presses Ctrl-C twice so fast."""
_NO_PROGRESS = Progress()


class RunProgress(NamedTuple):
    """Counts are totals over all workers and all phases so far."""

    phase: int
    """Index of the phase among those of this process."""
    began: int
    """Monotonic ns; 0 while connections are being opened."""
    connected: int
    sent: int
    ended: int
    failed: int
    in_flight: int
    stopping: int
    """0: running; 1: no more requests are sent; 2: the requests in flight are cancelled, too; 3: the workers that have not
    ended the phase are killed."""
    workers: Sequence[Progress]
    """The progress of each worker."""

    @property
    def latency(self) -> DurationSketch:
        """Latencies in the phase, of every eighth request."""
        return _merged([worker.latency for worker in self.workers])

    @property
    def first_content(self) -> DurationSketch:
        """Times to the first content in the phase, of every eighth request."""
        return _merged([worker.first_content for worker in self.workers])

    @property
    def chunk_gap(self) -> DurationSketch:
        """Times between the chunks of streams in the phase, of every eighth request."""
        return _merged([worker.chunk_gap for worker in self.workers])

    @property
    def errors(self) -> dict[ErrorCause, int]:
        """Failed requests in the phase, by cause."""
        causes: Counter[ErrorCause] = Counter()
        for worker in self.workers:
            causes.update(worker.errors)
        return dict(causes)


class PhaseResult(msgspec.Struct, frozen=True):
    index: int
    phase: Phase
    began: int
    """Monotonic ns."""
    progress: RunProgress
    """The counts at its end."""
    next_position: int
    """Position in the order of the dataset after the last conversation of the phase."""
    stopped: bool
    """True if the phase was ended early."""


class PhaseRunner:
    def __init__(
        self,
        backend: Backend,
        log: str,
        *,
        epoch: int = 0,
        companions: Sequence[Companion] = (),
        on_begin: Callable[[], None] | None = None,
        on_progress: Callable[[RunProgress], None] | None = None,
        on_sample: Callable[[Sample], None] | None = None,
        resume: LoggedResume | None = None,
    ) -> None:
        """`log` is the folder of the run's log. `on_begin` is called before the first request, `on_progress` about every
        10 ms while the runner waits, and `on_sample` with each sample of telemetry. `resume` says where a run goes on that an
        earlier process began; the gap ends when the first phase starts."""
        self._backend = backend
        self._log_folder = log
        self._epoch = epoch
        self._companions = companions
        self._on_begin = on_begin
        self._on_progress = on_progress
        self._on_sample = on_sample
        self._log: RunnerLog | None = None
        self._data: LoggedData | None = None
        workers = range(backend.workers)
        self._progress = dict.fromkeys(workers, _NO_PROGRESS)
        self._connected = dict.fromkeys(workers, 0)
        self._ready: set[int] = set()
        self._lost: dict[int, LostWorker] = {}
        self._failures: list[tuple[int, WorkerFailed]] = []
        self._running: dict[int, RunningPhase] = {}
        """Phases that were started and not waited for, by index."""
        self._resume = resume
        self._first_phase = 0 if resume is None else resume.first_phase
        self._first_worker = 0 if resume is None else resume.first_worker
        self._phases = self._first_phase
        self._began = 0
        self._interrupts = 0
        self._interrupted_at = 0
        self._stop_sent = 0
        self._must_stop = False
        self.companion_error: str | None = None
        """Why a companion ended the run early; valid after the end of the run."""

    # -- start and end of a run ----------------------------------------------------------------------------------------

    def __enter__(self) -> PhaseRunner:
        self._log = RunnerLog(self._log_folder)
        try:
            for companion in self._companions:
                companion.start(self)
            self._backend.start(self._on_event)
        except BaseException:
            try:
                self._backend.close()
            finally:
                self._finish_companions()
                self._log.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or self._failures:
                with contextlib.suppress(OSError):
                    self._backend.send(Close())
            self._backend.close()
        finally:
            self._finish_companions()
            if self._log is not None:
                if self.companion_error is not None:
                    self.log_decision(INPUT_ERROR, {"reason": self.companion_error})
                self._log_nodes()
                self._log.close()
        if kind is None:
            self._raise_failures()

    def _finish_companions(self) -> None:
        for companion in self._companions:
            reason = companion.finish()
            self.companion_error = self.companion_error or reason

    @property
    def began(self) -> bool:
        """True if a first request may have been sent."""
        return self._phases > self._first_phase

    @property
    def interrupts(self) -> int:
        """How often the run was interrupted: 0 to 3."""
        return self._interrupts

    @property
    def stopping(self) -> bool:
        """True if no other phase may start."""
        return self._interrupts > 0 or self._must_stop

    @property
    def running(self) -> list[RunningPhase]:
        """The phases that were started and not waited for to their end."""
        return list(self._running.values())

    @property
    def lost_workers(self) -> list[LostWorker]:
        """Workers whose process ended during the run."""
        return list(self._lost.values())

    def interrupt(self, now: int | None = None) -> None:
        """End the run early. The first call lets requests in flight finish, the second one cancels them, and the third one
        kills the workers that have not ended the phase, such as one that is stopped or waits for a disk.

        A signal handler may call this: it only notes the interrupt."""
        now = monotonic_ns() if now is None else now
        if self._interrupts and now - self._interrupted_at < _ECHO_NS:
            return
        self._interrupted_at = now
        self._interrupts = min(3, self._interrupts + 1)

    # -- phases -------------------------------------------------------------------------------------------------------

    def run(self, phase: Phase) -> PhaseResult | None:
        """Run a phase and return its result; None if the run has to end before it starts."""
        running = self.start(phase)
        return None if running is None else running.wait()

    def start(self, phase: Phase, *, drain: bool = True, connections: int = 0) -> RunningPhase | None:
        """Start a phase; return None if the run has to end instead.

        With `drain`, the previous phase ends first; without, it ends when this one begins, and its requests in flight
        keep their slots until they end. Workers open connections until there are `connections`."""
        if drain:
            self._drain()
        self._wait(lambda: len(self._ready | self._lost.keys()) == self._backend.workers)
        if self.stopping:
            return None
        for companion in self._companions:
            companion.before_phase(phase)
        if not self.began and self._on_begin is not None:
            self._on_begin()
        if drain:
            self._between_phases()
        self._began = monotonic_ns() + self._backend.lead_ns
        assert self._log is not None
        if self._resume is not None and not self.began:
            self._log.resume(msgspec.structs.replace(self._resume, end=self._began - self._epoch))
        if not self.began:
            self._log_nodes()
        index, self._phases = self._phases, self._phases + 1
        self._log.phase(
            LoggedPhase(
                index,
                phase.name,
                phase.kind,
                phase.point,
                self._began - self._epoch,
                describe_phase(phase),
                self._data,
            )
        )
        self._stop_sent = 0
        running = self._running[index] = RunningPhase(self, index, phase, self._began)
        self._send(StartPhase(index, phase, self._began, connections))
        self._send_stop()
        return running

    def _log_nodes(self) -> None:
        """Log the nodes of a cluster: before the first phase, and at the end, when the drift of their clocks is known."""
        assert self._log is not None
        for node in self._backend.nodes:
            self._log.node(node)

    def begin_point(self, point: LoggedPoint) -> None:
        """Log a point of an experiment, whose phases follow."""
        if point.drained:
            self._drain()
        assert self._log is not None
        self._log.point(msgspec.structs.replace(point, offsets=self._log_sizes()))

    def _log_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the files of all workers so far. A worker flushes its file at the end of a phase."""
        numbers = range(self._first_worker + self._backend.workers)
        paths = [os.path.join(self._log_folder, f"worker-{number}.log") for number in numbers]
        return tuple(os.path.getsize(path) if os.path.exists(path) else 0 for path in paths)

    def load(self, data: LoggedData, seed: int | None = None) -> None:
        """Take the conversations of the next phases from another payload store, in a folder within the log. `seed` is that
        of their order."""
        self._drain()
        self._data = data
        self._send(LoadData(os.path.join(self._log_folder, data.folder), data.files, seed))

    def pause(self, seconds: float) -> None:
        """Wait between two phases; return early if the run has to end."""
        self._drain()
        deadline = monotonic_ns() + round(seconds * 1e9)
        self._wait(lambda: monotonic_ns() >= deadline)

    def _drain(self) -> None:
        """Wait for the end of all phases that were started."""
        for running in self.running:
            running.wait()

    def log_decision(self, kind: str, values: Mapping[str, Any] | None = None, phase: int | None = None) -> None:
        """Log what a stop rule, a search or the user decided about a phase; by default about the one that was started last."""
        assert self._log is not None
        if phase is None and self.began:
            phase = self._phases - 1
        self._log.decision(Decision(kind, phase, monotonic_ns() - self._epoch, dict(values or {})))

    # -- for companions -----------------------------------------------------------------------------------------------

    def data_complete(self) -> None:
        self._send(DataComplete())

    def add_sample(self, source: str, at_ns: int, values: dict[str, Any]) -> None:
        assert self._log is not None
        sample = Sample(source, at_ns - self._epoch, values)
        self._log.sample(sample)
        if self._on_sample is not None:
            self._on_sample(sample)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _send(self, command: Command) -> None:
        self._backend.send(command)

    def _on_event(self, worker: int, event: Event) -> None:
        match event:
            case Ready():
                self._ready.add(worker)
            case Connected():
                self._connected[worker] = event.count
            case Progress():
                self._progress[worker] = event
            case PhaseDone():
                self._progress[worker] = event.progress
                if (running := self._running.get(event.index)) is not None:
                    running.worker_done(worker, event)
            case WorkerFailed():
                self._failures.append((worker, event))
            case WorkerDied():
                self._lose(worker, event)
        for companion in self._companions:
            companion.worker_event(event)

    def _lose(self, worker: int, event: WorkerDied) -> None:
        phase = self._phases - 1
        number = self._first_worker + worker
        self._lost[worker] = lost = LostWorker(number, phase, monotonic_ns() - self._epoch, event.how)
        self._progress[worker] = msgspec.structs.replace(self._progress[worker], in_flight=0)
        if self._log is not None:
            self._log.lost(lost)
        if self._interrupts < 3 and (phase < self._first_phase or len(self._lost) == self._backend.workers):
            self._failures.append((worker, WorkerFailed("died", event.how)))

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done` returns True or the run has to end, which stops the running phase."""

        def step() -> bool:
            self._step()
            return bool(self._failures) or done() or (self.stopping and not self._running)

        self._backend.wait(step)
        if self._failures:
            self._stop_after_failure()
            self._raise_failures()

    def _stop_after_failure(self) -> None:
        """Let the workers that are left cancel their requests and write their reports."""
        if not self._running:
            return
        last = self._running[max(self._running)]
        self._send(Stop(2))

        def step() -> bool:
            self._send_stop()  # a further interrupt may have to kill the others
            return last.unfinished <= {worker for worker, _ in self._failures}

        self._backend.wait(step)

    def _raise_failures(self) -> None:
        for kind, error in (("disk", DiskFull), ("user", UserError), ("run", RunError)):
            for _, failure in self._failures:
                if failure.kind == kind:
                    raise error(failure.text)
        if self._failures:
            worker, failure = self._failures[0]
            if failure.kind == "died":
                raise RunError(f"Worker {worker} {failure.text}.")
            raise RunError(f"Worker {worker} failed. {failure.text}")

    def _step(self) -> None:
        for companion in self._companions:
            if companion.poll():
                self._must_stop = True
        self._send_stop()
        if self._on_progress is not None:
            self._on_progress(self.progress)

    def _send_stop(self) -> None:
        """Tell the workers if the run has to end."""
        level = max(self._interrupts, int(self._must_stop))
        if level > self._stop_sent:
            self._stop_sent = level
            self._send(Stop(min(2, level)))
        if self._interrupts > 2:
            for running in self.running:
                self._backend.kill(running.unfinished)

    @property
    def progress(self) -> RunProgress:
        counts = list(self._progress.values())
        return RunProgress(
            max(0, self._phases - 1 - self._first_phase),
            self._began,
            sum(self._connected.values()),
            sum(worker.sent for worker in counts),
            sum(worker.ended for worker in counts),
            sum(worker.failed for worker in counts),
            sum(worker.in_flight for worker in counts),
            self._stop_sent,
            counts,
        )

    def _phase_is_over(self, phase: RunningPhase) -> None:
        if self._running.pop(phase.index, None) is None:
            return
        if not self._running:
            self._between_phases()
        for companion in self._companions:
            companion.after_phase(phase.phase)

    def _between_phases(self) -> None:
        for companion in self._companions:
            companion.between_phases()


class RunningPhase:
    """A phase that was started."""

    def __init__(self, runner: PhaseRunner, index: int, phase: Phase, began: int) -> None:
        self._runner = runner
        self._done: dict[int, PhaseDone] = {}
        self.index = index
        self.phase = phase
        self.began = began
        self._stopped = False

    @property
    def progress(self) -> RunProgress:
        return self._runner.progress

    def set_limits(self, *, slots: int | None = None, prefill_slots: int | None = None) -> None:
        """Change limits while the phase runs. Raise ValueError for a limit that the phase does not have, or that exceeds the
        largest value that it was announced with."""
        for name, value in (("slots", slots), ("prefill_slots", prefill_slots)):
            limit = getattr(self.phase, name)
            if value is not None and (limit is None or not 1 <= value <= limit.maximum):
                raise ValueError(f"{name} can be set to 1 up to the maximum of the phase, not to {value}")
        self._runner._send(SetLimits(slots, prefill_slots))

    def stop(self, *, cancel: bool = False) -> None:
        """Send nothing more; with `cancel`, cancel the requests in flight, too."""
        self._runner._send(Stop(2 if cancel else 1))
        self._stopped = True

    def worker_done(self, worker: int, event: PhaseDone) -> None:
        self._done[worker] = event

    @property
    def unfinished(self) -> set[int]:
        """The workers that have not ended the phase."""
        return set(range(self._runner._backend.workers)) - self._done.keys() - self._runner._lost.keys()

    @property
    def done(self) -> bool:
        return not self.unfinished

    def poll(self, seconds: float = 0.0) -> bool:
        """Wait up to `seconds` for the end of the phase; return whether it has ended."""
        deadline = monotonic_ns() + round(seconds * 1e9)
        self._runner._wait(lambda: self.done or monotonic_ns() >= deadline)
        return self.done

    def watch(self, until: Callable[[RunningPhase], bool]) -> None:
        """Wait until the function returns True, which is called about every 10 ms, or until the phase ends. The phase goes
        on."""
        self._runner._wait(lambda: until(self) or self.done)

    def wait(self, until: Callable[[RunningPhase], bool] | None = None, *, grace_s: float = math.inf) -> PhaseResult:
        """Wait for the end of the phase and return its result. `until` is called about every 10 ms; the phase is stopped
        when it returns True. The requests that are still in flight `grace_s` later are cancelled."""
        cancel_at = math.inf

        def is_done() -> bool:
            nonlocal cancel_at
            if until is not None and not self._stopped and until(self):
                self.stop()
                cancel_at = monotonic_ns() + grace_s * 1e9
            elif monotonic_ns() >= cancel_at:
                self.stop(cancel=True)
                cancel_at = math.inf
            return self.done

        runner = self._runner
        runner._wait(is_done)
        progress = runner.progress
        runner._phase_is_over(self)
        numbers = [done.next_number for done in self._done.values()]
        position = self.phase.first + -(-max(numbers, default=0) // self.phase.servers.copies)
        stopped = self._stopped or progress.stopping > 0
        return PhaseResult(self.index, self.phase, self.began, progress, position, stopped)


def _merged(sketches: Sequence[DurationSketch]) -> DurationSketch:
    merged = DurationSketch()
    for sketch in sketches:
        merged.merge(sketch)
    return merged


def describe_phase(phase: Phase) -> dict[str, Any]:
    """Return the phase as plain values, for the log."""
    result = {}
    for name in phase.__struct_fields__:
        value = getattr(phase, name)
        if isinstance(value, msgspec.Struct):
            fields = {field: getattr(value, field) for field in value.__struct_fields__}
            value = {"type": value.__struct_config__.tag or type(value).__name__, **fields}
        result[name] = value
    return result
