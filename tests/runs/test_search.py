"""The search for the largest load, against a simulated server with a queue. Its time is simulated, too."""

from __future__ import annotations

import heapq
import math
from contextlib import nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.cli.profile import COMMAND_LINE
from penstock.errors import UserError
from penstock.metrics.capacity import ObjectiveTest, parse_slo
from penstock.records.log import LogWriter
from penstock.records.record import Record
from penstock.records.worker_report import WorkerReport
from penstock.runs import search as search_module
from penstock.runs.log_tail import LogTail
from penstock.runs.points import Point, PointOutcome
from penstock.runs.read_experiment import read_experiment
from penstock.runs.search import Search
from penstock.schedule.limits import Fixed
from penstock.settings.parse import parse
from penstock.workers.messages import Progress
from support.records import make_record

SECOND = 1_000_000_000
SLOTS, SERVICE_S, FIRST_S = 10, 0.2, 0.02
CAPACITY = SLOTS / SERVICE_S
"""Requests per second."""


class Simulation:
    """A server with slots and a queue, and a client that changes the load while requests are in flight."""

    def __init__(self, log: Path, seed: int, warm_up_s: float = 0.0) -> None:
        """Until `warm_up_s`, first tokens come half a second later."""
        self._warm_up = round(warm_up_s * SECOND)
        log.mkdir(parents=True)
        self._log = LogWriter(str(log), 0)
        self._random = Random(seed)
        self._free = [0] * SLOTS
        self._in_flight: list[tuple[int, int, Record]] = []
        self._now = 0
        self._phase = -1
        self.sent = 0
        self.loads: list[Point] = []

    def run(self, search: Search) -> None:
        points = search.points()
        try:
            point = next(points)
            while True:
                self._run(point)
                self.loads.append(point)
                assert point.rule is not None
                point = points.send(PointOutcome(point, None, facts=point.rule.facts()))
        except StopIteration:
            self._log.close()

    def _run(self, point: Point) -> None:
        self._phase += 1
        while point.drain and self._in_flight:
            self._end_next()
        began = self._now
        load = point.settings.load
        sent_before = self.sent
        assert point.rule is not None
        running: Any = SimpleNamespace(index=self._phase, done=False, progress=SimpleNamespace())
        while True:
            if load.rate is not None:
                arrival = began + round((self.sent - sent_before) * SECOND / load.rate)
                while self._in_flight and self._in_flight[0][0] <= arrival:
                    self._end_next()
                self._now = arrival
                self._send()
            else:
                slots = point.slots or Fixed(load.concurrency or 1)
                while len(self._in_flight) < slots.at(self._now - began):
                    self._send()
                change = slots.next_change(self._now - began)
                if change is not None and self._in_flight[0][0] > began + change:
                    self._now = began + change
                else:
                    self._end_next()
            if self.sent % 16 == 0:
                self._log.flush()
                oldest = min((record.start for _, _, record in self._in_flight), default=self._now)
                ended = self.sent - len(self._in_flight)
                running.progress.workers = [Progress(ended=ended, oldest=oldest, report=WorkerReport(0))]
                if point.rule.is_met(running):
                    return
            assert self.sent < 100_000

    def _send(self) -> None:
        start = self._now
        begin = max(start, heapq.heappop(self._free))
        end = begin + round(SERVICE_S * SECOND * self._random.uniform(0.9, 1.1))
        heapq.heappush(self._free, end)
        first = begin + round(FIRST_S * SECOND) - start
        if start < self._warm_up:
            first, end = first + SECOND // 2, end + SECOND // 2
        record = make_record(
            phase=self._phase,
            intended=start,
            issued=start,
            start=start,
            sent=start,
            first_byte=start + first,
            end=end,
            stamps=[first, end - start],
            pieces=[1, 4],
        )
        heapq.heappush(self._in_flight, (end, self.sent, record))
        self.sent += 1

    def _end_next(self) -> None:
        self._now, _, record = heapq.heappop(self._in_flight)
        self._log.record(record)


