"""The phases of a run, from its settings."""

from __future__ import annotations

import math

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.schedule.arrivals import Constant
from penstock.schedule.limits import Fixed, LinearRamp
from penstock.schedule.phase import Phase
from penstock.schedule.phases import make_phases
from penstock.schedule.random_arrivals import Gamma, Poisson
from penstock.schedule.scheduler import Scheduler
from penstock.schedule.server_assignment import RoundRobin
from penstock.schedule.share import Share
from penstock.schedule.turn_timing import AfterReply, AtArrivals, PerUser
from penstock.schedule.users import UserArrivals
from penstock.schedule.varying_rate import RatePoint, VaryingRate
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import BURST, LoadSettings, WarmupSettings
from support.schedules import Data, sends


def simple_phases(load: LoadSettings, *, warmup: int = 0, synthetic: bool = True) -> list[Phase]:
    return make_phases(load, WarmupSettings(requests=warmup), synthetic=synthetic, seed=5)


@pytest.mark.parametrize(("concurrency", "requests"), [(None, 10), (1, 10), (5, 10), (6, 12), (100, 200)])
def test_synthetic_input_without_a_stop_rule_has_the_documented_number_of_requests(concurrency, requests):
    (phase,) = simple_phases(LoadSettings(concurrency=concurrency))
    assert phase.requests == requests


def test_file_without_a_stop_rule_is_sent_once():
    (phase,) = simple_phases(LoadSettings(concurrency=4), synthetic=False)
    assert phase.whole
    assert phase.requests is None


@pytest.mark.parametrize("load", [LoadSettings(concurrency=1, requests=7), LoadSettings(concurrency=1, duration_s=2.0)])
def test_given_stop_rule_replaces_the_default(load):
    for synthetic in (True, False):
        (phase,) = simple_phases(load, synthetic=synthetic)
        assert (phase.requests, phase.duration_s, phase.whole) == (load.requests, load.duration_s, False)


def test_default_load_is_one_request_at_a_time():
    assert simple_phases(LoadSettings())[0].slots == Fixed(1)


def test_rate_without_concurrency_has_no_slot_limit():
    assert simple_phases(LoadSettings(rate=5.0))[0].slots is None
    assert simple_phases(LoadSettings(rate=5.0, concurrency=3))[0].slots == Fixed(3)


def test_concurrency_burst_starts_all_slots_at_once():
    load = resolve(parse(PROFILE, ["-m", "m", "--arrival-pattern", "concurrency-burst", "--concurrency", "5"])).load
    (burst,) = simple_phases(load)
    assert (burst.arrivals, burst.slots) == (None, Fixed(5))
    made = Scheduler(burst, Share(), Data())
    made.begin(100)
    assert [(send.intended, send.slot_free_at) for send in sends(made, 100)] == [(100, 100)] * 5


def test_warmup_has_the_same_load_and_profiling_continues_in_the_dataset():
    warmup_phase, profiling = simple_phases(LoadSettings(concurrency=4, requests=20), warmup=6)
    assert (warmup_phase.kind, warmup_phase.requests, warmup_phase.slots, warmup_phase.first) == (
        "warmup",
        6,
        Fixed(4),
        0,
    )
    assert (profiling.kind, profiling.requests, profiling.first) == ("profiling", 20, 6)


