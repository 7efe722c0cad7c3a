"""Target precision: the error rate over all checkpoints, and targets that are refused."""

import numpy as np
import pytest

from penstock.errors import UserError
from penstock.metrics.intervals import FigureInterval
from penstock.metrics.precision import Checkpoints, parse_precision

TRUTH = np.exp(0.02)  # the mean of the values below


def run_until(seed: int, target: str, limit: int = 6400) -> tuple[int, FigureInterval | None]:
    """Return how many requests a run needs, and its last interval; None if it does not reach the target."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(limit)
    values = np.empty(limit)
    value = 0.0
    for i, step in enumerate(noise.tolist()):
        value = 0.5 * value + step * 0.75**0.5
        values[i] = value
    values = np.exp(0.2 * values)
    checkpoints = Checkpoints(parse_precision(target))
    while checkpoints.next_at <= limit:
        count = checkpoints.next_at
        if checkpoints.look(values[:count]):
            return count, checkpoints.interval
    return limit, None


def error_rate(runs: int, target: str) -> float:
    reached = [interval for seed in range(runs) if (interval := run_until(seed, target)[1]) is not None]
    assert len(reached) > runs / 2
    return sum(not each.low <= TRUTH <= each.high for each in reached) / len(reached)


def test_error_rate_is_kept_over_all_checkpoints():
    assert error_rate(60, "avg request_latency ±3%") <= 0.05 + 3.1 * (0.05 * 0.95 / 60) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("percent", [2, 3, 5])
def test_error_rate_is_kept_in_many_runs(percent):
    assert error_rate(400, f"avg request_latency ±{percent}%") <= 0.05 + 3.1 * (0.05 * 0.95 / 400) ** 0.5


def test_narrower_target_needs_more_requests_and_checkpoints_double():
    wide, narrow = run_until(1, "avg request_latency ±10%")[0], run_until(1, "avg request_latency ±2.5%")[0]
    assert wide == 100
    assert narrow in (400, 800, 1600, 3200)


def test_width_can_be_in_the_unit_of_the_metric():
    target = parse_precision("p90 time_to_first_token +-0.5")
    assert (target.width, target.relative, target.statistic) == (0.5, False, "p90")
    assert target.is_met(FigureInterval(10.0, 11.0))
    assert not target.is_met(FigureInterval(10.0, 11.1))
    assert not target.is_met(FigureInterval(10.0, None))


@pytest.mark.parametrize(
    "text",
    [
        "p99 time_to_first_token",
        "p99 time_to_first_token ±0%",
        "p98 time_to_first_token ±5%",
        "p99 tft ±5%",
        "avg request_throughput ±5%",
        "time_to_first_token ±5%",
    ],
)
def test_other_targets_are_refused(text):
    with pytest.raises(UserError, match="--until"):
        parse_precision(text)
