"""Selects the conversation for the k-th session of the run. All workers compute the same selection.

`shuffle` computes single positions of a permutation: building a permutation of a million entries takes 0.7 s, in which
a worker would time replies late. A Feistel network over the next power of two takes a few microseconds for any position
of any epoch; it is applied again while the result is not below n ("cycle walking").
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal

_MASK = (1 << 64) - 1
_ROUNDS = 4
_SMALL = 256
"""Up to this size a stored shuffle is as fast, and a network with so few bits would show patterns."""


def picker(strategy: Literal["sequential", "shuffle", "random"], n: int, seed: int) -> Callable[[int], int]:
    """Return a function from k to the index of a conversation. `seed` must be the same in every worker."""
    if n < 1:
        raise ValueError("a dataset has at least one conversation")
    if strategy == "sequential" or n == 1:
        return lambda k: k % n
    if strategy == "random":
        key = _mix(seed ^ 0x72616E646F6D)
        # The high bits of a 64-bit hash times n: the bias is below n / 2**64.
        return lambda k: _mix(key + k) * n >> 64
    return _shuffled_small(n, seed) if n <= _SMALL else _shuffled_large(n, seed)


def _shuffled_small(n: int, seed: int) -> Callable[[int], int]:
    epoch, order = -1, list(range(n))

    def pick(k: int) -> int:
        nonlocal epoch, order
        if k // n != epoch:
            epoch, order = k // n, _shuffled(n, Random(f"{seed}/shuffle/{k // n}"))
        return order[k % n]

    return pick


def _shuffled(n: int, rng: Random) -> list[int]:
    order = list(range(n))
    for last in range(n - 1, 0, -1):
        other = int(rng.random() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order


def _shuffled_large(n: int, seed: int) -> Callable[[int], int]:
    bits = (n - 1).bit_length()
    low = bits // 2
    high = bits - low
    low_mask, high_mask = (1 << low) - 1, (1 << high) - 1
    key = _mix(seed ^ 0x73687566666C65)
    current, keys = -1, [0] * _ROUNDS

    def pick(k: int) -> int:
        nonlocal current, keys
        epoch, index = divmod(k, n)
        if epoch != current:
            current, keys = epoch, [_mix(key + epoch * _ROUNDS + number) for number in range(_ROUNDS)]
        first, second, third, fourth = keys
        while True:
            left, right = index >> low, index & low_mask
            # Each step changes one half by a hash of the other. It is reversible, so that results are distinct.
            left ^= _mix(first ^ right) & high_mask
            right ^= _mix(second ^ left) & low_mask
            left ^= _mix(third ^ right) & high_mask
            right ^= _mix(fourth ^ left) & low_mask
            index = left << low | right
            if index < n:
                return index

    return pick


def _mix(value: int) -> int:
    """Hash 64 bits with the finalizer of splitmix64, a bijection that mixes all bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
