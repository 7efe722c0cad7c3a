"""What is drawn at random about a dataset: lengths, and names for conversations that have none."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Collection, Iterator
from random import Random

__all__ = ["conversation_ids", "fresh_seed", "length", "normal", "stream"]


def fresh_seed() -> int:
    return int.from_bytes(os.urandom(8), "big")


def stream(seed: int, purpose: str) -> Random:
    """One sequence a purpose, so that drawing more of one thing does not change another."""
    return Random(f"{seed}/{purpose}")


def normal(rng: Random, mean: float, stddev: float) -> float:
    if stddev == 0:
        return mean
    # Box and Muller's method, spelled out because Python promises the sequence of random() only.
    radius = math.sqrt(-2.0 * math.log(1.0 - rng.random()))
    return mean + stddev * radius * math.cos(2.0 * math.pi * rng.random())


def length(rng: Random, mean: float, stddev: float) -> int:
    """A normal draw, rounded to the nearest and at least 1: rounding up would raise the mean by half a token."""
    return max(1, round(normal(rng, mean, stddev)))


def conversation_ids(seed: int | None, taken: Collection[object] = ()) -> Iterator[str]:
    """Numbered under a seed, so that runs can be compared line by line; otherwise unlike those of any other run."""
    number = 0
    while True:
        name = f"session_{number:06d}" if seed is not None else str(uuid.uuid4())
        number += 1
        if name not in taken:
            yield name
