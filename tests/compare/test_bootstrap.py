"""How sure a difference is: against series whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.compare.bootstrap import Estimate, Values, block_length, holm, paired, unpaired


def mean(values: Values) -> Values:
    return np.array([values.mean()])


def series(rng: np.random.Generator, count: int, memory: float = 0.0) -> Values:
    """Each value carries `memory` of the one before."""
    drawn = rng.exponential(1.0, count)
    for i in range(1, count):
        drawn[i] = memory * drawn[i - 1] + (1 - memory) * drawn[i]
    return drawn


def test_a_real_difference_is_seen_and_measured() -> None:
    rng = np.random.default_rng(1)
    a = series(rng, 300)
    estimate = paired(a, a + 0.5 + rng.normal(0, 0.1, 300), mean, 0)[0]
    assert estimate.p < 1e-6
    assert estimate.low < 0.5 < estimate.high
    assert estimate.high - estimate.low < 0.1, "what the pairs share does not count as noise"


def test_alike_with_alike_is_rarely_called_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 of 100 are meant to be; more when values lean on each other, and not many more."""
    monkeypatch.setattr("penstock.compare.bootstrap._RESAMPLES", 400)
    rng = np.random.default_rng(2)
    for memory, most in ((0.0, 12), (0.5, 16)):
        found = [paired(series(rng, 60, memory), series(rng, 60, memory), mean, n)[0] for n in range(100)]
        assert sum(each.p < 0.05 for each in found) <= most


def test_neighbours_that_lean_on_each_other_are_drawn_together() -> None:
    rng = np.random.default_rng(3)
    alone, together = series(rng, 2000), series(rng, 2000, 0.95)
    assert block_length(alone) == 45  # the root of 2,000
    assert block_length(together) > 60
    assert block_length(np.ones(500)) == 1

    def width(estimate: Estimate) -> float:
        return (estimate.high - estimate.low) / float(np.std(together))

    naive = 4 / np.sqrt(1000)
    assert width(unpaired(together[:1000], together[1000:], mean, 0)[0]) > 2 * naive


def test_no_difference_at_all() -> None:
    a = np.arange(50.0)
    estimate = paired(a, a, mean, 0)[0]
    assert (estimate.difference, estimate.low, estimate.high, estimate.p) == (0, 0, 0, 1)


def test_several_statistics_at_once_and_the_seed() -> None:
    rng = np.random.default_rng(4)
    a, b = series(rng, 200), series(rng, 200) + 1

    def quantiles(values: Values) -> Values:
        return np.percentile(values, [50, 90])

    first = paired(a, b, quantiles, 9)
    assert [round(each.a, 6) for each in first] == [round(float(np.percentile(a, q)), 6) for q in (50, 90)]
    assert first == paired(a, b, quantiles, 9)


@pytest.mark.parametrize(
    ("values", "adjusted"),
    [([], []), ([0.01], [0.01]), ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]), ([0.5, 0.9], [1.0, 1.0])],
)
def test_many_questions_at_once(values: list[float], adjusted: list[float]) -> None:
    assert holm(values) == pytest.approx(adjusted)
