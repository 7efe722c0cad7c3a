"""The scheduler: its decisions for given times and events."""

from __future__ import annotations

import heapq
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schedule.arrivals import constant
from penstock.schedule.phases import PhasePlan
from penstock.schedule.scheduler import Decision, Scheduler, Share, split

MS = 1_000_000


def scheduler(begin: int = 0, *, slots: int | None = None, arrivals=None, **stops) -> Scheduler:
    made = Scheduler(share=Share(), slots=slots, arrivals=arrivals, **stops)
    made.begin(begin)
    return made


def every(ms: int):
    return (n * ms * MS for n in count())


def sends(made: Scheduler, now: int) -> list[Decision]:
    """Return all decisions to send at this moment."""
    decisions = []
    while (decision := made.next(now)).kind == "send":
        decisions.append(decision)
    return decisions


@pytest.mark.parametrize("arrivals", [None, 10], ids=["closed loop", "open loop"])
def test_ready_predicts_next_without_side_effects(arrivals):
    made = scheduler(5 * MS, slots=2, arrivals=None if arrivals is None else every(arrivals), requests=3)
    for now in range(0, 60 * MS, MS):
        assert made.ready(now) is made.ready(now)
        ready = made.ready(now)
        assert (made.next(now).kind == "send") is ready
        if now == 30 * MS:
            made.ended(now)
    assert not made.ready(60 * MS)


# -- closed loop ------------------------------------------------------------------------------------------------------


def test_closed_loop_fills_its_slots_and_is_then_full():
    made = scheduler(1000, slots=3)
    assert [(s.number, s.intended, s.slot_free_at) for s in sends(made, 1005)] == [
        (0, 1000, 1000),
        (1, 1000, 1000),
        (2, 1000, 1000),
    ]
    assert made.next(2000).kind == "full"
    assert made.active == 3


def test_nothing_is_sent_before_the_phase_begins():
    made = scheduler(1000, slots=3)
    assert made.next(999) == Decision("wait", 1000)
    assert len(sends(made, 1000)) == 3


def test_closed_loop_session_is_due_when_its_slot_became_free():
    made = scheduler(slots=2)
    sends(made, 0)
    made.ended(50)
    made.ended(70)
    # `next` is called late: both are due when their slots became free, the earlier one first.
    assert [(s.number, s.intended, s.slot_free_at) for s in sends(made, 100)] == [(2, 50, 50), (3, 70, 70)]


def test_closed_loop_is_over_when_its_requests_are_sent():
    made = scheduler(slots=2, requests=3)
    assert len(sends(made, 0)) == 2
    made.ended(10)
    assert [s.number for s in sends(made, 10)] == [2]
    made.ended(20)
    assert made.next(20).kind == "over"
    assert made.active == 1


# -- open loop --------------------------------------------------------------------------------------------------------


def test_open_loop_sends_on_time_regardless_of_active_sessions():
    made = scheduler(100, arrivals=every(10))
    assert [(s.number, s.intended) for s in sends(made, 100)] == [(0, 100)]
    assert made.next(100) == Decision("wait", 100 + 10 * MS)
    assert made.next(100 + 10 * MS - 1).kind == "wait"
    assert [(s.number, s.intended) for s in sends(made, 100 + 10 * MS)] == [(1, 100 + 10 * MS)]
    assert made.active == 2


def test_late_sends_keep_their_times_and_do_not_delay_later_ones():
    made = scheduler(arrivals=every(10))
    sends(made, 0)
    late = sends(made, 35 * MS)
    assert [(s.intended, s.slot_free_at) for s in late] == [(10 * MS, 10 * MS), (20 * MS, 20 * MS), (30 * MS, 30 * MS)]
    assert made.next(35 * MS) == Decision("wait", 40 * MS)


# -- both -------------------------------------------------------------------------------------------------------------


def test_session_without_a_free_slot_is_sent_late_and_not_dropped():
    made = scheduler(slots=1, arrivals=every(10), requests=5)
    assert [s.number for s in sends(made, 0)] == [0]
    assert made.next(10 * MS).kind == "full"
    assert made.next(45 * MS).kind == "full"
    made.ended(47 * MS)
    (second,) = sends(made, 47 * MS)
    assert (second.number, second.intended, second.slot_free_at) == (1, 10 * MS, 47 * MS)
    made.ended(48 * MS)
    (third,) = sends(made, 49 * MS)
    assert (third.number, third.intended, third.slot_free_at) == (2, 20 * MS, 48 * MS)
    for number, at in ((3, 30 * MS), (4, 40 * MS)):
        made.ended(50 * MS)
        (decision,) = sends(made, 50 * MS)
        assert (decision.number, decision.intended) == (number, at)
    made.ended(60 * MS)
    assert made.next(60 * MS).kind == "over"


