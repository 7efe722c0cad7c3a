"""Arrival processes with random, independent gaps, drawn in blocks with NumPy.

This module is imported before a phase starts, because importing NumPy takes 0.1 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import msgspec
import numpy as np
from numpy import float64
from numpy.random import RandomState
from numpy.typing import NDArray

from penstock.schedule.conversations import Conversations
from penstock.schedule.share import Share

_SECOND = 1_000_000_000
_BLOCK = 1 << 16
"""Gaps that are drawn at once."""
_FIRST_BLOCK = 1 << 10
"""The first blocks are smaller, so that the first request does not wait for draws that a short phase never uses."""


class Poisson(msgspec.Struct, frozen=True, tag="poisson"):
    """Independent, exponentially distributed gaps of mean 1 / rate, not rescaled to hit that mean."""

    rate: float

    def times(self, share: Share, seed: int, conversations: Conversations) -> Iterator[int]:
        del conversations
        return times_of_gaps(self, share, seed)

    def gaps(self, draw: RandomState, size: int) -> NDArray[float64]:
        result: NDArray[float64] = -np.log1p(-draw.random_sample(size)) / self.rate
        return result


class Gamma(msgspec.Struct, frozen=True, tag="gamma"):
    """Independent gaps of mean 1 / rate with a gamma distribution of shape `smoothness`: below 1 arrivals come in bursts, 1 is
    Poisson, and above 1 they are more even."""

    rate: float
    smoothness: float = 1.0

    def times(self, share: Share, seed: int, conversations: Conversations) -> Iterator[int]:
        del conversations
        return times_of_gaps(self, share, seed)

    def gaps(self, draw: RandomState, size: int) -> NDArray[float64]:
        result: NDArray[float64] = draw.gamma(self.smoothness, 1 / (self.rate * self.smoothness), size)
        return result


class GapProcess(Protocol):
    """An arrival process with independent gaps."""

    def gaps(self, draw: RandomState, size: int) -> NDArray[float64]:
        """Return the next `size` gaps in seconds."""
        ...


def times_of_gaps(process: GapProcess, share: Share, seed: int) -> Iterator[int]:
    """Yield this worker's times of an arrival process with independent gaps."""
    draw = np.random.RandomState(seed_words("arrivals", seed))
    time, first, size = 0.0, share.worker, _FIRST_BLOCK
    while True:
        ends = time + np.cumsum(process.gaps(draw, size))
        time = float(ends[-1])
        yield from np.rint(ends[first :: share.workers] * _SECOND).astype(np.int64).tolist()
        first = (first - size) % share.workers
        size = min(_BLOCK, size * 2)


def seed_words(purpose: str, seed: int) -> list[int]:
    """Return the seed of an independent stream of draws for a purpose, as words of 32 bits."""
    words = [int.from_bytes(purpose.encode()[n : n + 4], "little") for n in range(0, len(purpose), 4)]
    remaining = abs(seed)
    for _ in range(max(1, math.ceil(remaining.bit_length() / 32))):
        words.append(remaining & 0xFFFFFFFF)
        remaining >>= 32
    return words
