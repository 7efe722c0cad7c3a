"""The runner: several phases on the same workers, limits that change, rules that stop a phase, and lost workers."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest

from penstock.errors import RunError, UserError
from penstock.mock_server.mock_process import MockProcess, parse_mock_url
from penstock.records.log import INPUT_ERROR, RunLog
from penstock.records.payloads import PayloadWriter
from penstock.records.record import Record
from penstock.runs.companion import Companion, CompanionControl
from penstock.runs.phase_runner import PhaseResult, PhaseRunner
from penstock.schedule.limits import Fixed, LinearRamp
from penstock.schedule.phase import Phase
from penstock.schedule.share import Share
from penstock.settings.schema import EndpointSettings
from penstock.workers.backend import OnEvent
from penstock.workers.in_process import InProcess
from penstock.workers.job import Job, take_secrets, targets
from penstock.workers.local_processes import ForkedWorkers, SpawnedWorkers
from penstock.workers.messages import (
    Close,
    Command,
    Event,
    PhaseDone,
    Ready,
    StartPhase,
    WorkerDied,
    WorkerFailed,
)
from penstock.workers.ray_cluster import NodeAgent, Tail
from support.programs import wait_for
from support.runs import make_header
from support.worker_harness import Connection, Harness, Request, always, chat_reply, make_phase

BODIES = [[{"messages": [], "n": number}] for number in range(40)]


class InFlight:
    """Answers after a time and counts the requests that wait."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.now = 0
        self.seen: list[int] = []

    async def __call__(self, request: Request, connection: Connection) -> None:
        self.now += 1
        self.seen.append(self.now)
        await asyncio.sleep(self._seconds)
        self.now -= 1
        await connection.send(chat_reply())


# -- phases -----------------------------------------------------------------------------------------------------------


def test_phases_of_different_shapes_run_on_the_same_connections(tmp_path: Path) -> None:
    server = InFlight(0.02)
    harness = Harness(tmp_path, server)
    shapes = [
        make_phase(name="closed", slots=4, requests=12),
        make_phase(name="open", slots=None, rate=200.0, requests=10, first=12),
        make_phase(name="ramp", slots=LinearRamp(1, 4, 0.05), requests=12, first=22),
    ]
    outcome = harness.run_phases(BODIES, shapes, preconnect=4)
    assert [sum(record.phase == n for record in outcome.records) for n in range(3)] == [12, 10, 12]
    assert [result.phase.name for result in outcome.results] == ["closed", "open", "ramp"]
    assert [record.conversation for record in outcome.records] == list(range(34))
    assert [report.phase for report in outcome.reports] == [0, 1, 2]
    assert [report.requests for report in outcome.reports] == [12, 10, 12]
    assert harness.connections[0] < 34 - 12
    log = RunLog(str(tmp_path / "log"))
    assert [(phase.name, phase.load["slots"]) for phase in log.phases[:2]] == [
        ("closed", {"type": "fixed", "value": 4, "reserve": 0}),
        ("open", None),
    ]


def test_next_phase_continues_where_the_dataset_stopped(tmp_path: Path) -> None:
    def experiment() -> Generator[Phase, PhaseResult, None]:
        result = yield make_phase(slots=2, duration_s=0.1)
        yield make_phase(slots=1, requests=3, first=result.next_position)

    harness = Harness(tmp_path, InFlight(0.005))
    outcome = harness.run_experiment(BODIES, experiment())
    first = [record.conversation for record in outcome.records if record.phase == 0]
    second = [record.conversation for record in outcome.records if record.phase == 1]
    assert sorted(first) == list(range(len(first)))
    assert second == [(len(first) + n) % 40 for n in range(3)]


def test_limits_can_change_while_a_phase_runs(tmp_path: Path) -> None:
    server = InFlight(0.02)
    raised: list[bool] = []

    async def answer(request: Request, connection: Connection) -> None:
        while request.number >= 9 and not raised:
            await asyncio.sleep(0.005)
        await server(request, connection)

    harness = Harness(tmp_path, answer)

    def raise_limit(runner: PhaseRunner) -> None:
        running = next(iter(runner.running), None)
        if running is not None and len(harness.requests) == 10:
            running.set_limits(slots=5)
            raised.append(True)

    harness.on_tick = raise_limit
    harness.run_phases(BODIES, [make_phase(slots=Fixed(1, reserve=5), requests=30)])
    assert max(server.seen[:9]) == 1
    assert max(server.seen) == 5


