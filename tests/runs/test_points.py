"""The points of an experiment, without running them: order, folders, seeds, pauses, and when repeating stops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UserError
from penstock.metrics.statistics import Stats
from penstock.runs.points import Experiment, Point, PointOutcome
from penstock.runs.read_experiment import read_experiment
from penstock.runs.read_settings import refuse_experiment
from penstock.settings.command_line import CommandLine
from penstock.settings.flags import GROUPS
from penstock.settings.parse import parse

PROFILE = CommandLine("profile", "", groups=GROUPS)


def experiment(flags: str) -> Experiment:
    words = ["--model", "m", "--artifact-dir", "out", "--isl-stddev", "0", *flags.split()]
    return read_experiment(parse(PROFILE, words))


class _Report:
    """The part of a report that an experiment reads."""

    def __init__(self, latency: float, throughput: float, *, ended_by_overload: bool = False) -> None:
        self.summary = self
        self.ended_by_overload = ended_by_overload
        self.metrics = {
            "request_latency": Stats("ms", avg=latency),
            "request_throughput": Stats("requests/sec", avg=throughput),
        }


def run(
    flags: str,
    latencies: Sequence[float] = (),
    throughput: Callable[[int], float | None] = lambda _: 1.0,
    overloaded_at: float = math.inf,
) -> list[Point]:
    """Run an experiment, and return its points. They have these mean latencies, and a throughput by their concurrency; without
    one they fail."""
    points: list[Point] = []
    generator = experiment(flags).points()
    try:
        point = next(generator)
        while True:
            points.append(point)
            latency = latencies[len(points) - 1] if latencies else 1.0
            rate = throughput(point.settings.load.concurrency or 0)
            overloaded = (point.settings.load.rate or 0.0) >= overloaded_at
            report: Any = _Report(latency, rate or 0.0, ended_by_overload=overloaded)
            point = generator.send(PointOutcome(point, report, None if rate is not None else "All requests failed."))
    except StopIteration:
        return points


def test_rates_above_an_overloaded_one_are_left_out() -> None:
    points = run("--request-rate 10,40,20,30 --isl 5,6 --stop-on-overload --request-count 9", overloaded_at=20)
    assert [point.parameters for point in points] == [
        {"request_rate": 10, "isl": 5},
        {"request_rate": 10, "isl": 6},
        {"request_rate": 40, "isl": 5},
        {"request_rate": 40, "isl": 6},
        {"request_rate": 20, "isl": 5},
        {"request_rate": 20, "isl": 6},
    ]


def test_overload_leaves_out_nothing_that_differs_in_more_than_the_rate() -> None:
    flags = "--request-rate 10,20 --isl 5,6 --sweep-type zip --stop-on-overload --request-count 9"
    assert len(run(flags, overloaded_at=10)) == 2


def test_repeated_runs_have_equal_seeds_and_one_warmup() -> None:
    points = run("--num-profile-runs 3 --profile-run-cooldown-seconds 2 --warmup-request-count 5")
    assert [point.settings.output.folder for point in points] == [f"out/profile_runs/run_000{n}" for n in (1, 2, 3)]
    assert [point.label for point in points] == ["run_0001", "run_0002", "run_0003"]
    assert [point.settings.input.seed for point in points] == [42, 42, 42]
    assert [point.warmup for point in points] == [True, False, False]
    assert [point.pause_s for point in points] == [0, 2, 2]
    assert [point.trial for point in points] == [0, 1, 2]


@pytest.mark.parametrize(
    ("flags", "seeds"),
    [
        ("--random-seed 7", [7, 7]),
        ("--random-seed 7 --vary-seed-per-trial", [7, 100_007]),
        ("--vary-seed-per-trial=false", [42, 42]),
        ("--no-vary-seed-per-trial", [42, 42]),
    ],
)
def test_seeds_of_repeated_runs(flags: str, seeds: list[int]) -> None:
    assert [point.settings.input.seed for point in run(f"--num-profile-runs 2 {flags}")] == seeds


def test_seed_is_random_without_a_consistent_one() -> None:
    first, second = (run("--num-profile-runs 2 --no-set-consistent-seed") for _ in range(2))
    assert first[0].settings.input.seed == first[1].settings.input.seed != second[0].settings.input.seed


def test_warmup_of_each_run() -> None:
    points = run("--num-profile-runs 2 --warmup-request-count 1 --no-profile-run-disable-warmup-after-first")
    assert [point.warmup for point in points] == [True, True]


def test_points_of_a_sweep_have_their_own_seeds_and_folders() -> None:
    points = run("--concurrency 1,8 --request-rate 5,10 --sweep-type zip --random-seed 7")
    assert [point.settings.output.folder for point in points] == [
        "out/concurrency_1_request_rate_5",
        "out/concurrency_8_request_rate_10",
    ]
    assert [point.settings.input.seed for point in points] == [7, 8]
    assert [point.settings.load.rate for point in points] == [5, 10]
    assert [point.warmup for point in points] == [True, True]
    same = run("--concurrency 1,8 --random-seed 7 --parameter-sweep-same-seed")
    assert [point.settings.input.seed for point in same] == [7, 7]


@pytest.mark.parametrize(
    ("mode", "order", "pauses", "folder"),
    [
        (
            "repeated",
            [(0, 0), (1, 0), (0, 1), (1, 1)],
            [0, 3, 5, 3],
            "out/profile_runs/trial_000{run}/concurrency_{value}",
        ),
        (
            "independent",
            [(0, 0), (0, 1), (1, 0), (1, 1)],
            [0, 5, 5, 5],
            "out/concurrency_{value}/profile_runs/trial_000{run}",
        ),
    ],
)
def test_order_of_repeated_points(mode: str, order: list[tuple[int, int]], pauses: list[float], folder: str) -> None:
    points = run(
        f"--concurrency 1,8 --num-profile-runs 2 --parameter-sweep-mode {mode} --parameter-sweep-cooldown-seconds 3 "
        "--profile-run-cooldown-seconds 5"
    )
    assert [(point.variation, point.trial) for point in points] == order
    assert [point.pause_s for point in points] == pauses
    assert {point.settings.output.folder for point in points} == {
        folder.format(value=value, run=run) for value in (1, 8) for run in (1, 2)
    }


def test_default_folder_of_a_sweep_is_named_after_its_parameters() -> None:
    made = read_experiment(parse(PROFILE, ["--model", "a/b", "--concurrency", "1,8"]))
    assert made.settings.output.folder == "artifacts/a_b-chat-sweep-concurrency"
    assert [settings.load.concurrency for settings in made.largest] == [1, 8]


def concurrencies(points: list[Point]) -> list[int | None]:
    return [point.settings.load.concurrency for point in points]


def test_auto_sweep_finds_saturation_and_measures_between() -> None:
    points = run("--sweep auto", throughput=lambda n: 10.0 * min(n, 10))
    # 8 gives 80, 16 gives 100 and is saturated, 32 does not grow; 12 is saturated too, and 10 is the lowest that is.
    assert concurrencies(points) == [1, 2, 4, 8, 16, 32, 12, 10]
    assert [point.settings.load.requests for point in points[:4]] == [20, 20, 40, 80]
    assert [point.settings.output.folder for point in points[:2]] == ["out/concurrency_1", "out/concurrency_2"]
    seeds = [point.settings.input.seed or 0 for point in points]
    assert seeds == list(range(seeds[0], seeds[0] + len(seeds)))


@pytest.mark.parametrize(
    ("flags", "throughput", "expected"),
    [
        ("--concurrency 6", float, [1, 2, 4, 6, 5]),
        ("--concurrency 1", float, [1]),
        ("--request-count 10", float, [1, 2, 4, 5]),
        ("", lambda n: 1.0, [1, 2]),
        ("", lambda n: float(n) if n < 8 else None, [1, 2, 4, 8, 3]),
        ("", lambda n: None, [1]),
    ],
)
def test_auto_sweep_ends(flags: str, throughput: Callable[[int], float | None], expected: list[int]) -> None:
    assert concurrencies(run(f"--sweep auto {flags}", throughput=throughput)) == expected


CONVERGING = "--num-profile-runs 6 --convergence-metric request_latency"


@pytest.mark.parametrize(
    ("flags", "values", "runs"),
    [
        ("", [10, 10, 10], 3),  # at least three runs
        ("", [10, 20, 10, 20, 10, 20], 6),
        # The coefficient of variation is 0.091 after three runs, then 0.074, 0.064 and 0.057.
        ("--convergence-mode cv", [10, 12, 11, 11, 11, 11], 6),
        ("--convergence-mode cv --convergence-threshold 0.07", [10, 12, 11, 11, 11, 11], 5),
        ("--convergence-mode cv --convergence-threshold 0.092", [10, 12, 11, 11, 11, 11], 3),
    ],
)
def test_repeating_stops_when_the_metric_is_stable(flags: str, values: list[float], runs: int) -> None:
    assert len(run(f"{CONVERGING} {flags}", values)) == runs


@pytest.mark.parametrize("flags", ["--sweep auto", "--find-max concurrency --slo request_error_rate<1"])
def test_experiment_that_chooses_its_loads_does_not_follow_the_times_of_a_trace(tmp_path: Path, flags: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 5, "input_length": 3, "output_length": 1}')
    words = f"--model m {flags} --input-file {trace} --custom-dataset-type mooncake_trace"
    made = read_experiment(parse(PROFILE, words.split()))
    assert made.settings.load.recorded is None


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--confidence-level 0.9", "--confidence-level applies to repeated runs; give --num-profile-runs too"),
        ("--sweep-type zip", "--sweep-type applies to sweeps; give a list of values such as --concurrency 1,8,64"),
        ("--sweep auto --request-rate 5", "--sweep auto varies the concurrency; leave out --request-rate."),
        (
            "--sweep auto --user-centric-rate 5 --num-users 2 --conversation-turn-mean 2",
            "--sweep auto varies the concurrency; leave out --user-centric-rate.",
        ),
        *(
            (
                f"{flags} --parameter-sweep-mode independent",
                "--parameter-sweep-mode orders the repeated runs of a sweep",
            )
            for flags in ("", "--concurrency 1,2", "--num-profile-runs 2")
        ),
        ("--sweep auto --isl 10,20", "--sweep auto chooses the points by itself; give one value for isl."),
        ("--sweep auto --num-profile-runs 2", "--sweep auto measures each point once; leave out --num-profile-runs."),
        ("--concurrency 2,8 --prefill-concurrency 4", "--prefill-concurrency 4 is above --concurrency 2"),
        ("--num-profile-runs 11", "--num-profile-runs must be a whole number from 1 to 10, not '11'."),
        ("--num-profile-runs 3 --convergence-stat p50", "--convergence-stat adjusts --convergence-metric"),
        ("--num-profile-runs 2 --convergence-metric request_latency", "needs at least 3 runs to judge"),
        ("--num-profile-runs 3 --convergence-metric request_latncy", "did you mean request_latency?"),
        (
            "--num-profile-runs 3 --convergence-metric request_throughput --convergence-mode distribution",
            "compares the values of single requests, which request_throughput does not have",
        ),
        (
            f"{CONVERGING} --convergence-mode distribution --export-level summary",
            "compares the values of single requests, which --export-level summary does not write",
        ),
    ],
)
def test_invalid_experiment_is_refused_before_anything_is_sent(flags: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        experiment(flags)
    assert sentence in " ".join(str(error.value).split())


@pytest.mark.parametrize("flags", ["--num-profile-runs 2", "--concurrency 1,2", "--sweep auto"])
def test_commands_that_make_one_run_refuse_several(flags: str) -> None:
    with pytest.raises(UserError, match="compare makes one run; leave out --num-profile-runs and --sweep"):
        refuse_experiment(parse(PROFILE, flags.split()), "compare")
    refuse_experiment(parse(PROFILE, ["--num-profile-runs", "1", "--concurrency", "2"]), "compare")
