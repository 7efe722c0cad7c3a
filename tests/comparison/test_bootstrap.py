"""Bootstrap estimates of series with known differences."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.comparison.bootstrap import Estimate, Values, block_length, compare_means, compare_percentiles, holm


def series(rng: np.random.Generator, count: int, memory: float = 0.0) -> Values:
    """Return random values, each depending on the one before with the weight `memory`."""
    drawn = rng.exponential(1.0, count)
    for i in range(1, count):
        drawn[i] = memory * drawn[i - 1] + (1 - memory) * drawn[i]
    return drawn


def test_real_difference_is_detected() -> None:
    rng = np.random.default_rng(1)
    a = series(rng, 300)
    estimate = compare_means(a, a + 0.5 + rng.normal(0, 0.1, 300), paired=True, seed=0)
    assert estimate.p == 1 / 2000, "the p-value of a certain difference is small but never 0"
    assert estimate.low < 0.5 < estimate.high
    assert estimate.high - estimate.low < 0.1, "variance that both sides share is not noise"


@pytest.mark.parametrize("paired", [True, False])
def test_equal_distributions_are_rarely_called_different(monkeypatch: pytest.MonkeyPatch, paired: bool) -> None:
    """5 % are expected; slightly more for correlated values."""
    monkeypatch.setattr("penstock.comparison.bootstrap._MAX_RESAMPLES", 399)
    rng = np.random.default_rng(2)
    for memory, most in ((0.0, 18), (0.5, 24)):
        estimates = [
            compare_means(series(rng, 60, memory), series(rng, 60, memory), paired=paired, seed=n) for n in range(200)
        ]
        assert sum(estimate.p is not None and estimate.p <= 0.05 for estimate in estimates) <= most


@pytest.mark.parametrize("paired", [True, False])
def test_interval_excludes_zero_exactly_if_p_is_significant(paired: bool) -> None:
    rng = np.random.default_rng(3)
    significant = 0
    for n in range(40):
        estimate = compare_means(rng.normal(0, 1, 50), rng.normal(0.4, 1, 50), paired=paired, seed=n)
        assert estimate.p is not None
        assert (estimate.p <= 0.05) == (estimate.low > 0 or estimate.high < 0)
        significant += estimate.p <= 0.05
    assert 5 < significant < 35


@pytest.mark.parametrize("count", [12, 60, 250, 2000])
def test_correlated_values_get_blocks(count: int) -> None:
    rng = np.random.default_rng(3)
    lengths = [block_length(series(rng, count, 0.9)) for _ in range(20)]
    assert min(lengths) >= round(np.sqrt(count))


def test_independent_values_get_blocks_only_where_blocks_cost_no_power() -> None:
    rng = np.random.default_rng(3)
    lengths = [block_length(series(rng, 60)) for _ in range(100)]
    assert lengths.count(1) >= 90
    assert block_length(series(rng, 2000)) >= 45  # the square root of 2,000
    assert block_length(np.ones(500)) == 1


def test_slow_drift_below_independent_noise_gets_blocks() -> None:
    rng = np.random.default_rng(5)
    drift = np.sin(np.arange(300) / 25)
    lengths = [block_length(drift + rng.normal(0, 1.5, 300)) for _ in range(40)]
    assert lengths.count(1) <= 4


def test_correlated_values_get_wider_intervals() -> None:
    values = series(np.random.default_rng(3), 2000, 0.95)

    def width(estimate: Estimate) -> float:
        return (estimate.high - estimate.low) / float(np.std(values))

    naive = 4 / np.sqrt(1000)
    assert width(compare_means(values[:1000], values[1000:], paired=False, seed=0)) > 2 * naive
    percentiles = compare_percentiles(values[:1000], values[1000:], [50], paired=False, seed=0)
    assert width(next(percentiles)) > 2 * naive


def test_identical_series_have_no_difference() -> None:
    a = np.arange(50.0)
    estimate = compare_means(a, a, paired=True, seed=0)
    assert (estimate.difference, estimate.low, estimate.high, estimate.p) == (0, 0, 0, 1)


def test_rare_failures_have_a_finite_interval() -> None:
    """Most resamples hold no failure, so their own standard error is 0."""
    none, one, half = np.zeros(60), np.zeros(60), np.zeros(60)
    one[7] = half[::2] = 100.0
    estimate = compare_means(none, one, paired=True, seed=0)
    assert estimate.p is not None
    assert estimate.p > 0.2
    assert -20 < estimate.low < 0 < estimate.high < 20
    assert compare_means(none, half, paired=True, seed=0).p == 1 / 2000


@pytest.mark.parametrize("paired", [True, False])
def test_estimates_are_reproducible_by_seed(paired: bool) -> None:
    rng = np.random.default_rng(4)
    a, b = series(rng, 200), series(rng, 180 if not paired else 200) + 1
    first = list(compare_percentiles(a, b, [50, 90], paired=paired, seed=9))
    assert [round(estimate.a, 6) for estimate in first] == [round(float(np.percentile(a, q)), 6) for q in (50, 90)]
    assert [estimate.p for estimate in first] == [None, None]
    assert all(estimate.low < estimate.difference < estimate.high for estimate in first)
    assert first == list(compare_percentiles(a, b, [50, 90], paired=paired, seed=9))
    assert compare_means(a, b, paired=paired, seed=9) == compare_means(a, b, paired=paired, seed=9)


def test_percentile_intervals_cover_the_true_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.comparison.bootstrap._MAX_RESAMPLES", 399)
    rng = np.random.default_rng(6)
    covered = 0
    for n in range(100):
        estimate = next(compare_percentiles(series(rng, 100), series(rng, 100), [90], paired=True, seed=n))
        covered += estimate.low <= 0 <= estimate.high
    assert covered >= 90


@pytest.mark.parametrize(
    ("values", "adjusted"),
    [([], []), ([0.01], [0.01]), ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]), ([0.5, 0.9], [1.0, 1.0])],
)
def test_holm_adjusts_p_values(values: list[float], adjusted: list[float]) -> None:
    assert holm(values) == pytest.approx(adjusted)