@pytest.mark.parametrize("limits", [{"slots": 0}, {"slots": 6}, {"prefill_slots": 1}])
def test_limits_that_the_phase_was_not_announced_with_are_refused(tmp_path: Path, limits: dict[str, int]) -> None:
    harness = Harness(tmp_path, always(chat_reply()))

    def change(runner: PhaseRunner) -> None:
        for running in runner.running:
            running.set_limits(**limits)

    harness.on_tick = change
    with pytest.raises(ValueError, match="1 up to the maximum of the phase"):
        harness.run_phases(BODIES, [make_phase(slots=5, requests=3)])


def test_rule_outside_the_worker_stops_a_phase_and_the_next_one_runs(tmp_path: Path) -> None:
    harness = Harness(tmp_path, InFlight(0.01))

    def stop_after_ten(runner: PhaseRunner) -> None:
        for running in runner.running:
            if running.index == 0 and running.progress.ended >= 10:
                running.stop()

    harness.on_tick = stop_after_ten
    outcome = harness.run_phases(BODIES, [make_phase(slots=2, requests=1000), make_phase(slots=1, requests=4)])
    first, second = outcome.results
    assert first.stopped
    assert not second.stopped
    assert 10 <= sum(record.phase == 0 for record in outcome.records) < 1000
    assert sum(record.phase == 1 for record in outcome.records) == 4
    assert all(record.failure is None for record in outcome.records)


def test_requests_that_outlast_the_grace_period_of_a_stopped_phase_are_cancelled(tmp_path: Path) -> None:
    async def answer(request: Request, connection: Connection) -> None:
        await asyncio.sleep(0 if request.number < 4 else 60)
        await connection.send(chat_reply())

    harness = Harness(tmp_path, answer)
    phase = make_phase(slots=2, requests=1000)
    outcome = harness.run_until(BODIES, phase, lambda running: running.progress.ended >= 4, grace_s=0.05)
    assert [record.cancelled for record in outcome.records] == [False] * 4 + [True] * 2
    assert outcome.results[0].stopped


def test_next_phase_can_start_without_draining(tmp_path: Path) -> None:
    server = InFlight(0.05)
    harness = Harness(tmp_path, server)
    outcome = harness.run_phases(
        BODIES, [make_phase(slots=4, duration_s=60.0), make_phase(slots=4, requests=12)], drain=False, lead_s=0.2
    )
    first = [record for record in outcome.records if record.phase == 0]
    second = [record for record in outcome.records if record.phase == 1]
    assert len(second) == 12
    log = RunLog(str(tmp_path / "log"))
    assert max(record.end for record in first) > log.phases[1].start
    assert max(server.seen) == 4  # the requests of the first phase kept their slots
    assert all(record.failure is None for record in outcome.records)


def test_phase_that_ends_just_before_the_next_one_does_not_end_that_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InProcess, "lead_ns", 300_000_000)

    started: list[bool] = []

    async def answer(_: Request, connection: Connection) -> None:
        while not started:
            await asyncio.sleep(0.005)
        await connection.send(chat_reply())

    def note_start(runner: PhaseRunner) -> None:
        if len(runner.running) == 2:
            started.append(True)

    def phases() -> Iterator[Phase]:
        yield make_phase(slots=1, requests=1)
        assert harness.runner is not None
        (first,) = harness.runner.running
        first.watch(lambda _: len(harness.requests) == 1)
        yield make_phase(slots=1, requests=3)

    harness = Harness(tmp_path, answer)
    harness.on_tick = note_start
    outcome = harness.run_phases(BODIES, phases(), drain=False)
    assert [report.requests for report in outcome.reports] == [1, 3]


# -- backends ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mock_url() -> Iterator[str]:
    with MockProcess(parse_mock_url("mock://?ttft=20")) as mock:
        yield mock.url


class Run:
    """A run against the mock with real worker processes."""

    def __init__(self, folder: Path, url: str, conversations: int = 40) -> None:
        self.log = str(folder / "log")
        os.makedirs(self.log)
        writer = PayloadWriter(self.log)
        for number in range(conversations):
            body = {"model": "m", "messages": [{"role": "user", "content": f"word {number}"}], "max_tokens": 3}
            writer.add_body(json.dumps(body).encode())
            writer.end_conversation(None)
        writer.close()
        RunLog.write_header(self.log, make_header(workers=2))
        self.settings = EndpointSettings(urls=(url,))
        self.job = Job(log=self.log, settings=self.settings, files=(), sampling="sequential", seed=1, preconnect=2)
        self.epoch = monotonic_ns()

    def forked(self, workers: int = 2) -> ForkedWorkers:
        return ForkedWorkers(self.job, targets(self.settings, "/v1/chat/completions"), self.epoch, workers)

    def spawned(self, workers: int = 2) -> SpawnedWorkers:
        return SpawnedWorkers(self.job, self.epoch, workers, 128)

    def records(self) -> list[Record]:
        log = RunLog(self.log)
        return sorted(log.records(), key=lambda record: record.number)


