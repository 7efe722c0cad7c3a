"""Bootstrap estimates of series with known differences."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.compare.bootstrap import Estimate, Values, block_length, holm, paired, unpaired


def mean(values: Values) -> Values:
    return np.array([values.mean()])


def series(rng: np.random.Generator, count: int, memory: float = 0.0) -> Values:
    """Return random values, each depending on the one before with the weight `memory`."""
    drawn = rng.exponential(1.0, count)
    for i in range(1, count):
        drawn[i] = memory * drawn[i - 1] + (1 - memory) * drawn[i]
    return drawn


def test_real_difference_is_detected() -> None:
    rng = np.random.default_rng(1)
    a = series(rng, 300)
    estimate = paired(a, a + 0.5 + rng.normal(0, 0.1, 300), mean, 0)[0]
    assert estimate.p < 1e-6
    assert estimate.low < 0.5 < estimate.high
    assert estimate.high - estimate.low < 0.1, "variance that both sides share is not noise"


def test_equal_distributions_are_rarely_called_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 of 100 are expected; slightly more for correlated values."""
    monkeypatch.setattr("penstock.compare.bootstrap._MAX_RESAMPLES", 400)
    rng = np.random.default_rng(2)
    for memory, most in ((0.0, 12), (0.5, 16)):
        estimates = [paired(series(rng, 60, memory), series(rng, 60, memory), mean, n)[0] for n in range(100)]
        assert sum(estimate.p < 0.05 for estimate in estimates) <= most


def test_correlated_values_get_longer_blocks_and_wider_intervals() -> None:
    rng = np.random.default_rng(3)
    independent, correlated = series(rng, 2000), series(rng, 2000, 0.95)
    assert block_length(independent) == 45  # the square root of 2,000
    assert block_length(correlated) > 60
    assert block_length(np.ones(500)) == 1

    def width(estimate: Estimate) -> float:
        return (estimate.high - estimate.low) / float(np.std(correlated))

    naive = 4 / np.sqrt(1000)
    assert width(unpaired(correlated[:1000], correlated[1000:], mean, 0)[0]) > 2 * naive


def test_identical_series_have_no_difference() -> None:
    a = np.arange(50.0)
    estimate = paired(a, a, mean, 0)[0]
    assert (estimate.difference, estimate.low, estimate.high, estimate.p) == (0, 0, 0, 1)


def test_several_statistics_are_reproducible_by_seed() -> None:
    rng = np.random.default_rng(4)
    a, b = series(rng, 200), series(rng, 200) + 1

    def quantiles(values: Values) -> Values:
        return np.percentile(values, [50, 90])

    first = paired(a, b, quantiles, 9)
    assert [round(estimate.a, 6) for estimate in first] == [round(float(np.percentile(a, q)), 6) for q in (50, 90)]
    assert first == paired(a, b, quantiles, 9)


@pytest.mark.parametrize(
    ("values", "adjusted"),
    [([], []), ([0.01], [0.01]), ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]), ([0.5, 0.9], [1.0, 1.0])],
)
def test_holm_adjusts_p_values(values: list[float], adjusted: list[float]) -> None:
    assert holm(values) == pytest.approx(adjusted)
