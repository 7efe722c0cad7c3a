"""How many workers, what they share, and when they start."""

from __future__ import annotations

import os
import resource
from time import monotonic_ns

import pytest

from penstock.errors import UserError
from penstock.schedule.scheduler import Share
from penstock.workers import local_processes
from penstock.workers.local_processes import choose_workers, raise_file_limit
from penstock.workers.phase_controller import PhaseController, RunProgress
from penstock.workers.shared_state import ENDED, FAILED, PHASE_DONE, READY, SENT, SharedState


@pytest.mark.parametrize(
    ("cores", "concurrency", "rate", "requests", "limit", "workers"),
    [
        (8, 1, None, None, None, 1),
        (8, 512, None, None, None, 1),
        (8, 513, None, None, None, 2),
        (8, 20_000, None, None, None, 7),
        (2, 20_000, None, None, None, 1),
        (1, 20_000, None, None, None, 1),
        (8, None, 2000.0, None, None, 1),
        (8, None, 10_000.0, None, None, 5),
        (8, 20_000, None, 3, None, 3),
        (8, 64, None, 20_000, None, 1),
        (8, 64, None, 50_000, None, 3),
        (8, 2, None, 50_000, None, 2),
        (2, 64, None, 50_000, None, 1),
        (8, 1, None, None, 4, 1),
        (8, 100, None, None, 4, 4),
        (2, 100, None, None, 4, 4),
        (8, 100, None, 2, 4, 2),
        (8, None, 5.0, 10, 2, 2),
    ],
)
def test_one_process_for_what_one_core_does_with_ease(monkeypatch, cores, concurrency, rate, requests, limit, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert choose_workers(concurrency, rate, requests, limit) == workers


class Limits:
    """Those of a system that takes no soft limit above `most`."""

    def __init__(self, soft: int, hard: int, most: int) -> None:
        self.now = (soft, hard)
        self._most = most

    def getrlimit(self, _: int) -> tuple[int, int]:
        return self.now

    def setrlimit(self, _: int, limits: tuple[int, int]) -> None:
        if limits[0] == resource.RLIM_INFINITY or limits[0] > self._most:
            raise ValueError("current limit exceeds maximum limit")
        self.now = limits


def limited(monkeypatch: pytest.MonkeyPatch, made: Limits) -> Limits:
    monkeypatch.setattr(resource, "getrlimit", made.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", made.setrlimit)
    return made


@pytest.fixture
def limits(monkeypatch):
    return limited(monkeypatch, Limits(1024, 4096, 4096))


def test_a_system_that_names_no_limit_and_has_one(monkeypatch):
    """macOS refuses more than 10,240, whatever it says."""
    limits = limited(monkeypatch, Limits(256, resource.RLIM_INFINITY, 10_240))
    raise_file_limit(300, 300, 1)
    assert 300 < limits.now[0] < 400
    raise_file_limit(None, 40, 1)
    assert limits.now[0] == 10_240
    with pytest.raises(UserError, match="the system allows 10240"):
        raise_file_limit(20_000, 20_000, 1)


def test_a_system_without_a_limit(monkeypatch):
    limits = limited(monkeypatch, Limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY, 0))
    raise_file_limit(20_000, 20_000, 1)
    assert limits.now[0] == resource.RLIM_INFINITY


def test_the_limit_of_open_files_is_left_where_it_suffices(limits):
    raise_file_limit(500, 500, 1)
    assert limits.now == (1024, 4096)


def test_the_limit_of_open_files_is_raised_as_far_as_needed(limits):
    raise_file_limit(2000, 2000, 1)
    assert 2000 < limits.now[0] <= 2100


def test_without_slots_the_limit_is_raised_as_far_as_it_goes(limits):
    raise_file_limit(None, 40, 1)
    assert limits.now == (4096, 4096)


def test_several_workers_share_the_need(limits):
    raise_file_limit(20_000, 20_000, 8)
    assert limits.now[0] >= 2500


def test_a_limit_that_is_too_low_is_told_before_the_run(limits):
    with pytest.raises(UserError, match=r"20000 connections .* the system allows 4096; raise the limit \(ulimit -n\)"):
        raise_file_limit(20_000, 20_000, 1)


def test_a_worker_whose_parent_is_gone_ends_before_it_begins():
    """Asked in a child, because the system is told to end it with its parent."""
    pid = os.fork()
    if pid == 0:
        os._exit(local_processes._run_child(None, Share(), SharedState(1), -1, os.getpid()))  # type: ignore[arg-type]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_the_board_is_shared_with_children():
    shared = SharedState(2)
    pid = os.fork()
    if pid == 0:
        shared.set(1, ENDED, 41)
        while shared.stop != 2:
            pass
        shared.set(1, ENDED, 42)
        os._exit(0)
    shared.set(0, ENDED, 8)
    shared.stop = 2
    os.waitpid(pid, 0)
    assert shared.total(ENDED) == 50
    assert shared.minimum(ENDED) == 8


def make_controller(workers: int, phases: int) -> tuple[PhaseController, SharedState, list[RunProgress]]:
    shared = SharedState(workers)
    shown: list[RunProgress] = []
    return PhaseController(shared, phases, shown.append), shared, shown


def test_a_phase_starts_when_every_worker_is_ready_for_it():
    controller, shared, _ = make_controller(2, 2)
    shared.set(0, READY, 1)
    controller.step()
    assert shared.phase_start(0) is None
    shared.set(1, READY, 1)
    before = monotonic_ns()
    controller.step()
    start = shared.phase_start(0)
    assert start is not None
    assert start > before
    assert shared.phase_start(1) is None
    shared.set(0, PHASE_DONE, 1)
    controller.step()
    assert shared.phase_start(1) is None
    shared.set(1, PHASE_DONE, 1)
    controller.step()
    assert shared.phase_start(1) is not None
    assert shared.phase_start(1) > start


def test_interrupts_are_passed_on_and_counted_to_two():
    controller, shared, shown = make_controller(1, 1)
    assert controller.interrupts == 0
    for second, level in enumerate((1, 2, 2)):
        controller.interrupt(second * 1_000_000_000)
        assert shared.stop == controller.interrupts == level
        assert shown[-1].stopping == level


def test_one_ctrl_c_that_comes_by_two_ways_is_one():
    controller, shared, _ = make_controller(1, 1)
    controller.interrupt(5_000_000_000)
    controller.interrupt(5_050_000_000)
    assert shared.stop == controller.interrupts == 1
    controller.interrupt(5_150_000_000)
    assert shared.stop == controller.interrupts == 2


def test_the_display_is_told_the_sum_of_all_workers():
    controller, shared, shown = make_controller(3, 1)
    for worker in range(3):
        shared.set(worker, SENT, 10 + worker)
        shared.set(worker, FAILED, worker)
    controller.step()
    assert (shown[-1].sent, shown[-1].failed) == (33, 3)
