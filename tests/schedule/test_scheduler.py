"""The scheduler: its decisions for given times and events."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schedule.arrivals import Constant, Recorded
from penstock.schedule.limits import Fixed, LinearRamp
from penstock.schedule.random_arrivals import Poisson
from penstock.schedule.scheduler import CUT_OFF, OVER, STARVED, Scheduler, Wait
from penstock.schedule.server_assignment import EachServer
from penstock.schedule.share import Share, split
from penstock.schedule.turn_timing import AtArrivals, AtRecordedTimes, TurnEnd
from support.schedules import MS, SECOND, Data, every, make_phase, scheduler, sends, simulate, times

EVENT = Wait()


# -- closed loop ------------------------------------------------------------------------------------------------------


def test_closed_loop_fills_its_slots_and_then_waits_for_an_end():
    made = scheduler(1000, slots=3)
    assert times(sends(made, 1005)) == [(0, 1000, 1000), (1, 1000, 1000), (2, 1000, 1000)]
    assert made.next(2000) == EVENT
    assert made.active == 3


def test_nothing_is_sent_before_the_phase_begins():
    made = scheduler(1000, slots=3)
    assert made.next(999) == Wait(1000)
    assert len(sends(made, 1000)) == 3


def test_closed_loop_session_is_due_when_its_slot_became_free():
    made = scheduler(slots=2)
    first, second = sends(made, 0)
    made.ended(first.session, 50)
    made.ended(second.session, 70)
    # `next` is called late: both are due when their slots became free, the earlier one first.
    assert times(sends(made, 100)) == [(2, 50, 50), (3, 70, 70)]


def test_closed_loop_is_over_when_its_requests_are_sent_and_ended():
    made = scheduler(slots=2, requests=3)
    first, second = sends(made, 0)
    made.ended(first.session, 10)
    (third,) = sends(made, 10)
    made.ended(second.session, 20)
    assert made.next(20) == EVENT
    made.ended(third.session, 30)
    assert made.next(30) is OVER


# -- open loop --------------------------------------------------------------------------------------------------------


def test_open_loop_sends_on_time_regardless_of_active_sessions():
    made = scheduler(100, arrivals=every(10))
    assert times(sends(made, 100)) == [(0, 100, 100)]
    assert made.next(100) == Wait(100 + 10 * MS)
    assert made.next(100 + 10 * MS - 1) == Wait(100 + 10 * MS)
    assert [send.intended for send in sends(made, 100 + 10 * MS)] == [100 + 10 * MS]
    assert made.active == 2


def test_late_sends_keep_their_times_and_do_not_delay_later_ones():
    made = scheduler(arrivals=every(10))
    sends(made, 0)
    late = sends(made, 35 * MS)
    assert [(s.intended, s.slot_free_at) for s in late] == [(at * MS, at * MS) for at in (10, 20, 30)]
    assert made.next(35 * MS) == Wait(40 * MS)


def test_session_without_a_free_slot_is_sent_late_and_not_dropped():
    made = scheduler(slots=1, arrivals=every(10), requests=5)
    (sent,) = sends(made, 0)
    assert made.next(45 * MS) == EVENT
    for number, ended, free in ((1, 47, 47), (2, 48, 48), (3, 50, 50), (4, 50, 50)):
        made.ended(sent.session, ended * MS)
        (sent,) = sends(made, 50 * MS)
        assert times([sent]) == [(number, number * 10 * MS, free * MS)]
    made.ended(sent.session, 60 * MS)
    assert made.next(60 * MS) is OVER


def test_slot_free_at_is_the_due_time_if_a_slot_was_free():
    made = scheduler(slots=2, arrivals=every(10))
    (first,) = sends(made, 0)
    made.ended(first.session, 3 * MS)
    assert times(sends(made, 12 * MS)) == [(1, 10 * MS, 10 * MS)]


def test_arrivals_that_waited_take_the_slots_in_the_order_in_which_they_became_free():
    made = scheduler(slots=2, arrivals=every(10))
    first, second = sends(made, 10 * MS)
    made.ended(first.session, 41 * MS)
    made.ended(second.session, 43 * MS)
    assert times(sends(made, 44 * MS)) == [(2, 20 * MS, 41 * MS), (3, 30 * MS, 43 * MS)]


# -- waiting requests -------------------------------------------------------------------------------------------------


def test_arrivals_without_a_slot_wait():
    made = scheduler(slots=2, arrivals=every(10), requests=20)
    assert made.waiting(0) == 1
    sent = sends(made, 10 * MS)
    assert [made.waiting(at * MS) for at in (10, 20, 29, 55, 500)] == [0, 1, 1, 4, 18]
    made.ended(sent[0].session, 60 * MS)
    sends(made, 60 * MS)
    assert made.waiting(500 * MS) == 17
    made.stop()
    assert made.waiting(500 * MS) == 0


def test_nothing_waits_in_a_closed_loop_or_without_a_limit():
    for fields in ({"slots": 2}, {"arrivals": every(10)}):
        made = scheduler(**fields)
        sends(made, 50 * MS)
        assert made.waiting(50 * MS) == 0


def test_turn_that_waits_for_a_prefill_slot_is_counted():
    made = scheduler(slots=2, prefill_slots=Fixed(1), data=Data(turns=2))
    (first,) = sends(made, 0)
    made.first_content(first.session, 5)
    sends(made, 5)
    made.ended(first.session, 10)
    assert made.waiting(10) == 1


def test_arrivals_that_are_not_indexed_yet_are_counted_when_they_are_known():
    data = Data(size=None, indexed=1)
    data.recorded = {(n, 0): n * MS for n in range(5)}
    made = scheduler(slots=1, arrivals=Recorded(), data=data)
    sends(made, 0)
    assert made.waiting(10 * MS) == 0
    data.indexed = 4
    assert made.waiting(10 * MS) == 3


# -- the end ----------------------------------------------------------------------------------------------------------


def test_nothing_is_sent_after_the_duration():
    made = scheduler(1000, slots=1, duration_s=50e-9)
    (first,) = sends(made, 1000)
    made.ended(first.session, 1040)
    (second,) = sends(made, 1049)
    made.ended(second.session, 1049)
    assert made.next(1050) is OVER


def test_arrival_after_the_end_is_not_awaited():
    made = scheduler(arrivals=every(10), duration_s=0.025)
    sent = [*sends(made, 0), *sends(made, 10 * MS), *sends(made, 20 * MS)]
    assert len(sent) == 3
    for send in sent:
        made.ended(send.session, 21 * MS)
    assert made.next(21 * MS) is OVER


def test_first_stop_rule_that_is_reached_ends_the_phase():
    for rules in ({"requests": 1, "duration_s": 1000.0}, {"requests": 100, "duration_s": 4e-9}):
        made = scheduler(slots=1, **rules)
        (sent,) = sends(made, 0)
        made.ended(sent.session, 5)
        assert made.next(5) is OVER


def test_stopped_scheduler_sends_nothing_more_and_waits_for_active_sessions():
    made = scheduler(slots=5, data=Data(turns=2))
    first, *others = sends(made, 0)
    made.ended(first.session, 1)  # its next turn is due
    made.stop()
    assert made.next(2) == EVENT
    assert made.active == len(others)
    for send in others:
        made.ended(send.session, 3, more=False)
    assert made.next(3) is OVER


def test_turn_that_ends_after_the_stop_frees_its_slot():
    made = scheduler(slots=1, data=Data(turns=2))
    (sent,) = sends(made, 0)
    made.stop()
    made.ended(sent.session, 1)
    assert made.active == 0  # nothing asks a scheduler again whose phase another one has replaced


def test_requests_in_flight_are_cut_off_after_the_grace_period():
    made = scheduler(slots=2, duration_s=1.0, grace_s=0.5)
    first, second = sends(made, 0)
    assert made.next(SECOND - 1) == Wait(SECOND)
    assert made.next(SECOND) == Wait(1500 * MS)
    made.ended(first.session, 1200 * MS)
    assert made.next(1500 * MS) is CUT_OFF
    made.ended(second.session, 1500 * MS, more=False)
    assert made.next(1500 * MS) is OVER


def test_infinite_grace_period_waits_for_the_requests_in_flight():
    made = scheduler(slots=1, duration_s=1.0, grace_s=float("inf"))
    sends(made, 0)
    assert isinstance(made.next(10**6 * SECOND), Wait)


# -- turns ------------------------------------------------------------------------------------------------------------


def test_turns_count_as_requests_and_keep_their_slot():
    made = scheduler(slots=1, requests=3, data=Data(turns=5))
    (sent,) = sends(made, 0)
    for turn, at in ((1, 10), (2, 20)):
        made.ended(sent.session, at)
        (next_turn,) = sends(made, at)
        assert next_turn.session is sent.session
        assert (sent.session.turn, next_turn.intended) == (turn, at)
    made.ended(sent.session, 30)
    assert made.next(30) is OVER


def test_next_turn_is_due_after_its_delay_and_before_new_conversations():
    made = scheduler(slots=2, data=Data(turns=2, delay=50))
    first, second = sends(made, 0)
    made.ended(first.session, 10)
    assert made.next(10) == Wait(60)
    made.ended(second.session, 20, more=False)  # frees a slot: a new conversation starts at once
    assert times(sends(made, 30)) == [(2, 20, 20)]
    assert times(sends(made, 65)) == [(0, 60, 60)]


def test_failed_turn_ends_its_conversation():
    made = scheduler(slots=1, conversations=1, data=Data(turns=3))
    (sent,) = sends(made, 0)
    made.ended(sent.session, 10, more=False)
    assert made.next(10) is OVER


def test_late_reply_does_not_change_when_a_recorded_turn_is_due():
    data = Data(turns=2, size=2)
    data.recorded = {(0, 0): 0, (0, 1): 100, (1, 0): 10, (1, 1): 30}
    made = scheduler(1000, data=data, arrivals=Recorded(1.0), turn_timing=AtRecordedTimes(1.0), whole=True)
    first, second = [*sends(made, 1000), *sends(made, 1010)]
    made.ended(first.session, 1050)
    assert made.next(1050) == Wait(1100)
    made.ended(second.session, 1060)
    assert times(sends(made, 1060)) == [(1, 1030, 1060)]
    assert times(sends(made, 1100)) == [(0, 1100, 1100)]


def test_recorded_turns_out_of_order_are_due_at_their_recorded_times():
    data = Data(turns=3, size=1)
    data.recorded = {(0, 0): 40, (0, 1): 10, (0, 2): 60}
    made = scheduler(1000, data=data, arrivals=Recorded(1.0), turn_timing=AtRecordedTimes(1.0), whole=True)
    (sent,) = sends(made, 1040)
    made.ended(sent.session, 1050)
    (sent,) = late = sends(made, 1050)
    assert times(late) == [(0, 1010, 1050)]
    made.ended(sent.session, 1070)
    assert times(sends(made, 1070)) == [(0, 1060, 1070)]


def test_turn_of_a_resumed_replay_is_not_due_before_the_phase_began():
    data = Data(turns=2, size=1)
    data.recorded = {(0, 0): 0, (0, 1): 100}
    made = scheduler(1000, data=data, arrivals=Recorded(1.0), turn_timing=AtRecordedTimes(1.0, 500), whole=True)
    (sent,) = sends(made, 1000)
    made.ended(sent.session, 1005)
    assert times(sends(made, 1005)) == [(0, 1000, 1005)]


def test_recorded_turn_with_only_a_delay_is_due_that_long_after_the_reply():
    data = Data(turns=2, size=1, delay=30)
    data.recorded = {(0, 0): 0}
    made = scheduler(1000, data=data, arrivals=Recorded(1.0), turn_timing=AtRecordedTimes(1.0), whole=True)
    (sent,) = sends(made, 1000)
    made.ended(sent.session, 1500)
    assert made.next(1500) == Wait(1530)
    assert times(sends(made, 1540)) == [(0, 1530, 1530)]


class EverySecondTurnWaits(msgspec.Struct, frozen=True):
    """A turn timing of somebody else: turns 2, 4, … follow after a minute."""

    takes_arrivals = False

    def due(self, end: TurnEnd) -> int:
        return end.ended_at + (60 * SECOND if end.delay else 0)


def test_another_turn_timing_needs_nothing_but_its_class():
    made = scheduler(slots=1, turn_timing=EverySecondTurnWaits(), data=Data(turns=2, delay=1))
    (sent,) = sends(made, 0)
    made.ended(sent.session, SECOND)
    assert made.next(SECOND) == Wait(61 * SECOND)


# -- a rate that counts all turns -------------------------------------------------------------------------------------


def test_next_turn_takes_the_arrival_before_a_new_conversation():
    made = scheduler(arrivals=every(10), turn_timing=AtArrivals(), data=Data(turns=3))
    (first,) = sends(made, 0)
    made.ended(first.session, 4 * MS)
    assert made.next(5 * MS) == Wait(10 * MS)
    (second,) = sends(made, 10 * MS)
    assert (second.session, second.session.turn, second.intended) == (first.session, 1, 10 * MS)
    (third,) = sends(made, 20 * MS)  # turn 1 is still running
    assert (third.session.number, third.intended) == (1, 20 * MS)


def test_delay_of_a_turn_is_respected_under_a_rate():
    made = scheduler(arrivals=every(10), turn_timing=AtArrivals(), data=Data(turns=2, delay=15 * MS))
    (first,) = sends(made, 0)
    made.ended(first.session, 4 * MS)  # the next turn may be sent from 19 ms on
    assert [send.session.number for send in sends(made, 10 * MS)] == [1]
    assert times(sends(made, 20 * MS)) == [(0, 20 * MS, 20 * MS)]


def test_waiting_arrival_goes_to_the_turn_that_becomes_ready_first():
    made = scheduler(slots=1, arrivals=every(10), turn_timing=AtArrivals(), data=Data(turns=2))
    (first,) = sends(made, 0)
    assert made.next(25 * MS) == EVENT
    made.ended(first.session, 26 * MS)
    assert times(sends(made, 27 * MS)) == [(0, 10 * MS, 26 * MS)]


def test_arrivals_without_anything_to_send_are_skipped():
    made = scheduler(arrivals=every(10), turn_timing=AtArrivals(), conversations=1, data=Data(turns=2))
    (first,) = sends(made, 0)
    assert made.next(35 * MS) == Wait(40 * MS)
    made.ended(first.session, 36 * MS)
    assert times(sends(made, 40 * MS)) == [(0, 40 * MS, 40 * MS)]
    made.ended(first.session, 41 * MS)
    assert made.next(41 * MS) is OVER


@pytest.mark.parametrize("turns", [1, 2, 4])
def test_rate_counts_every_turn(turns):
    phase = make_phase(arrivals=every(1), turn_timing=AtArrivals(), requests=400)
    sent = simulate(phase, 1, lambda _: 7, Data(turns=turns))
    assert sorted(intended for _, _, intended in sent) == [n * MS for n in range(400)]


# -- limits that change -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ramped", ["slots", "prefill_slots"])
@pytest.mark.parametrize("workers", [2, 3, 7])
def test_worker_without_a_slot_waits_until_the_ramp_gives_it_one(workers: int, ramped: str) -> None:
    limits = {"slots": Fixed(4), ramped: LinearRamp(1, 4, 0.5)}
    sent = simulate(make_phase(**limits, requests=20), workers, lambda number: 30)
    assert [number for number, _, _ in sent] == list(range(20))


def test_ramp_adds_slots_at_their_times():
    made = scheduler(1000, slots=LinearRamp(1, 5, 4e-6))
    assert len(sends(made, 1000)) == 1
    assert made.next(1000) == Wait(2000)
    assert times(sends(made, 3500)) == [(1, 2000, 2000), (2, 3000, 3000)]
    assert times(sends(made, 9000)) == [(3, 4000, 4000), (4, 5000, 5000)]
    assert made.next(9000) == EVENT


def test_limit_that_falls_lets_sessions_end_and_starts_no_others():
    made = scheduler(slots=4)
    running = sends(made, 0)
    made.set_limits(10, slots=2)
    for send in running[:2]:
        made.ended(send.session, 20)
        assert made.next(20) == EVENT
    made.ended(running[2].session, 30)
    assert times(sends(made, 30)) == [(4, 30, 30)]


def test_limit_that_rises_starts_sessions_at_once():
    made = scheduler(slots=Fixed(1, reserve=3))
    sends(made, 0)
    made.set_limits(50, slots=3)
    assert times(sends(made, 60)) == [(1, 50, 50), (2, 50, 50)]


def test_prefill_slots_are_held_until_the_first_content():
    made = scheduler(slots=4, prefill_slots=Fixed(2))
    first, second = sends(made, 0)
    assert made.next(10) == EVENT
    made.first_content(first.session, 20)
    (third,) = sends(made, 25)
    assert (third.intended, third.slot_free_at) == (0, 20)
    made.ended(second.session, 30)  # without any content
    assert len(sends(made, 30)) == 1
    assert made.next(40) == EVENT


# -- a dataset that grows ---------------------------------------------------------------------------------------------


def test_request_that_is_due_and_not_indexed_is_starved():
    data = Data(size=None, indexed=1)
    made = scheduler(slots=2, whole=True, data=data)
    assert [send.session.conversation for send in sends(made, 0)] == [0]
    assert made.next(10) is STARVED
    data.indexed = 2
    (second,) = sends(made, 20)
    assert (second.session.conversation, second.intended) == (1, 0)


@pytest.mark.parametrize("load", [{"slots": 1}, {"arrivals": every(10)}], ids=["slots in use", "nothing due"])
def test_full_slots_are_not_reported_as_waiting_for_the_file(load):
    made = scheduler(whole=True, data=Data(size=None, indexed=1), **load)
    sends(made, 0)
    assert isinstance(made.next(5 * MS), Wait)


@pytest.mark.parametrize("found", [False, True], ids=["before the next send", "at the next send"])
def test_whole_dataset_ends_when_its_size_becomes_known(found):
    data = Data(size=None, indexed=2)
    made = scheduler(slots=3, whole=True, data=data)
    running = sends(made, 0)
    if found:
        assert made.next(1) is STARVED
    data.size = 2
    assert made.next(2) == EVENT
    for send in running:
        made.ended(send.session, 3)
    assert made.next(4) is OVER


def test_phase_continues_at_its_position_in_the_dataset():
    data = Data()
    made = scheduler(slots=3, first=7, data=data)
    assert [send.session.conversation for send in sends(made, 0)] == [7, 8, 9]


def test_every_conversation_is_sent_to_each_server():
    made = Scheduler(make_phase(6, servers=EachServer(3)), Share(), Data(), servers=3)
    made.begin(0)
    sent = sends(made, 0)
    assert [send.session.conversation for send in sent] == [0, 0, 0, 1, 1, 1]
    assert sorted(send.session.server for send in sent[:3]) == [0, 1, 2]


# -- phases without a pause between them ------------------------------------------------------------------------------


def test_sessions_of_the_previous_phase_keep_their_slots():
    made = Scheduler(make_phase(3), Share(), Data())
    made.begin(100, carried=2)
    assert times(sends(made, 100)) == [(0, 100, 100)]
    made.carried_ended(150)
    assert times(sends(made, 160)) == [(1, 150, 150)]
    assert made.active == 3


# -- shares -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_shares_add_up_and_differ_by_at_most_one(total, workers):
    parts = [split(total, Share(worker, workers)) for worker in range(workers)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


@given(
    requests=st.integers(1, 200),
    workers=st.integers(1, 8),
    process=st.sampled_from([Constant(500.0), Poisson(500.0)]),
    slots=st.none() | st.integers(1, 40),
    latencies=st.lists(st.integers(0, 50), min_size=1, max_size=7),
)
def test_any_number_of_workers_sends_the_same_sessions_at_the_same_times(requests, workers, process, slots, latencies):
    phase = make_phase(slots, requests=requests, arrivals=process)

    def latency(number: int) -> int:
        return latencies[number % len(latencies)]

    alone = simulate(phase, 1, latency)
    assert [number for number, _, _ in alone] == list(range(requests))
    assert simulate(phase, workers, latency) == alone


@given(requests=st.integers(1, 200), workers=st.integers(1, 8), turns=st.integers(1, 4))
def test_any_number_of_workers_has_the_same_arrival_times_with_several_turns(requests, workers, turns):
    phase = make_phase(requests=requests, arrivals=Poisson(500.0), turn_timing=AtArrivals())
    alone, together = (simulate(phase, n, lambda _: 3, Data(turns=turns)) for n in (1, workers))
    assert sorted(at for _, _, at in alone) == sorted(at for _, _, at in together)


@given(requests=st.integers(1, 100), workers=st.integers(1, 8), slots=st.integers(1, 20))
def test_any_number_of_workers_sends_the_same_sessions_in_a_closed_loop(requests, workers, slots):
    sent = simulate(make_phase(slots, requests=requests), workers, lambda number: number % 7)
    assert [number for number, _, _ in sent] == list(range(requests))


@given(start=st.integers(1, 40), end=st.integers(1, 60), workers=st.integers(1, 8))
def test_workers_together_have_the_slots_of_the_phase_at_any_time(start, end, workers):
    ramp = LinearRamp(start, end, 1.0)
    made = [Scheduler(make_phase(ramp), Share(worker, workers), Data()) for worker in range(workers)]
    for one in made:
        one.begin(0)
    for now in (0, SECOND // 3, SECOND // 2, SECOND):
        sent = [(one, send) for one in made for send in sends(one, now)]
        assert sum(one.active for one in made) == ramp.at(now)
        for one, send in sent:
            one.ended(send.session, now)


@given(slots=st.integers(1, 40), prefill=st.integers(1, 40), workers=st.integers(1, 8))
def test_workers_together_have_the_prefill_slots_of_the_phase(slots, prefill, workers):
    phase = make_phase(slots, prefill_slots=Fixed(prefill))
    made = [Scheduler(phase, Share(worker, workers), Data()) for worker in range(workers)]
    for one in made:
        one.begin(0)
    assert sum(len(sends(one, 0)) for one in made) == min(slots, prefill)


def test_worker_without_a_slot_is_over_at_once():
    made = scheduler(slots=2, requests=10, share=Share(2, 4))
    assert made.next(0) is OVER


@pytest.mark.parametrize("workers", [1, 3])
def test_duration_limits_every_worker(workers):
    phase = make_phase(arrivals=Constant(1000.0), duration_s=0.1)
    assert [number for number, _, _ in simulate(phase, workers, lambda _: 1)] == list(range(100))
