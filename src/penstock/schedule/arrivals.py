"""Arrival times of requests, in nanoseconds from the start of a phase, as seeded endless iterators.

The times are absolute, so a request that is sent late does not delay the requests after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

__all__ = ["arrivals", "constant", "poisson"]

_SECOND = 1_000_000_000


def constant(rate: float) -> Iterator[int]:
    """Yield n / rate for n = 0, 1, 2, …"""
    number = 0
    while True:
        yield round(number * _SECOND / rate)
        number += 1


def poisson(rate: float, seed: int) -> Iterator[int]:
    """Yield times with independent, exponentially distributed gaps of mean 1 / rate, not rescaled to hit that mean."""
    draw_gap = Random(f"{seed}:arrivals").expovariate
    time = 0.0
    while True:
        time += draw_gap(rate)
        yield round(time * _SECOND)


def arrivals(pattern: str, rate: float, seed: int) -> Iterator[int]:
    return constant(rate) if pattern == "constant" else poisson(rate, seed)
