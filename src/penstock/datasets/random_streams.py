"""Random draws for datasets: lengths, and ids of conversations that have none."""

from __future__ import annotations

import math
import os
import uuid
from bisect import bisect_right
from collections.abc import Collection, Iterator
from itertools import accumulate
from random import Random

from penstock.settings.schema import NumberDistribution


def fresh_seed() -> int:
    return int.from_bytes(os.urandom(8), "big")


def stream(seed: int, purpose: str) -> Random:
    """Return a generator for one purpose, so that more draws for one purpose do not change those for another.

    The purpose is part of the seed: renaming it changes the data of existing seeds.
    """
    return Random(f"{seed}/{purpose}")


def normal(rng: Random, mean: float, stddev: float) -> float:
    if stddev == 0:
        return mean
    # The Box-Muller method, written out because Python guarantees only the sequence of random() across versions.
    radius = math.sqrt(-2.0 * math.log(1.0 - rng.random()))
    return mean + stddev * radius * math.cos(2.0 * math.pi * rng.random())


def number(rng: Random, mean: float, stddev: float, shape: NumberDistribution | None = None) -> float:
    """Draw a number, normally distributed unless there is a shape."""
    if shape is None:
        return normal(rng, mean, stddev)
    if shape.parts:
        bounds = list(accumulate(part.weight for part in shape.parts))
        # The last bound is left out: the product can be rounded up to it.
        part = shape.parts[bisect_right(bounds[:-1], rng.random() * bounds[-1])]
        drawn = number(rng, 0, 0, part)
    elif shape.median is not None:
        drawn = math.exp(normal(rng, math.log(shape.median), math.sqrt(2 * math.log(shape.mean / shape.median))))
    else:
        drawn = normal(rng, shape.mean, shape.stddev)
    drawn = drawn if shape.low is None else max(drawn, shape.low)
    return drawn if shape.high is None else min(drawn, shape.high)


def length(rng: Random, mean: float, stddev: float, shape: NumberDistribution | None = None) -> int:
    """Draw a length of at least 1. Round to the nearest integer: rounding up raises the mean by half a token."""
    return max(1, round(number(rng, mean, stddev, shape)))


def conversation_ids(seed: int | None, taken: Collection[object] = ()) -> Iterator[str]:
    """Yield ids that are not in `taken`: numbers if there is a seed, so that runs can be compared, else UUIDs."""
    number = 0
    while True:
        name = f"session_{number:06d}" if seed is not None else str(uuid.uuid4())
        number += 1
        if name not in taken:
            yield name