def test_spawned_workers_give_the_same_records_as_forked_ones(tmp_path: Path, mock_url: str) -> None:
    runs = []
    for name in ("forked", "spawned"):
        run = Run(tmp_path / name, mock_url)
        backend = run.forked() if name == "forked" else run.spawned()
        with PhaseRunner(backend, run.log, epoch=run.epoch) as runner:
            result = runner.run(make_phase(slots=4, requests=20))
        assert result is not None
        assert (result.progress.sent, result.progress.ended, result.progress.failed) == (20, 20, 0)
        runs.append([(r.number, r.conversation, r.worker, r.status, r.usage, r.digest) for r in run.records()])
    assert len(runs[0]) == 20
    assert runs[0] == runs[1]


def test_agent_of_a_node_sends_the_log_before_the_end_of_a_phase(tmp_path: Path, mock_url: str) -> None:
    run = Run(tmp_path, mock_url)
    agent = NodeAgent()
    folder, _ = agent.describe()
    for name in ("payloads.bin", "payloads.idx", "conversations.idx", "sessions.bin"):
        agent.write(name, (Path(run.log) / name).read_bytes())
    job, secrets = take_secrets(run.job._replace(log=folder))
    agent.start(job, secrets, run.epoch, [1], 2, 128)
    messages: list[Any] = []

    def receive(kind: type[Any]) -> bool:
        messages.extend(agent.poll())
        return any(isinstance(message[1], kind) for message in messages if not isinstance(message, Tail))

    wait_for(lambda: receive(Ready), what="the start of the worker")
    agent.send(StartPhase(0, make_phase(slots=4, requests=20), monotonic_ns() + 50_000_000))
    wait_for(lambda: receive(PhaseDone), what="the end of the phase")
    agent.send(Close())
    for message in messages:
        if isinstance(message, Tail):
            with open(os.path.join(run.log, message.name), "ab") as file:
                file.write(message.data)
        elif isinstance(message[1], PhaseDone):
            assert message[0] == 1
            assert [(record.number, record.worker) for record in run.records()] == [(n, 1) for n in range(1, 20, 2)]
    agent.remove()
    assert not os.path.exists(folder)


@pytest.mark.slow
def test_other_workers_finish_when_one_is_killed(tmp_path: Path, mock_url: str) -> None:
    run = Run(tmp_path, mock_url)
    backend = run.forked()

    def kill_one(_: object) -> None:
        if 1 in backend.pids and runner.progress.ended >= 4:
            os.kill(backend.pids[1], signal.SIGKILL)

    runner = PhaseRunner(backend, run.log, epoch=run.epoch, on_progress=kill_one)
    with runner:
        result = runner.run(make_phase(slots=4, requests=600))
    assert result is not None
    (lost,) = runner.lost_workers
    assert (lost.worker, lost.how) == (1, "was killed by signal 9")
    assert sum(record.worker == 0 for record in run.records()) == 300
    log = RunLog(run.log)
    assert log.lost_workers == [lost]
    assert [report.worker for report in log.reports()] == [0]


@pytest.mark.parametrize("workers", [1, 2])
def test_third_interrupt_kills_the_worker_that_does_not_stop(tmp_path: Path, mock_url: str, workers: int) -> None:
    run = Run(tmp_path, mock_url)
    backend = run.forked(workers)
    hanging = workers - 1

    def interrupt(_: object) -> None:
        for running in runner.running:
            if not runner.interrupts and running.progress.ended >= 4:
                os.kill(backend.pids[hanging], signal.SIGSTOP)
                runner.interrupt(now=1_000_000_000)
                runner.interrupt(now=2_000_000_000)
            elif runner.interrupts == 2 and running.unfinished == {hanging}:
                runner.interrupt(now=3_000_000_000)

    runner = PhaseRunner(backend, run.log, epoch=run.epoch, on_progress=interrupt)
    with runner:
        result = runner.run(make_phase(slots=4, requests=2000))
    assert result is not None
    assert result.stopped
    assert [(lost.worker, lost.how) for lost in runner.lost_workers] == [(hanging, "was killed by signal 9")]


