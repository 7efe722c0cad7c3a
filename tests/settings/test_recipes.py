"""Recipes of `--search-recipe`: the points of their grids, and the flags that they take."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.profile import COMMAND_LINE
from penstock.errors import UserError
from penstock.runs.peak_runs import PeakRuns
from penstock.runs.points import Experiment
from penstock.runs.read_experiment import read_experiment, read_variations
from penstock.settings.parse import parse


def words(*arguments: Any) -> Any:
    common = ["--model", "m", "--tokenizer", "builtin", "--streaming", "--search-recipe"]
    return parse(COMMAND_LINE, [*common, *map(str, arguments)], "penstock")


def read(*arguments: Any) -> Experiment:
    return read_experiment(words(*arguments))


def parameters(*arguments: Any) -> list[dict[str, Any]]:
    return [each.parameters for each in read_variations(words(*arguments))]


def test_concurrency_ramp_is_a_geometric_series() -> None:
    found = [each["concurrency"] for each in parameters("concurrency-ramp")]
    assert found == [1, 3, 7, 19, 52, 139, 373, 1000]  # AIPerf's
    ramp = parameters("concurrency-ramp", "--concurrency-min", 2, "--concurrency-max", 8, "--concurrency-steps", 3)
    assert ramp == [{"concurrency": 2}, {"concurrency": 4}, {"concurrency": 8}]


def test_prefill_curve_has_prompt_lengths_at_concurrency_one() -> None:
    variations = read_variations(words("prefill-ttft-curve", "--isl-max", 2048, "--isl-steps", 4))
    assert [each.parameters for each in variations] == [{"isl": isl} for isl in (256, 512, 1024, 2048)]
    assert {each.settings.load.concurrency for each in variations} == {1}


def test_decode_curve_has_all_concurrencies_and_lengths() -> None:
    found = parameters("decode-itl-curve", "--concurrency-max", 4, "--concurrency-steps", 2, "--osl-steps", 2)
    assert found == [{"concurrency": c, "osl": o} for c in (1, 4) for o in (64, 1024)]


def test_pareto_sweep_keeps_lengths_in_pairs() -> None:
    variations = read_variations(words("pareto-sweep", "--isl-osl-pairs", "20/5, 40/10", "--concurrency", "1,8"))
    assert [tuple(each.parameters.values()) for each in variations] == [
        (20, 5, 1),
        (20, 5, 8),
        (40, 10, 1),
        (40, 10, 8),
    ]
    last = variations[-1].settings
    assert (last.input.input_tokens_mean, last.input.output_tokens_mean, last.load.concurrency) == (40, 10, 8)
    assert [each["concurrency"] for each in parameters("pareto-sweep", "--isl-osl-pairs", "9/9")] == [1, 4, 16, 64, 256]


def test_goodput_recipe_searches_a_rate_with_limits_of_single_requests() -> None:
    experiment = read(
        "max-goodput-under-slo", "--ttft-sla-ms", 500, "--tpot-sla-ms", 15, "--e2e-sla-ms", 2000, "--search-max", 64
    )
    assert isinstance(experiment, PeakRuns)
    settings = experiment.settings
    assert settings.goodput == "time_to_first_token:500 inter_token_latency:15 request_latency:2000"
    assert settings.experiment.parameters == ("request_rate",)
    assert (settings.load.rate, experiment.largest[0].load.rate, settings.load.concurrency) == (1, 64, None)


@pytest.mark.parametrize(
    "recipe", [("max-throughput-ttft-sla", "--ttft-sla-ms"), ("max-throughput-itl-sla", "--itl-sla-ms")]
)
def test_throughput_recipes_search_a_concurrency(recipe: tuple[str, str]) -> None:
    experiment = read(*recipe, 200, "--concurrency-min", 4, "--concurrency-max", 32)
    assert isinstance(experiment, PeakRuns)
    assert (experiment.settings.load.concurrency, experiment.largest[0].load.concurrency) == (4, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("max-throughput-ttft-sla",), "max-throughput-ttft-sla needs --ttft-sla-ms."),
        (("max-goodput-under-slo",), "needs --ttft-sla-ms or --tpot-sla-ms or --itl-sla-ms or --e2e-sla-ms"),
        (
            ("prefill-ttft-curve", "--ttft-sla-ms", 3),
            "--ttft-sla-ms does not belong to --search-recipe prefill-ttft-curve",
        ),
        (("concurrency-ramp", "--concurrency", 3), "sets --concurrency by itself; leave it out"),
        (("prefill-ttft-curve", "--isl", 3), "sets --isl by itself; leave it out"),
        (("pareto-sweep", "--isl-osl-pairs", "20x5"), "must look like 128/128,512/256"),
        (("pareto-sweep", "--isl-osl-pairs", "20/5,20/5"), "has a pair twice"),
        (("concurrency-ramp", "--concurrency-min", 9, "--concurrency-max", 9), "its lowest value, 9, is not below 9"),
        (("max-throughput-itl-sla", "--itl-sla-ms", 3, "--tpot-sla-ms", 4), "limit the same time; keep one of them"),
        (("max-throughput-itl-sla", "--itl-sla-ms", 3, "--concurrency", 4), "leave out --concurrency"),
        (("concurrency-ramp", "--find-max", "concurrency"), "--find-max does not belong to"),
        (("concurrency-ramp", "--degradation-metric-tag", "latncy"), "there is no metric latncy; "),
        (
            ("concurrency-ramp", "--search-planner", "bayesian"),
            "Bayesian search, Sobol designs and Optuna are not part",
        ),
    ],
)
def test_contradictions_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(*arguments)


def test_recipe_for_tokens_needs_streamed_replies() -> None:
    with pytest.raises(UserError, match="prefill-ttft-curve judges the tokens of streamed replies; add --streaming"):
        read_experiment(parse(COMMAND_LINE, ["--model", "m", "--search-recipe", "prefill-ttft-curve"], "penstock"))


def test_flags_of_recipes_need_one() -> None:
    with pytest.raises(UserError, match="--isl-min belongs to a search"):
        read_experiment(parse(COMMAND_LINE, ["--model", "m", "--isl-min", "3"], "penstock"))
