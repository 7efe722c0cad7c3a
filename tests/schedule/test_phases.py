"""From settings to phases."""

from __future__ import annotations

import pytest

from penstock.schedule.phases import PhasePlan, phases
from penstock.settings.schema import LoadSettings, WarmupSettings


def planned(load: LoadSettings, *, warmup: int = 0, synthetic: bool = True) -> list[PhasePlan]:
    return phases(load, WarmupSettings(requests=warmup), synthetic=synthetic, seed=5)


@pytest.mark.parametrize(("concurrency", "requests"), [(None, 10), (1, 10), (5, 10), (6, 12), (100, 200)])
def test_synthetic_input_without_a_stop_condition_is_sent_as_often_as_the_help_promises(concurrency, requests):
    (plan,) = planned(LoadSettings(concurrency=concurrency))
    assert plan.requests == requests


def test_a_file_without_a_stop_condition_is_sent_once_and_whole():
    (plan,) = planned(LoadSettings(concurrency=4), synthetic=False)
    assert plan.whole
    assert plan.requests is None


@pytest.mark.parametrize("load", [LoadSettings(concurrency=1, requests=7), LoadSettings(concurrency=1, duration_s=2.0)])
def test_a_stop_condition_is_the_only_one(load):
    for synthetic in (True, False):
        (plan,) = planned(load, synthetic=synthetic)
        assert (plan.requests, plan.duration_s, plan.whole) == (load.requests, load.duration_s, False)


def test_without_a_load_there_is_one_request_at_a_time():
    assert planned(LoadSettings())[0].slots == 1


def test_a_rate_alone_bounds_nothing():
    assert planned(LoadSettings(rate=5.0))[0].slots is None
    assert planned(LoadSettings(rate=5.0, concurrency=3))[0].slots == 3


def test_a_warmup_comes_first_under_the_same_load_and_the_dataset_goes_on_behind_it():
    warm, profiling = planned(LoadSettings(concurrency=4, requests=20), warmup=6)
    assert (warm.kind, warm.requests, warm.slots, warm.first) == ("warmup", 6, 4, 0)
    assert (profiling.kind, profiling.requests, profiling.first) == ("profiling", 20, 6)


def test_warmup_and_profiling_arrive_at_different_random_times():
    warm, profiling = planned(LoadSettings(rate=5.0, requests=20), warmup=6)
    assert warm.seed != profiling.seed


def test_the_grace_period_belongs_to_a_duration():
    assert planned(LoadSettings(concurrency=1, duration_s=2.0, grace_s=5.0))[0].grace_s == 5.0
    assert planned(LoadSettings(concurrency=1, requests=2))[0].grace_s is None


def test_a_number_of_conversations_is_a_stop_condition_of_its_own():
    for synthetic in (True, False):
        (plan,) = planned(LoadSettings(concurrency=2, conversations=4), synthetic=synthetic)
        assert (plan.conversations, plan.requests, plan.whole) == (4, None, False)
    (both,) = planned(LoadSettings(concurrency=2, conversations=4, requests=5))
    assert (both.conversations, both.requests) == (4, 5)


def test_conversations_of_several_turns_are_not_cut_off_when_nobody_says_how_many():
    (plan,) = phases(LoadSettings(concurrency=6), WarmupSettings(), synthetic=True, seed=5, several_turns=True)
    assert (plan.conversations, plan.requests) == (12, None)
