"""The search for the largest load, against simulated servers of known capacity."""

import math

import numpy as np
import pytest
from benchmarks.simulated_search import SERVERS
from benchmarks.simulated_search import search as search_server

from penstock.errors import UserError
from penstock.metrics.capacity import CapacitySearch, LoadResult, ObjectiveTest, Outcome, isotonic, parse_slo

SLO = parse_slo("p99 time_to_first_token<300")


def outcomes(load: float, miss_share: float, count: int, rng: np.random.Generator) -> list[Outcome]:
    """Return requests of `load` slots that take 100 ns each."""
    missed = rng.random(count) < miss_share
    starts = [int(100 * i / load) for i in range(count)]
    return [Outcome(start, start + 100, (not miss,)) for start, miss in zip(starts, missed, strict=True)]


_LOOKS = [round(20 * 1.2**k) for k in range(22)]


def search(capacity: float, seed: int, maximum: int = 128) -> tuple[CapacitySearch, int]:
    """Search for a capacity at which 1 % of the requests miss. Return the search and the number of its requests."""
    rng = np.random.default_rng(seed)
    found, test = CapacitySearch([SLO], 1, maximum, whole=True), ObjectiveTest([SLO])
    sent = 0
    while (value := found.next()) is not None:
        # A queue grows steeply beyond the capacity: the share of misses grows tenfold with 10 % more load.
        share = min(0.9, 0.01 * math.exp(25 * (value / capacity - 1)))
        drawn = outcomes(value, share, 1000, rng)
        visit = found.visit(value)
        used = next((n for n in _LOOKS if test.decide(drawn[:n], visit) is not None), len(drawn))
        judged = drawn[:used]
        misses = sum(not outcome.met[0] for outcome in judged)
        found.add(LoadResult(value, used, (misses,), test.decide(judged, visit), visit == "last"))
        sent += used
    return found, sent


def test_interval_contains_the_capacity_in_nine_of_ten_searches_with_six_tenths_of_the_requests():
    contained, sent = 0, 0
    for seed in range(10):
        found, requests = search(40, seed)
        limit = found.result().limit
        contained += limit.low <= 40 <= limit.high
        assert (limit.high - limit.low) / 2 <= 0.15 * limit.high
        assert limit.low <= limit.estimate <= limit.high
        sent += requests
    assert contained >= 9
    assert sent / 10 <= 0.6 * 7 * 1000  # bisection of 1 to 128


@pytest.mark.parametrize(("share", "decision"), [(0.0, "pass"), (0.1, "fail"), (0.001, "pass"), (0.5, "fail")])
def test_level_is_decided(share, decision):
    rng = np.random.default_rng(1)
    assert ObjectiveTest([SLO]).decide(outcomes(8, share, 1000, rng)) == decision


def test_one_disturbance_of_all_requests_in_flight_does_not_fail_a_level():
    drawn = outcomes(16, 0.0, 600, np.random.default_rng(1))
    disturbed = [o._replace(met=(False,)) if 1000 <= o.start < 1100 else o for o in drawn]
    assert sum(not o.met[0] for o in disturbed) == 16
    assert ObjectiveTest([SLO]).decide(disturbed) == "pass"


def test_level_that_becomes_worse_fails_after_its_pass():
    early = outcomes(8, 0.0, 300, np.random.default_rng(1))
    late = [Outcome(o.start + 10_000, o.end + 10_000, (False,)) for o in early[:60]]
    assert ObjectiveTest([SLO]).decide(early) == "pass"
    assert ObjectiveTest([SLO]).decide(early + late) == "fail"


def test_objectives_are_judged_each():
    slos = [SLO, parse_slo("p90 request_latency<1000")]
    drawn = [o._replace(met=(True, i % 2 == 0)) for i, o in enumerate(outcomes(8, 0.0, 400, np.random.default_rng(1)))]
    assert ObjectiveTest(slos).decide(drawn) == "fail"


@pytest.mark.parametrize("server", [each for each in SERVERS if each.limit is None], ids=lambda each: each.name)
def test_search_against_a_simulated_server_accepts_no_load_beyond_its_capacity(server):
    contained = 0
    for seed in range(3):
        found = search_server(server, seed)
        assert found.low < server.capacity
        contained += found.low <= server.truth < found.high
    assert contained >= 2


def test_rate_at_which_completions_fall_behind_fails_although_all_requests_meet_the_objective():
    """100 requests per second arrive, and 80 are completed. The limit is far away."""
    drawn = [Outcome(i * 10_000_000, i * 12_500_000 + 12_500_000, (True,)) for i in range(400)]
    assert ObjectiveTest([SLO], open_loop=True).decide(drawn, "last") == "fail"
    assert ObjectiveTest([SLO], open_loop=False).decide(drawn, "last") is None