def test_slot_free_at_is_the_due_time_if_a_slot_was_free():
    made = scheduler(slots=2, arrivals=every(10))
    sends(made, 0)
    made.ended(3 * MS)
    (decision,) = sends(made, 12 * MS)
    assert (decision.intended, decision.slot_free_at) == (10 * MS, 10 * MS)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_nothing_is_sent_after_the_duration():
    made = scheduler(1000, slots=1, duration_ns=50)
    assert made.ends_at == 1050
    sends(made, 1000)
    made.ended(1040)
    assert len(sends(made, 1049)) == 1
    made.ended(1049)
    assert made.next(1050).kind == "over"


def test_arrival_after_the_end_is_not_awaited():
    made = scheduler(arrivals=every(10), duration_ns=25 * MS)
    assert [len(sends(made, at * MS)) for at in (0, 10, 20)] == [1, 1, 1]
    assert made.next(20 * MS).kind == "over"


def test_first_stop_rule_that_is_reached_ends_the_phase():
    counted = scheduler(slots=1, requests=1, duration_ns=10**12)
    sends(counted, 0)
    counted.ended(5)
    assert counted.next(5).kind == "over"
    timed = scheduler(slots=1, requests=100, duration_ns=4)
    sends(timed, 0)
    timed.ended(5)
    assert timed.next(5).kind == "over"


def test_stopped_scheduler_sends_nothing_more():
    made = scheduler(slots=5)
    made.next(0)
    made.stop()
    assert made.next(0).kind == "over"
    assert not made.another_turn(0)


def test_turns_count_as_requests_and_keep_their_slot():
    made = scheduler(slots=1, requests=3)
    sends(made, 0)
    assert made.another_turn(10)
    assert made.next(10).kind == "full"
    assert made.another_turn(20)
    assert not made.another_turn(30)
    made.ended(30)
    assert made.next(30).kind == "over"


# -- shares -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_shares_add_up_and_differ_by_at_most_one(total, workers):
    parts = [split(total, Share(worker, workers)) for worker in range(workers)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


def simulate(phase: PhasePlan, workers: int, latency_ms) -> list[tuple[int, int]]:
    """Simulate `workers` schedulers; check slots and times, and return (number, intended) of all sessions."""
    sent: list[tuple[int, int]] = []
    for worker in range(workers):
        made = phase.scheduler(Share(worker, workers))
        made.begin(0)
        slots = made._slots
        running: list[int] = []
        now = 0
        while (decision := made.next(now)).kind != "over":
            if decision.kind == "send":
                assert decision.number % workers == worker
                assert decision.intended <= decision.slot_free_at <= now
                sent.append((decision.number, decision.intended))
                heapq.heappush(running, now + latency_ms(decision.number) * MS)
                assert slots is None or len(running) <= slots
            elif decision.kind == "wait":
                assert decision.intended > now
                if running and running[0] <= decision.intended:
                    now = heapq.heappop(running)
                    made.ended(now)
                else:
                    now = decision.intended
            else:
                now = heapq.heappop(running)
                made.ended(now)
    return sorted(sent)


def make_phase(**fields) -> PhasePlan:
    all_fields = {"slots": None, "rate": None, "pattern": "poisson", "seed": 3} | fields
    return PhasePlan(name="profiling", kind="profiling", first=0, **all_fields)


@given(
    requests=st.integers(1, 200),
    workers=st.integers(1, 9),
    pattern=st.sampled_from(["constant", "poisson"]),
    slots=st.none() | st.integers(9, 40),
    latencies=st.lists(st.integers(0, 50), min_size=1, max_size=7),
)
def test_any_number_of_workers_sends_the_same_sessions_at_the_same_times(requests, workers, pattern, slots, latencies):
    phase = make_phase(requests=requests, rate=500.0, pattern=pattern, slots=slots)

    def latency(number: int) -> int:
        return latencies[number % len(latencies)]

    alone = simulate(phase, 1, latency)
    assert [number for number, _ in alone] == list(range(requests))
    assert simulate(phase, workers, latency) == alone


@given(requests=st.integers(1, 100), workers=st.integers(1, 5), slots=st.integers(5, 20))
def test_any_number_of_workers_sends_the_same_sessions_in_a_closed_loop(requests, workers, slots):
    phase = make_phase(requests=requests, slots=slots)
    numbers = [number for number, _ in simulate(phase, workers, lambda number: number % 7)]
    assert numbers == list(range(requests))


@given(slots=st.integers(1, 100), workers=st.integers(1, 16))
def test_slots_are_split_evenly_and_completely(slots, workers):
    parts = [make_phase(slots=slots).scheduler(Share(worker, workers))._slots for worker in range(workers)]
    assert sum(parts) == slots
    assert max(parts) - min(parts) <= 1


def test_workers_together_have_the_arrival_times_of_the_phase():
    phase = make_phase(rate=250.0, pattern="constant", requests=1000)
    assert [intended for _, intended in simulate(phase, 4, lambda _: 1)] == list(islice(constant(250.0), 1000))


@pytest.mark.parametrize("workers", [1, 3])
def test_duration_limits_every_worker(workers):
    phase = make_phase(rate=1000.0, pattern="constant", duration_s=0.1)
    assert [number for number, _ in simulate(phase, workers, lambda _: 1)] == list(range(100))
