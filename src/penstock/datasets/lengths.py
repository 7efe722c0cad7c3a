"""Draws the lengths of synthetic prompts and of the replies that they ask for."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from random import Random
from typing import NamedTuple

from penstock.datasets.random_streams import length, stream
from penstock.settings.schema import InputSettings


class Lengths(NamedTuple):
    inputs: list[int]
    outputs: Iterator[int | None]
    """One for each of `inputs`; None if the request asks for no length."""


def draw_lengths(settings: InputSettings, seed: int, count: int) -> Lengths:
    """Draw the lengths of `count` turns. Equal seeds give equal lengths."""
    inputs, outputs = stream(seed, "input lengths"), stream(seed, "output lengths")
    if settings.length_pairs:
        return _of_pairs(settings, stream(seed, "length pairs"), inputs, outputs, count)
    mean, reply_mean = settings.input_tokens_mean, settings.output_tokens_mean
    if settings.range_ratio is not None:
        low, high = _range(mean, settings.range_ratio[0], settings.range_style)
        targets = [_uniform(inputs, low, high) for _ in range(count)]
        if reply_mean is None:
            return Lengths(targets, (None for _ in range(count)))
        low_reply, high_reply = _range(reply_mean, settings.range_ratio[1], settings.range_style)
        return Lengths(targets, (_uniform(outputs, low_reply, high_reply) for _ in range(count)))
    shape, reply_shape = map(settings.distribution, ("input_tokens_mean", "output_tokens_mean"))
    targets = [length(inputs, mean, settings.input_tokens_stddev, shape) for _ in range(count)]
    if reply_mean is None:
        return Lengths(targets, (None for _ in range(count)))
    stddev = settings.output_tokens_stddev
    return Lengths(targets, (length(outputs, reply_mean, stddev, reply_shape) for _ in range(count)))


def _of_pairs(settings: InputSettings, choices: Random, inputs: Random, outputs: Random, count: int) -> Lengths:
    pairs = settings.length_pairs
    bounds = list(accumulate(pair.percent for pair in pairs))

    # The last bound is left out: the product can be rounded up to it.
    chosen = [pairs[bisect_right(bounds[:-1], choices.random() * bounds[-1])] for _ in range(count)]
    return Lengths(
        [length(inputs, pair.input_mean, pair.input_stddev) for pair in chosen],
        (length(outputs, pair.output_mean, pair.output_stddev) for pair in chosen),
    )


def _range(mean: float, ratio: float, style: str) -> tuple[int, int]:
    """Return the shortest and the longest length."""
    if style == "sglang":
        return max(1, int(mean * ratio)), int(mean)
    # The product is rounded, because 100 * (1 + 0.1) is 110.00000000000001.
    return max(1, math.floor(round(mean * (1 - ratio), 6))), math.ceil(round(mean * (1 + ratio), 6))


def _uniform(rng: Random, low: int, high: int) -> int:
    return low + int(rng.random() * (high - low + 1))