@pytest.mark.parametrize(
    ("load", "warmup", "expected"),
    [
        # What is not given is as in profiling.
        ({"concurrency": 4}, {"conversations": 6}, {"slots": Fixed(4), "conversations": 6, "requests": None}),
        ({"concurrency": 4}, {"duration_s": 2.0}, {"duration_s": 2.0, "grace_s": math.inf, "requests": None}),
        ({"concurrency": 4, "grace_s": 5.0}, {"duration_s": 2.0, "grace_s": 1.0}, {"grace_s": 1.0}),
        ({"rate": 5.0}, {"requests": 2}, {"arrivals": Poisson(5.0), "turn_timing": AtArrivals(), "slots": None}),
        (
            {"concurrency": 8, "concurrency_ramp_s": 3.0, "prefill_concurrency": 4, "prefill_ramp_s": 2.0},
            {"requests": 2},
            {"slots": LinearRamp(1, 8, 3.0), "prefill_slots": LinearRamp(1, 4, 2.0)},
        ),
        (
            {"user_rate": 4.0, "users": 2},
            {"requests": 2},
            {"arrivals": UserArrivals(2, 4.0), "turn_timing": PerUser(0.5)},
        ),
        # What is given replaces it.
        ({"concurrency": 4}, {"requests": 2, "concurrency": 9}, {"slots": Fixed(9)}),
        (
            {"concurrency": 4},
            {"requests": 2, "concurrency_ramp_s": 3.0, "prefill_concurrency": 2, "prefill_ramp_s": 1.0},
            {"slots": LinearRamp(1, 4, 3.0), "prefill_slots": LinearRamp(1, 2, 1.0)},
        ),
        ({"concurrency": 4}, {"requests": 2, "rate": 9.0}, {"arrivals": Poisson(9.0), "slots": Fixed(4)}),
        ({"concurrency": 1}, {"requests": 2, "rate": 9.0, "rate_is_unlimited": True}, {"slots": None}),
        ({"rate": 5.0}, {"requests": 2, "arrivals": "constant"}, {"arrivals": Constant(5.0)}),
        (
            {"rate": 5.0, "smoothness": 2.0, "arrivals": "gamma"},
            {"requests": 2, "rate": 9.0},
            {"arrivals": Gamma(9.0, 2.0)},
        ),
        ({"rate_series": ((0, 1.0), (9, 2.0))}, {"requests": 2, "rate": 9.0}, {"arrivals": Poisson(9.0)}),
        (
            {"user_rate": 4.0, "users": 2},
            {"requests": 2, "rate": 9.0},
            {"arrivals": Poisson(9.0), "turn_timing": AtArrivals()},
        ),
        (
            {"rate": 5.0},
            {"requests": 2, "rate_ramp_s": 3.0},
            {"arrivals": VaryingRate(Poisson(1.0), (RatePoint(0.0, 0.0), RatePoint(3.0, 5.0)))},
        ),
        ({"rate": 5.0}, {"requests": 2, "arrivals": BURST}, {"arrivals": None, "slots": Fixed(1)}),
        ({"concurrency": 1, "cancellation_percent": 50.0}, {"requests": 2}, {"cancellation": None}),
    ],
)
def test_warmup_inherits_what_is_not_given(load, warmup, expected):
    first, profiling = make_phases(LoadSettings(**load, requests=20), WarmupSettings(**warmup), synthetic=True, seed=5)
    assert {name: getattr(first, name) for name in expected} == expected
    (alone,) = make_phases(LoadSettings(**load, requests=20), WarmupSettings(), synthetic=True, seed=5)
    assert profiling.starting_at(0) == alone


def test_profiling_starts_where_the_warmup_stopped_unless_it_sends_the_whole_file():
    profiling = simple_phases(LoadSettings(concurrency=4, requests=20), warmup=6)[1].starting_at(9)
    assert (profiling.first, profiling.servers) == (9, RoundRobin(9))
    whole = simple_phases(LoadSettings(concurrency=4), warmup=6, synthetic=False)[1]
    assert whole.starting_at(9).first == 0


def test_warmup_and_profiling_have_different_arrival_times():
    warmup_phase, profiling = simple_phases(LoadSettings(rate=5.0, requests=20), warmup=6)
    assert warmup_phase.seed != profiling.seed


def test_grace_period_applies_only_with_a_duration():
    assert simple_phases(LoadSettings(concurrency=1, duration_s=2.0, grace_s=5.0))[0].grace_s == 5.0
    assert simple_phases(LoadSettings(concurrency=1, requests=2))[0].grace_s is None


def test_number_of_conversations_is_a_stop_rule():
    for synthetic in (True, False):
        (phase,) = simple_phases(LoadSettings(concurrency=2, conversations=4), synthetic=synthetic)
        assert (phase.conversations, phase.requests, phase.whole) == (4, None, False)
    (both,) = simple_phases(LoadSettings(concurrency=2, conversations=4, requests=5))
    assert (both.conversations, both.requests) == (4, 5)


def test_default_stop_rule_counts_conversations_of_several_turns():
    (phase,) = make_phases(LoadSettings(concurrency=6), WarmupSettings(), synthetic=True, seed=5, several_turns=True)
    assert (phase.conversations, phase.requests) == (12, None)


def test_request_rate_covers_all_turns_and_conversation_rate_only_the_first():
    (requests,) = simple_phases(LoadSettings(rate=5.0))
    (conversations,) = simple_phases(LoadSettings(conversation_rate=5.0))
    assert requests.arrivals == conversations.arrivals == Poisson(5.0)
    assert (requests.turn_timing, conversations.turn_timing) == (AtArrivals(), AfterReply())
