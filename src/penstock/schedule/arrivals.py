"""When requests should start, as offsets from the start of a phase: pure, seeded, endless.

The offsets are absolute, so that one late request does not move the ones behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

__all__ = ["arrivals", "constant", "poisson"]

_SECOND = 1_000_000_000


def constant(rate: float) -> Iterator[int]:
    """The n-th request at n / rate."""
    number = 0
    while True:
        yield round(number * _SECOND / rate)
        number += 1


def poisson(rate: float, seed: int) -> Iterator[int]:
    """Independent, exponentially distributed gaps with mean 1 / rate. The gaps are not rescaled to hit the mean."""
    draw = Random(f"{seed}:arrivals").expovariate
    at = 0.0
    while True:
        at += draw(rate)
        yield round(at * _SECOND)


def arrivals(pattern: str, rate: float, seed: int) -> Iterator[int]:
    return constant(rate) if pattern == "constant" else poisson(rate, seed)
