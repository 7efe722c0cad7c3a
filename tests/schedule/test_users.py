"""Users that each send a turn in a fixed interval."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schedule.phase import Phase, Resumed
from penstock.schedule.scheduler import OVER, STARVED, Scheduler, Wait
from penstock.schedule.server_assignment import EachServer
from penstock.schedule.share import Share
from penstock.schedule.turn_timing import PerUser
from penstock.schedule.users import UserArrivals
from support.schedules import MS, SECOND, Data, make_phase, scheduler, sends, simulate, times


def users(count: int, rate: float, **fields: Any) -> dict[str, Any]:
    return {"arrivals": UserArrivals(count, rate), "turn_timing": PerUser(count / rate)} | fields


def phase(count: int, rate: float, **fields: Any) -> Phase:
    return make_phase(**users(count, rate, **fields))


def fast(_number: int) -> int:
    return 1


@pytest.mark.parametrize(
    ("turns", "starts"),
    [
        # Four users at 100 requests/s: (start in ms, turns) of the sessions in the order of their numbers.
        (3, [(0, 3), (10, 1), (20, 2), (30, 3), (50, 3), (100, 3), (120, 3), (150, 3)]),
        (4, [(0, 4), (10, 1), (20, 2), (30, 3), (50, 4), (100, 4), (150, 4), (160, 4)]),
        (1, [(0, 1), (10, 1), (20, 1), (30, 1), (40, 1), (50, 1)]),
    ],
)
def test_users_start_staggered_in_the_middle_of_their_conversations(turns, starts):
    found = UserArrivals(4, 100.0).starts(Share(), Data(turns=turns))
    for number, (at, count) in enumerate(starts):
        assert next(found) == (at * MS, number, count)


TURNS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(
    count=st.integers(1, 12),
    workers=st.integers(1, 8),
    turns=TURNS,
    conversations=st.integers(1, 40),
    latencies=st.lists(st.integers(0, 400), min_size=1, max_size=5),
)
def test_any_number_of_workers_sends_the_same_turns_at_the_same_times(count, workers, turns, conversations, latencies):
    def latency(number: int) -> int:
        return latencies[number % len(latencies)]

    load = phase(count, 50.0, conversations=conversations)
    alone = simulate(load, 1, latency, Data(turns))
    assert simulate(load, workers, latency, Data(turns)) == alone
    started = UserArrivals(count, 50.0)
    expected = {n: started.turns_of(n, turns[n % len(turns)]) for n in range(conversations)}
    assert Counter(number for number, _, _ in alone) == expected  # every conversation is finished


@given(count=st.integers(1, 12), workers=st.integers(1, 8), turns=TURNS, requests=st.integers(1, 150))
def test_requests_are_due_at_a_constant_rate_for_any_number_of_workers(count, workers, turns, requests):
    sent = simulate(phase(count, 50.0, requests=requests), workers, fast, Data(turns))
    assert sorted(at for _, _, at in sent) == [n * 20 * MS for n in range(requests)]


@given(count=st.integers(1, 12), turns=TURNS)
def test_every_user_sends_a_turn_in_each_interval(count, turns):
    sent = simulate(phase(count, 50.0, requests=20 * count), 1, fast, Data(turns))
    by_session = defaultdict(list)
    for number, _, at in sent:
        by_session[number].append(at)
    gap = count * 20 * MS
    assert all(later - earlier == gap for at in by_session.values() for earlier, later in pairwise(at))


def test_conversations_begin_at_the_rate_of_the_steady_state_from_the_first_second():
    starts = islice(UserArrivals(10, 10.0).starts(Share(), Data(turns=5)), 10, 60)
    begun = Counter(start.at // SECOND for start in starts if start is not None)
    # 10 users with 5 turns each, one every second: two begin per second.
    assert [begun[second] for second in range(1, 20)] == [2] * 19


def test_late_reply_delays_its_turn_and_not_the_turns_after_it():
    made = scheduler(**users(1, 100.0), data=Data(turns=4))
    (first,) = sends(made, 0)
    assert isinstance(made.next(15 * MS), Wait)  # the second turn is due at 10 ms
    made.ended(first.session, 17 * MS)
    assert times(sends(made, 18 * MS)) == [(0, 10 * MS, 17 * MS)]
    made.ended(first.session, 19 * MS)
    assert made.next(19 * MS) == Wait(20 * MS)
    assert times(sends(made, 20 * MS)) == [(0, 20 * MS, 20 * MS)]


def test_new_user_does_not_wait_for_the_last_reply_of_the_one_before():
    made = scheduler(**users(1, 100.0), data=Data(turns=1))
    assert len(sends(made, 0)) == 1
    assert times(sends(made, 10 * MS)) == [(1, 10 * MS, 10 * MS)]
    assert made.active == 2


def test_failed_turn_ends_its_conversation_and_the_next_user_comes_at_its_time():
    made = scheduler(**users(1, 100.0), data=Data(turns=3))
    (first,) = sends(made, 0)
    made.ended(first.session, MS, more=False)
    assert made.next(25 * MS) == Wait(30 * MS)
    assert times(sends(made, 30 * MS)) == [(1, 30 * MS, 30 * MS)]


def test_slots_limit_the_users_and_delay_new_ones():
    made = scheduler(**users(2, 100.0, slots=1), data=Data(turns=1))
    (first,) = sends(made, 0)
    assert isinstance(made.next(12 * MS), Wait)
    made.ended(first.session, 13 * MS)
    assert times(sends(made, 13 * MS)) == [(1, 10 * MS, 13 * MS)]


def test_users_continue_in_the_order_of_the_dataset():
    made = scheduler(**users(2, 100.0, first=7), data=Data(turns=2))
    assert [send.session.conversation for now in (0, 10, 20) for send in sends(made, now * MS)] == [7, 8]
    assert made.next_number == 2


def test_every_server_gets_each_conversation():
    made = Scheduler(phase(4, 100.0, servers=EachServer(2)), Share(), Data(turns=2), servers=2)
    made.begin(0)
    sent = sends(made, 30 * MS)
    assert [send.session.conversation for send in sent] == [0, 0, 1, 1]


def test_users_wait_for_a_conversation_that_is_not_indexed():
    data = Data(turns=2, size=None, indexed=1)
    made = scheduler(**users(2, 100.0, whole=True), data=data)
    (first,) = sends(made, 0)
    assert made.next(10 * MS) is STARVED
    data.size = data.indexed = 2
    (second,) = sends(made, 15 * MS)
    assert (second.session.conversation, second.intended) == (1, 10 * MS)
    made.ended(second.session, 16 * MS)
    made.ended(first.session, 16 * MS, more=False)
    assert made.next(100 * MS) is OVER


def test_worker_without_a_place_is_over_at_once():
    made = scheduler(**users(2, 100.0, duration_s=10.0), data=Data(turns=2), share=Share(3, 4))
    assert made.next(0) is OVER


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_resumed_load_goes_on_at_the_times_of_the_users(workers: int) -> None:
    """Four users send at 0, 10, 20, … ms. The load goes on after 65 ms, and sessions 5 and 7 begin again."""
    resumed = Resumed(unfinished=(5, 7), next_number=9, arrived_ns=65 * MS)
    continued = phase(4, 100.0).continued(resumed, 0).arrivals
    assert isinstance(continued, UserArrivals)
    found = sorted(
        start
        for worker in range(workers)
        for start in islice(continued.starts(Share(worker, workers), Data(turns=2)), 8)
        if start is not None
    )
    # Each conversation keeps its place for two times, so there is a new user every 20 ms on average.
    expected = [(5, 5), (15, 7), (25, 9), (35, 10), (85, 11), (95, 12), (105, 13), (115, 14)]
    assert [(start.at, start.number) for start in found][:8] == [(at * MS, number) for at, number in expected]
    parts = [continued.requests_of(Share(worker, workers), 10) for worker in range(workers)]
    assert sum(parts) == 10
