"""The rule of `--until`, on records that a worker has written."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.metrics.precision import parse_precision
from penstock.records.log import UNTIL, LoggedData, LogWriter, RunLog
from penstock.records.worker_report import WorkerReport
from penstock.runs import until as until_module
from penstock.runs.observer import Observer
from penstock.runs.point_runner import PointRunner
from penstock.runs.points import Point
from penstock.runs.resume import BegunPoint
from penstock.runs.start_run import StartedRun
from penstock.runs.stored_data import read_stored
from penstock.runs.until import UntilRule
from penstock.schedule.phase import Phase, Resumed
from penstock.workers.messages import Progress
from support.records import MS, make_record
from support.runs import PROFILING, WARMUP, write_log
from support.worker_harness import make_phase

IDLE = Progress(report=WorkerReport(0))


def running(progress: Progress) -> Any:
    return SimpleNamespace(index=0, progress=SimpleNamespace(workers=[progress]))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until_module, "_POLL_NS", 0)


class Run:
    """A run whose worker has written all its records before this process goes on after the start of the phase."""

    interrupts = index = 0
    stopping = False
    progress = SimpleNamespace(ended=0, failed=0, workers=())

    def __init__(self, folder: Path) -> None:
        self.decisions: dict[str, dict[str, Any]] = {}
        self._folder = folder

    def pause(self, _: float) -> None: ...

    def start(self, _: Phase, **__: Any) -> "Run":
        write_records(self._folder, 150)
        return self

    def wait(self, until: Callable[[Any], bool], **_: Any) -> Any:
        until(self)
        return SimpleNamespace(next_position=0)

    def log_decision(self, kind: str, values: dict[str, Any] | None = None, phase: int = 0) -> None:
        self.decisions[kind] = values or {}


def write_records(folder: Path, count: int) -> None:
    log = LogWriter(str(folder), 0)
    for at in range(count):
        start, latency = at * 200 * MS, 100 * MS + at % 7 * MS
        log.record(make_record(start=start, issued=at, end=start + latency, stamps=[50 * MS, latency]))
    log.close()


def run_point(run: Any, log: str, begun: BegunPoint | None = None) -> None:
    """Run a point whose profiling phase ends when the mean latency is known to 10 ms."""
    settings = replace(RunLog.read_header(log).settings, until="avg request_latency ±10")
    logged: Any = begun and SimpleNamespace(begun=begun, count=0, position=0, points=[], datasets=list)
    data = read_stored(log, LoggedData(""), RunLog.read_header(log))
    prepared: Any = SimpleNamespace(job=SimpleNamespace(log=log, seed=RunLog.read_header(log).seed), data=data)
    none: Any = None
    PointRunner(StartedRun(settings, none, prepared, run, logged), Observer()).run(Point(settings, alone=True))


def test_no_request_is_missed_when_this_process_is_slow(tmp_path: Path) -> None:
    log = write_log(tmp_path, [])
    run = Run(Path(log))
    run_point(run, log)
    assert run.decisions[UNTIL]["requests"] == 150


def test_resumed_phase_counts_the_requests_of_the_profiling_phases_before_it(tmp_path: Path) -> None:
    """Of the two requests in the log, one belongs to the warmup."""
    log = write_log(tmp_path, [make_record(), make_record(phase=1)], phases=(WARMUP, PROFILING))
    run = Run(Path(log))
    run.index = 2
    run.start = lambda *_, **__: run  # type: ignore[method-assign]
    run_point(run, log, BegunPoint(None, (make_phase(resumed=Resumed()),), 0))
    assert run.decisions[UNTIL]["requests"] == 1


@pytest.mark.parametrize(("width", "reached"), [("10", True), ("0.001", False)])
def test_requests_after_the_last_look_count_at_the_end(tmp_path: Path, width: str, reached: bool) -> None:
    """A run can end at its limit before the rule has looked at its last requests."""
    rule = UntilRule(str(tmp_path), parse_precision(f"avg request_latency ±{width}"))
    write_records(tmp_path, 0)
    assert not rule.is_met(running(IDLE))
    write_records(tmp_path, 150)
    facts = rule.facts()
    assert facts["requests"] == 150
    assert facts["reached"] == reached
    assert not facts["ended_run"]
    assert facts["interval"]["low"] < 103 < facts["interval"]["high"]


def test_requests_before_a_resume_count_without_another_look_at_them(tmp_path: Path) -> None:
    """The resumed phase is the second one. Its worker has sent nothing yet, and those before it do not exist any more."""
    write_records(tmp_path, 150)
    rule = UntilRule(str(tmp_path), parse_precision("avg request_latency ±10"), earlier={0: ()})
    resumed = SimpleNamespace(index=1, progress=SimpleNamespace(workers=[Progress(report=WorkerReport(1))]))
    assert not rule.is_met(resumed)
    log = LogWriter(str(tmp_path), 1)
    for at in range(50):
        start, latency = (150 + at) * 200 * MS, 100 * MS + at % 7 * MS
        log.record(
            make_record(start=start, issued=at, end=start + latency, stamps=[50 * MS, latency], phase=1, worker=1)
        )
    log.flush()
    resumed.progress.workers = [Progress(ended=50, oldest=500 * MS, report=WorkerReport(1))]
    assert rule.is_met(resumed)
    facts = rule.facts()
    assert facts["requests"] == 200
    assert facts["level"] == pytest.approx(1 - 0.05 / 4)  # the second checkpoint
    log.close()


def test_short_requests_do_not_count_while_those_that_were_issued_with_them_are_in_flight(tmp_path: Path) -> None:
    """300 requests start together; 200 of them take 100 ms, and 100 take 400 ms."""
    rule = UntilRule(str(tmp_path), parse_precision("avg request_latency ±50%"))
    log = LogWriter(str(tmp_path), 0)
    latencies = [400 if i % 3 == 0 else 100 for i in range(300)]

    def end(taken: int) -> None:
        for i, latency in enumerate(latencies):
            if latency == taken:
                log.record(make_record(start=i, end=i + latency * MS, stamps=[50 * MS, latency * MS]))
        log.flush()

    end(100)
    assert not rule.is_met(running(Progress(ended=200, oldest=0, report=WorkerReport(0))))
    # The message comes before the records.
    assert not rule.is_met(running(Progress(ended=300, oldest=500 * MS, report=WorkerReport(0))))
    end(400)
    assert rule.is_met(running(Progress(ended=300, oldest=500 * MS, report=WorkerReport(0))))
    facts = rule.facts()
    assert facts["ended_run"]
    assert facts["interval"]["low"] < 200 < facts["interval"]["high"]
    log.close()


def test_requests_of_earlier_points_are_not_read(tmp_path: Path) -> None:
    write_records(tmp_path, 150)
    before = [Progress(ended=150, report=WorkerReport(0))]
    rule = UntilRule(str(tmp_path), parse_precision("avg request_latency ±10"), before=before)
    assert not rule.is_met(running(before[0]))
    assert rule.facts()["requests"] == 0


def test_requests_of_conversations_that_begin_again_do_not_count(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path), 0)
    for number in range(3):
        log.record(make_record(number=number))
    log.close()
    rule = UntilRule(str(tmp_path), parse_precision("avg request_latency ±10"), {0: {1}})
    assert not rule.is_met(SimpleNamespace(index=1, progress=SimpleNamespace(workers=[IDLE])))  # type: ignore[arg-type]
    assert rule.facts()["requests"] == 2
