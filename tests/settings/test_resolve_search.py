"""Flags of a search: AIPerf's synonyms, and contradictions that are refused before anything is sent."""

import pytest

from penstock.cli.profile import COMMAND_LINE
from penstock.errors import UserError
from penstock.runs.read_experiment import read_experiment
from penstock.settings.parse import parse


def read(*arguments):
    return read_experiment(parse(COMMAND_LINE, ["--model", "m", "--tokenizer", "builtin", *arguments], "penstock"))


def test_recipe_of_aiperf_is_a_search_for_a_concurrency():
    limits = ("--ttft-sla-ms", "300", "--itl-sla-ms", "20", "--e2e-sla-ms", "4000", "--error-rate-sla", "0.02")
    experiment = read(
        "--search-recipe", "max-concurrency-under-sla", *limits, "--slo-attainment-fraction", "0.9"
    ).settings
    assert experiment.experiment.find_max == "concurrency"
    assert experiment.experiment.slos == (
        "p90 time_to_first_token<300",
        "p90 inter_token_latency<20",
        "p90 request_latency<4000",
        "request_error_rate<2",
    )


@pytest.mark.parametrize(("fraction", "percentile"), [("0.85", "p85"), ("0.995", "p99.5"), ("1", "p99.9")])
def test_any_attainment_is_a_percentile(fraction, percentile):
    recipe = ("--search-recipe", "max-concurrency-under-sla", "--ttft-sla-ms", "300")
    experiment = read(*recipe, "--slo-attainment-fraction", fraction).settings.experiment
    assert experiment.slos == (f"{percentile} time_to_first_token<300",)


def test_search_for_a_rate_takes_an_arrival_pattern():
    search = read("--find-max", "request-rate", *SLO, "--arrival-pattern", "constant")
    assert search.settings.load.arrivals == "constant"


def test_range_of_the_search_sizes_the_workers():
    search = read("--find-max", "concurrency", "--slo", "p99 ttft<3".replace("ttft", "time_to_first_token"))
    assert search.largest[0].load.concurrency == 1024
    assert search.settings.load.concurrency == 1
    by_rate = read("--find-max", "request-rate", "--slo", "p99 request_latency<3", "--concurrency-max", "50")
    assert by_rate.largest[0].load.rate == 50


SLO = ("--slo", "p99 time_to_first_token<300")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--find-max", "concurrency"), "--find-max needs an objective"),
        (("--search-recipe", "max-concurrency-under-sla"), "--search-recipe needs an objective"),
        ((*SLO, "--find-max", "concurrency", "--concurrency", "4"), "leave out --concurrency"),
        ((*SLO, "--find-max", "concurrency", "--isl", "10,20"), "give one value for isl"),
        ((*SLO, "--find-max", "concurrency", "--num-profile-runs", "3"), "leave out --num-profile-runs"),
        ((*SLO, "--find-max", "concurrency", "--search-min", "9", "--search-max", "3"), "is above the highest one"),
        ((*SLO, "--find-max", "concurrency", "--search-min", "1.5"), "whole numbers"),
        ((*SLO, "--find-max", "concurrency", "--ttft-sla-ms", "3"), "belongs to --search-recipe"),
        ((*SLO, "--search-recipe", "max-concurrency-under-sla"), "Give either --slo or --search-recipe"),
        (("--slo", "avg time_to_first_token<300", "--find-max", "concurrency"), "takes a percentile"),
        ((*SLO, "--find-max", "concurrency", "--assert", "p99 request_latency<9"), "leave out --assert"),
        ((*SLO, "--find-max", "concurrency", "--require-valid"), "leave out --require-valid"),
        ((*SLO,), "--slo belongs to a search"),
    ],
)
def test_contradictions_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        read(*arguments)
