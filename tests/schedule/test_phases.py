"""The phases of a run, from its settings."""

from __future__ import annotations

import pytest

from penstock.schedule.limits import Fixed
from penstock.schedule.phase import Phase
from penstock.schedule.phases import phases
from penstock.schedule.random_arrivals import Poisson
from penstock.schedule.turn_timing import AfterReply, AtArrivals
from penstock.settings.schema import LoadSettings, WarmupSettings


def make_phases(load: LoadSettings, *, warmup: int = 0, synthetic: bool = True) -> list[Phase]:
    return phases(load, WarmupSettings(requests=warmup), synthetic=synthetic, seed=5)


@pytest.mark.parametrize(("concurrency", "requests"), [(None, 10), (1, 10), (5, 10), (6, 12), (100, 200)])
def test_synthetic_input_without_a_stop_rule_has_the_documented_number_of_requests(concurrency, requests):
    (phase,) = make_phases(LoadSettings(concurrency=concurrency))
    assert phase.requests == requests


def test_file_without_a_stop_rule_is_sent_once():
    (phase,) = make_phases(LoadSettings(concurrency=4), synthetic=False)
    assert phase.whole
    assert phase.requests is None


@pytest.mark.parametrize("load", [LoadSettings(concurrency=1, requests=7), LoadSettings(concurrency=1, duration_s=2.0)])
def test_given_stop_rule_replaces_the_default(load):
    for synthetic in (True, False):
        (phase,) = make_phases(load, synthetic=synthetic)
        assert (phase.requests, phase.duration_s, phase.whole) == (load.requests, load.duration_s, False)


def test_default_load_is_one_request_at_a_time():
    assert make_phases(LoadSettings())[0].slots == Fixed(1)


def test_rate_without_concurrency_has_no_slot_limit():
    assert make_phases(LoadSettings(rate=5.0))[0].slots is None
    assert make_phases(LoadSettings(rate=5.0, concurrency=3))[0].slots == Fixed(3)


def test_warmup_has_the_same_load_and_profiling_continues_in_the_dataset():
    warmup_phase, profiling = make_phases(LoadSettings(concurrency=4, requests=20), warmup=6)
    assert (warmup_phase.kind, warmup_phase.requests, warmup_phase.slots, warmup_phase.first) == (
        "warmup",
        6,
        Fixed(4),
        0,
    )
    assert (profiling.kind, profiling.requests, profiling.first) == ("profiling", 20, 6)


def test_warmup_and_profiling_have_different_arrival_times():
    warmup_phase, profiling = make_phases(LoadSettings(rate=5.0, requests=20), warmup=6)
    assert warmup_phase.seed != profiling.seed


def test_grace_period_applies_only_with_a_duration():
    assert make_phases(LoadSettings(concurrency=1, duration_s=2.0, grace_s=5.0))[0].grace_s == 5.0
    assert make_phases(LoadSettings(concurrency=1, requests=2))[0].grace_s is None


def test_number_of_conversations_is_a_stop_rule():
    for synthetic in (True, False):
        (phase,) = make_phases(LoadSettings(concurrency=2, conversations=4), synthetic=synthetic)
        assert (phase.conversations, phase.requests, phase.whole) == (4, None, False)
    (both,) = make_phases(LoadSettings(concurrency=2, conversations=4, requests=5))
    assert (both.conversations, both.requests) == (4, 5)


def test_default_stop_rule_counts_conversations_of_several_turns():
    (phase,) = phases(LoadSettings(concurrency=6), WarmupSettings(), synthetic=True, seed=5, several_turns=True)
    assert (phase.conversations, phase.requests) == (12, None)


def test_request_rate_covers_all_turns_and_conversation_rate_only_the_first():
    (requests,) = make_phases(LoadSettings(rate=5.0))
    (conversations,) = make_phases(LoadSettings(conversation_rate=5.0))
    assert requests.arrivals == conversations.arrivals == Poisson(5.0)
    assert (requests.turn_timing, conversations.turn_timing) == (AtArrivals(), AfterReply())
