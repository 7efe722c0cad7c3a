"""Random draws for datasets: lengths, and ids of conversations that have none."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Collection, Iterator
from random import Random


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


def length(rng: Random, mean: float, stddev: float) -> int:
    """Draw a length of at least 1. Round to the nearest integer: rounding up raises the mean by half a token."""
    return max(1, round(normal(rng, mean, stddev)))


def conversation_ids(seed: int | None, taken: Collection[object] = ()) -> Iterator[str]:
    """Yield ids that are not in `taken`: numbers if there is a seed, so that runs can be compared, else UUIDs."""
    number = 0
    while True:
        name = f"session_{number:06d}" if seed is not None else str(uuid.uuid4())
        number += 1
        if name not in taken:
            yield name