def find(folder: Path, seed: int, *flags: object, warm_up_s: float = 0.0) -> tuple[Search, Simulation]:
    arguments = ["--model", "m", "--tokenizer", "builtin", "--artifact-dir", folder, "--random-seed", seed, *flags]
    search = read_experiment(parse(COMMAND_LINE, list(map(str, arguments)), "penstock"))
    assert isinstance(search, Search)
    simulation = Simulation(folder / "log", seed, warm_up_s)
    simulation.run(search)
    return search, simulation


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "POLL_NS", 0)


LOWEST, HIGHEST = 4, 256


def is_contained(search: Search, simulation: Simulation, truth: float) -> bool:
    """Return whether the interval contains the truth and is at most 10 % wide on both sides."""
    limit = search.result.limit
    assert limit is not None
    assert limit.high is not None
    bisection = 1000 * math.ceil(math.log2((HIGHEST - LOWEST) / (0.1 * truth)))
    assert simulation.sent <= bisection
    return limit.low <= truth < limit.high and (limit.high - limit.low) / 2 <= 0.1 * truth


CASES = pytest.mark.parametrize(
    ("parameter", "slo", "truth"),
    [
        # The medians are 320 ms with 25 requests in flight, and 341 ms with 26.
        ("concurrency", "p50 time_to_first_token<331", 25),
        # The 90th percentiles are 318 ms with 23 requests in flight, and 339 ms with 24.
        ("concurrency", "p90 time_to_first_token<331", 23),
        ("request-rate", "p90 time_to_first_token<250", CAPACITY),
        ("request-rate", "p99 time_to_first_token<250", CAPACITY),
    ],
)


@CASES
def test_interval_contains_the_capacity(tmp_path: Path, parameter: str, slo: str, truth: float) -> None:
    search, simulation = find(
        tmp_path, 1, *("--find-max", parameter, "--slo", slo, "--search-min", LOWEST, "--search-max", HIGHEST)
    )
    assert is_contained(search, simulation, truth)
    assert {"pass", "fail"} <= {load.decision for load in search.result.loads}


@pytest.mark.slow
@CASES
def test_interval_contains_the_capacity_in_nine_of_ten_searches(
    tmp_path: Path, parameter: str, slo: str, truth: float
) -> None:
    flags = ("--find-max", parameter, "--slo", slo, "--search-min", LOWEST, "--search-max", HIGHEST)
    contained = [is_contained(*find(tmp_path / str(seed), seed, *flags), truth) for seed in range(10)]
    assert sum(contained) >= 9


def test_server_that_is_slow_for_three_seconds_is_visited_until_it_is_warm(tmp_path: Path) -> None:
    flags = ("--find-max", "concurrency", "--slo", "p90 time_to_first_token<331", "--search-max", 32)
    search, simulation = find(tmp_path, 1, *flags, warm_up_s=3)
    limit = search.result.limit
    assert limit is not None
    assert limit.low >= 16
    assert simulation.loads[1].label == "concurrency_1_visit_2"
    assert search.result.loads[0].changed


def test_progress_knows_how_many_requests_a_load_may_still_take(tmp_path: Path) -> None:
    flags = ("--find-max", "concurrency", "--slo", "p90 time_to_first_token<331", "--search-level-requests", 2000)
    _, simulation = find(tmp_path, 1, *flags)
    most = {point.most_requests for point in simulation.loads if point.settings.load.concurrency == 16}
    assert most == {500 + 2 * 16}  # the test; its last visit takes 2,000
    last = simulation.loads[-1]
    assert last.most_requests == 2000 + 2 * (last.settings.load.concurrency or 0)


def test_load_changes_while_requests_are_in_flight(tmp_path: Path) -> None:
    """Only a rate that was too high is drained: its queue would be judged at the next rate."""
    slo = ("--slo", "p90 time_to_first_token<250", "--search-min", LOWEST, "--search-max", HIGHEST)
    _, by_concurrency = find(tmp_path / "concurrency", 1, "--find-max", "concurrency", *slo)
    assert [point.drain for point in by_concurrency.loads] == [True] + [False] * (len(by_concurrency.loads) - 1)
    ramps = [point.slots for point in by_concurrency.loads[1:] if point.slots is not None]
    assert (ramps[0].at(0), ramps[0].at(SECOND)) == (4, 8)
    _, by_rate = find(tmp_path / "rate", 1, "--find-max", "request-rate", *slo)
    rates = [point.settings.load.rate or 0.0 for point in by_rate.loads]
    assert [point.drain for point in by_rate.loads] == [True, *(rate > CAPACITY for rate in rates[:-1])]


