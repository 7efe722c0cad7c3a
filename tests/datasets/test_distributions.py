"""Distributions of numbers: the drawn ones have the mean, the median, the shares and the limits that the settings name."""

from __future__ import annotations

from collections import Counter
from statistics import mean, median, pstdev

import pytest

from penstock.datasets.lengths import draw_lengths
from penstock.datasets.random_streams import number, stream
from penstock.settings.schema import InputSettings, NumberDistribution

COUNT = 20_000


def draw(shape: NumberDistribution) -> list[float]:
    rng = stream(3, "test")
    return [number(rng, 0, 0, shape) for _ in range(COUNT)]


def test_log_normal_numbers_have_the_mean_and_the_median() -> None:
    drawn = draw(NumberDistribution(mean=1000, median=600))
    assert mean(drawn) == pytest.approx(1000, rel=0.03)
    assert median(drawn) == pytest.approx(600, rel=0.03)


def test_equal_mean_and_median_are_a_constant() -> None:
    assert draw(NumberDistribution(mean=50, median=50)) == pytest.approx([50] * COUNT)


def test_limits_replace_numbers_beyond_them() -> None:
    drawn = draw(NumberDistribution(mean=100, stddev=50, low=80, high=120))
    assert (min(drawn), max(drawn)) == (80, 120)
    assert sum(value == 80 for value in drawn) / COUNT == pytest.approx(0.345, abs=0.02)  # Φ(-0.4)


def test_parts_have_the_shares_of_their_weights() -> None:
    parts = (
        NumberDistribution(mean=100, stddev=2, weight=3),
        NumberDistribution(mean=900),
        NumberDistribution(mean=5, weight=0),
    )
    shape = NumberDistribution(parts=parts)
    drawn = draw(shape)
    low = [value for value in drawn if value < 500]
    assert len(low) / COUNT == pytest.approx(0.75, abs=0.015)
    assert (mean(low), pstdev(low)) == (pytest.approx(100, rel=0.01), pytest.approx(2, rel=0.1))
    assert mean(drawn) == pytest.approx(shape.expected, rel=0.03)
    assert 5 not in drawn


def test_lengths_of_prompts_and_replies_follow_their_distributions() -> None:
    points = NumberDistribution(parts=(NumberDistribution(mean=16), NumberDistribution(mean=64)))
    settings = InputSettings(
        output_tokens_mean=40,
        distributions=(("input_tokens_mean", NumberDistribution(mean=9)), ("output_tokens_mean", points)),
    )
    inputs, outputs = draw_lengths(settings, 3, 1000)
    assert set(inputs) == {9}
    counts = Counter(outputs)
    assert counts.keys() == {16, 64}
    assert 430 < counts[16] < 570