class HangingWorker:
    """Two workers: one fails when a phase starts, and the other one never answers. The user presses Ctrl-C meanwhile."""

    workers = 2
    lead_ns = 0
    nodes = ()

    def __init__(self) -> None:
        self.runner: PhaseRunner | None = None
        self._on_event: OnEvent | None = None

    def _tell(self, worker: int, event: Event) -> None:
        assert self._on_event is not None
        self._on_event(worker, event)

    def start(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        for worker in range(2):
            self._tell(worker, Ready())

    def send(self, command: Command) -> None:
        if isinstance(command, StartPhase):
            self._tell(0, WorkerFailed("run", "The disk is full."))

    def wait(self, step: Callable[[], bool]) -> None:
        assert self.runner is not None
        for number in range(100):
            if step():
                return
            self.runner.interrupt(now=(number + 1) * 1_000_000_000)
        raise AssertionError("the run waits for ever")

    def kill(self, numbers: set[int]) -> None:
        for number in numbers:
            self._tell(number, WorkerDied("was killed by signal 9"))

    def close(self) -> None: ...


def test_interrupts_end_the_wait_after_a_failure(tmp_path: Path) -> None:
    backend = HangingWorker()
    runner = backend.runner = PhaseRunner(backend, str(tmp_path))
    with pytest.raises(RunError, match=r"The disk is full\."), runner:
        runner.run(make_phase(slots=2, requests=2))


def test_worker_that_does_not_end_is_killed(tmp_path: Path, mock_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.workers.local_processes._END_TIMEOUT_S", 0.0)
    run = Run(tmp_path, mock_url)
    backend = run.forked(1)
    with PhaseRunner(backend, run.log, epoch=run.epoch) as runner:
        runner.run(make_phase(slots=1, requests=1))
        os.kill(backend.pids[0], signal.SIGSTOP)
    assert not backend.pids
    assert len(run.records()) == 1


def test_run_fails_when_all_workers_are_killed(tmp_path: Path, mock_url: str) -> None:
    run = Run(tmp_path, mock_url)
    backend = run.forked()

    def kill_all(_: object) -> None:
        if runner.progress.ended >= 4:
            for pid in backend.pids.values():
                os.kill(pid, signal.SIGKILL)

    runner = PhaseRunner(backend, run.log, epoch=run.epoch, on_progress=kill_all)
    with pytest.raises(RunError, match=r"Worker \d was killed by signal 9"), runner:
        runner.run(make_phase(slots=4, requests=2000))


def test_workers_end_when_another_one_cannot_be_started(
    tmp_path: Path, mock_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, mock_url)
    backend = run.forked()
    start = ForkedWorkers._start_child

    def start_one(self: ForkedWorkers, share: Share, *sockets: Any) -> Any:
        if share.worker:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return start(self, share, *sockets)

    monkeypatch.setattr(ForkedWorkers, "_start_child", start_one)
    message = r"A worker process cannot be started: Resource temporarily unavailable"
    with pytest.raises(UserError, match=message), PhaseRunner(backend, run.log, epoch=run.epoch):
        pass
    assert not backend.pids


# -- companions -------------------------------------------------------------------------------------------------------


class Thermometer(Companion):
    """Takes a sample at each poll, and stops the run after ten."""

    def __init__(self) -> None:
        self.control: CompanionControl | None = None
        self.samples = 0

    def start(self, control: CompanionControl) -> None:
        self.control = control

    def poll(self) -> bool:
        assert self.control is not None
        self.samples += 1
        self.control.add_sample("thermometer", monotonic_ns(), {"degrees": self.samples})
        return self.samples >= 10

    def finish(self) -> str | None:
        return "It is too hot."


def test_companion_takes_samples_and_stops_the_run(tmp_path: Path, mock_url: str) -> None:
    run = Run(tmp_path, mock_url)
    companion = Thermometer()
    runner = PhaseRunner(run.forked(), run.log, epoch=run.epoch, companions=[companion])
    with runner:
        result = runner.run(make_phase(slots=2, duration_s=60.0))
        assert runner.run(make_phase(slots=2, requests=1)) is None
    assert result is None or result.stopped
    assert runner.companion_error == "It is too hot."
    log = RunLog(run.log)
    samples, decisions = list(log.samples()), list(log.decisions())
    assert [(each.kind, each.values) for each in decisions] == [(INPUT_ERROR, {"reason": "It is too hot."})]
    assert [sample.values["degrees"] for sample in samples[:10]] == list(range(1, 11))
    assert all(0 <= sample.at < 60e9 for sample in samples)