def test_level_shows_the_visit_that_decided():
    found = CapacitySearch([SLO], 1, 4, whole=True)
    found.add(LoadResult(1, 300, (150,), "fail", observed=(500.0,)))
    found.add(LoadResult(1, 700, (0,), "pass", is_final=True, observed=(100.0,)))
    (load,) = found.result().loads
    assert (load.requests, load.misses, load.observed) == (700, (0,), (100.0,))
    assert load.requests_before == 300
    assert load.changed


def test_level_that_two_visits_decide_differently_by_chance_is_not_called_changed():
    found = CapacitySearch([SLO], 1, 4, whole=True)
    found.add(LoadResult(1, 256, (2,), "pass"))
    found.add(LoadResult(1, 700, (16,), "fail", is_final=True))
    assert not found.result().loads[0].changed


def test_lowest_level_of_a_server_that_warms_up_is_visited_until_it_does_not_improve():
    found = CapacitySearch([SLO], 1, 4, whole=True)
    for requests, misses in ((3, 3), (30, 20), (60, 5)):
        assert found.next() == 1
        found.add(LoadResult(1, requests, (misses,), "fail", is_final=requests > 3))
    assert found.next() == 1
    found.add(LoadResult(1, 400, (0,), "pass", is_final=True))
    assert found.next() == 2


def test_search_ends_at_the_bounds_of_its_range():
    found, _ = search(1000, 0, maximum=16)
    limit = found.result().limit
    assert (limit.low, limit.high) == (16, None)
    found, sent = search(0.5, 0)
    assert found.result().limit is None
    assert sent < 500


def test_lowest_level_fails_only_after_its_last_visit():
    """The first requests to a server that has just started may be slow."""
    found = CapacitySearch([SLO], 1, 4, whole=True)
    assert (found.next(), found.visit(1)) == (1, "first look")
    found.add(LoadResult(1, 3, (3,), "fail"))
    assert (found.next(), found.visit(1)) == (1, "last")
    found.add(LoadResult(1, 300, (0,), "pass", is_final=True))
    assert found.next() == 2
    for misses in (10, 20):
        found = CapacitySearch([SLO], 1, 4, whole=True)
        found.add(LoadResult(1, misses, (misses,), "fail", is_final=misses == 20))
        assert found.next() == (None if misses == 20 else 1)


def test_rates_stay_within_the_range():
    found = CapacitySearch([SLO], 1003.5, 1026, whole=False)
    assert found.next() == 1003.5
    found.add(LoadResult(1003.5, 300, (0,), "pass"))
    assert found.next() == 1026


def test_fit_never_falls_and_keeps_the_mean():
    assert isotonic([0.1, 0.3, 0.2, 0.5], [1, 1, 1, 1]) == pytest.approx([0.1, 0.25, 0.25, 0.5])


def test_objectives_are_parsed():
    assert SLO.share == 0.99
    assert SLO.is_met({"time_to_first_token": 299})
    assert not SLO.is_met({"time_to_first_token": 300})
    assert not SLO.is_met(None)
    assert not SLO.is_met({})
    assert parse_slo("p99 time_to_first_token<=300").is_met({"time_to_first_token": 300})
    assert parse_slo("p10 output_sequence_length>=10").is_met({"output_sequence_length": 10})
    assert not parse_slo("p10 output_sequence_length>10").is_met({"output_sequence_length": 10})
    slow = parse_slo("p5 output_token_throughput_per_user>20")
    assert slow.share == pytest.approx(0.95)
    assert slow.is_met({"output_token_throughput_per_user": 21})
    errors = parse_slo("request_error_rate<1")
    assert errors.share == pytest.approx(0.99)
    assert errors.is_met({})
    assert not errors.is_met(None)


@pytest.mark.parametrize("text", ["avg time_to_first_token<300", "p99 request_throughput<3", "nonsense", "p99 tft<3"])
def test_other_objectives_are_refused(text):
    with pytest.raises(UserError, match="--slo"):
        parse_slo(text)


def test_figure_of_an_objective_is_its_percentile_with_failures_as_the_worst_values():
    values = [SLO.value({"time_to_first_token": float(n)}) for n in range(1, 200)]
    assert SLO.observed([*values, SLO.value(None)]) == 198
    assert SLO.observed([1.0, SLO.value(None)]) == math.inf
    rate = parse_slo("p10 output_token_throughput_per_user>5")
    assert rate.observed([rate.value(None), *map(float, range(2, 11))]) == -math.inf
    errors = parse_slo("request_error_rate<2")
    assert errors.observed([errors.value({}), errors.value({}), errors.value({}), errors.value(None)]) == 25