def test_requests_before_those_of_the_last_level_have_ended_are_not_judged(tmp_path: Path) -> None:
    search, simulation = find(
        tmp_path, 1, *("--find-max", "concurrency", "--slo", "p50 time_to_first_token<331", "--search-min", 4)
    )
    judged = sum(load.requests for load in search.result.loads)
    assert judged < simulation.sent - sum(int(load.value) for load in search.result.loads)


def level_rule(log: Path, objective: str, load: float, visit: Any) -> Any:
    slos = (parse_slo(objective),)
    tail = LogTail(str(log))
    return search_module.LoadRule(tail, ObjectiveTest(slos), slos, load, search_module.Start(False), visit)


RUNNING: Any = SimpleNamespace(index=0, done=True, progress=SimpleNamespace(workers=()))


@pytest.mark.parametrize(("streamed", "message"), [(False, "add --streaming"), (True, None)])
def test_objective_for_a_metric_that_no_reply_has_is_an_error(
    tmp_path: Path, streamed: bool, message: str | None
) -> None:
    rule = level_rule(tmp_path, "p50 time_to_first_token<100", 1, "test")
    log = LogWriter(str(tmp_path), 0)
    log.record(make_record() if streamed else make_record(streamed=False, stamps=[], pieces=[]))
    log.close()
    rule.is_met(RUNNING)
    with nullcontext() if message is None else pytest.raises(UserError, match=message):
        rule.check_measured()


def test_request_that_the_client_may_have_delayed_does_not_decide(tmp_path: Path) -> None:
    """The stamp of the first content covers several segments, and the socket was empty long before the limit."""
    late = make_record(stamps=[150_000_000, 200_000_000], pieces=[1, 4])
    unclear = replace(late, coalesced=[0], earliest=[50_000_000])
    log = LogWriter(str(tmp_path), 0)
    rule = level_rule(tmp_path, "p90 time_to_first_token<100", 4, "test")
    for at in range(20):
        log.record(replace(unclear, start=at * SECOND, end=at * SECOND + 1))
    log.flush()
    assert not rule.is_met(RUNNING)
    assert rule.result().requests == 0
    for at in range(20, 40):
        log.record(replace(late, start=at * SECOND, end=at * SECOND + 1))
    log.close()
    assert rule.is_met(RUNNING)
    assert rule.result().decision == "fail"
    assert rule.result().misses == (20,)


def test_level_does_not_pass_while_slow_requests_are_in_flight(tmp_path: Path) -> None:
    """Of 64 requests at a time, every fifth takes 10 s instead of 0.1 s. The fast ones do not show it."""
    log = LogWriter(str(tmp_path), 0)
    rule = level_rule(tmp_path, "p90 request_latency<1000", 64, "first look")
    ends = [(slot * 1_000_000 + turn * SECOND // 10, SECOND // 10) for turn in range(10) for slot in range(51)]
    for start, latency in ends:
        log.record(make_record(start=start, issued=start, end=start + latency, stamps=[latency // 2, latency]))
    log.flush()
    workers = [Progress(ended=len(ends), oldest=0, report=WorkerReport(0))]
    assert not rule.is_met(SimpleNamespace(index=0, done=False, progress=SimpleNamespace(workers=workers)))
    for slot in range(51, 64):
        start, latency = slot * 1_000_000, 10 * SECOND
        log.record(make_record(start=start, issued=start, end=start + latency, stamps=[latency // 2, latency]))
    log.close()
    workers = [Progress(ended=len(ends) + 13, oldest=10 * SECOND, report=WorkerReport(0))]
    rule.is_met(SimpleNamespace(index=0, done=False, progress=SimpleNamespace(workers=workers)))
    assert rule.result().misses == (13,)
    assert rule.result().requests == 523
