"""The phase controller: when phases start, what an interrupt does, and what the display receives."""

from __future__ import annotations

from time import monotonic_ns

from penstock.workers.phase_controller import PhaseController, RunProgress
from penstock.workers.shared_state import FAILED, PHASE_DONE, READY, SENT, SharedState


def make_controller(workers: int, phases: int) -> tuple[PhaseController, SharedState, list[RunProgress]]:
    shared = SharedState(workers)
    shown: list[RunProgress] = []
    return PhaseController(shared, phases, shown.append), shared, shown


def test_phase_starts_when_all_workers_are_ready():
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


def test_interrupts_are_passed_to_workers_and_counted_up_to_two():
    controller, shared, shown = make_controller(1, 1)
    assert controller.interrupts == 0
    for second, level in enumerate((1, 2, 2)):
        controller.interrupt(second * 1_000_000_000)
        assert shared.stop == controller.interrupts == level
        assert shown[-1].stopping == level


def test_ctrl_c_that_arrives_twice_within_100_ms_counts_once():
    controller, shared, _ = make_controller(1, 1)
    controller.interrupt(5_000_000_000)
    controller.interrupt(5_050_000_000)
    assert shared.stop == controller.interrupts == 1
    controller.interrupt(5_150_000_000)
    assert shared.stop == controller.interrupts == 2


def test_display_receives_the_totals_of_all_workers():
    controller, shared, shown = make_controller(3, 1)
    for worker in range(3):
        shared.set(worker, SENT, 10 + worker)
        shared.set(worker, FAILED, worker)
    controller.step()
    assert (shown[-1].sent, shown[-1].failed) == (33, 3)


def test_no_phase_starts_after_an_interrupt():
    controller, shared, _ = make_controller(1, 1)
    controller.interrupt()
    shared.set(0, READY, 1)
    controller.step()
    assert shared.phase_start(0) is None
    assert not controller.began


def test_begin_is_called_once_before_the_first_phase():
    shared = SharedState(1)
    starts: list[int | None] = []
    controller = PhaseController(shared, 2, None, None, lambda: starts.append(shared.phase_start(0)))
    shared.set(0, READY, 1)
    controller.step()
    shared.set(0, PHASE_DONE, 1)
    controller.step()
    assert shared.phase_start(1) is not None
    assert starts == [None]


def test_run_that_must_stop_sends_nothing_more():
    shared = SharedState(1)
    controller = PhaseController(shared, 1, None, lambda: True)
    shared.set(0, READY, 1)
    controller.step()
    assert (shared.stop, controller.interrupts, controller.began) == (1, 0, False)
