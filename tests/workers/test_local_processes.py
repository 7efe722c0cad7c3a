"""How many workers, what they share, and when they start."""

from __future__ import annotations

import os
import resource
from time import monotonic_ns

import pytest

from penstock.errors import UserError
from penstock.schedule.scheduler import Share
from penstock.workers import local_processes
from penstock.workers import shared_state as cells
from penstock.workers.local_processes import choose_workers, raise_file_limit
from penstock.workers.phase_controller import PhaseController, Progress
from penstock.workers.shared_state import SharedState


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
        os._exit(local_processes._child(None, Share(), SharedState(1), -1, os.getpid()))  # type: ignore[arg-type]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_the_board_is_shared_with_children():
    board = SharedState(2)
    pid = os.fork()
    if pid == 0:
        board.set(1, cells.ENDED, 41)
        while board.stop != 2:
            pass
        board.set(1, cells.ENDED, 42)
        os._exit(0)
    board.set(0, cells.ENDED, 8)
    board.stop = 2
    os.waitpid(pid, 0)
    assert board.total(cells.ENDED) == 50
    assert board.least(cells.ENDED) == 8


def conducted(workers: int, phases: int) -> tuple[PhaseController, SharedState, list[Progress]]:
    board = SharedState(workers)
    shown: list[Progress] = []
    return PhaseController(board, phases, shown.append), board, shown


def test_a_phase_starts_when_every_worker_is_ready_for_it():
    conductor, board, _ = conducted(2, 2)
    board.set(0, cells.READY, 1)
    conductor.step()
    assert board.gone(0) is None
    board.set(1, cells.READY, 1)
    before = monotonic_ns()
    conductor.step()
    start = board.gone(0)
    assert start is not None
    assert start > before
    assert board.gone(1) is None
    board.set(0, cells.PHASE_DONE, 1)
    conductor.step()
    assert board.gone(1) is None
    board.set(1, cells.PHASE_DONE, 1)
    conductor.step()
    assert board.gone(1) is not None
    assert board.gone(1) > start


def test_interrupts_are_passed_on_and_counted_to_two():
    conductor, board, shown = conducted(1, 1)
    assert conductor.interrupted == 0
    for second, level in enumerate((1, 2, 2)):
        conductor.interrupt(second * 1_000_000_000)
        assert board.stop == conductor.interrupted == level
        assert shown[-1].stopping == level


def test_one_ctrl_c_that_comes_by_two_ways_is_one():
    conductor, board, _ = conducted(1, 1)
    conductor.interrupt(5_000_000_000)
    conductor.interrupt(5_050_000_000)
    assert board.stop == conductor.interrupted == 1
    conductor.interrupt(5_150_000_000)
    assert board.stop == conductor.interrupted == 2


def test_the_display_is_told_the_sum_of_all_workers():
    conductor, board, shown = conducted(3, 1)
    for worker in range(3):
        board.set(worker, cells.SENT, 10 + worker)
        board.set(worker, cells.FAILED, worker)
    conductor.step()
    assert (shown[-1].sent, shown[-1].failed) == (33, 3)
