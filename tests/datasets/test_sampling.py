"""Sampling strategies: every worker must compute the same conversation for every k, in any order."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.datasets.sampling import picker

sizes = st.one_of(st.integers(1, 300), st.integers(301, 5000))
seeds = st.integers(-(2**63), 2**64)
Strategy = Literal["sequential", "shuffle", "random"]


@given(n=sizes, k=st.integers(0, 2**40))
def test_sequential_wraps_around(n: int, k: int) -> None:
    assert picker("sequential", n, 0)(k) == k % n


@settings(max_examples=60, deadline=None)
@given(n=sizes, seed=seeds, epoch=st.integers(0, 1000))
def test_shuffled_epoch_has_each_conversation_once(n: int, seed: int, epoch: int) -> None:
    pick = picker("shuffle", n, seed)
    assert sorted(pick(k) for k in range(epoch * n, (epoch + 1) * n)) == list(range(n))


@pytest.mark.parametrize("strategy", ["shuffle", "random"])
@given(n=sizes, seed=seeds, ks=st.lists(st.integers(0, 2**32), min_size=1, max_size=20))
def test_result_does_not_depend_on_earlier_calls(strategy: Strategy, n: int, seed: int, ks: list[int]) -> None:
    together, alone = picker(strategy, n, seed), [picker(strategy, n, seed)(k) for k in ks]
    assert [together(k) for k in ks] == alone
    assert [together(k) for k in reversed(ks)] == alone[::-1]
    assert all(0 <= index < n for index in alone)


@pytest.mark.parametrize("n", [100, 1000])
def test_epochs_and_seeds_are_shuffled_differently(n: int) -> None:
    pick, other = picker("shuffle", n, 1), picker("shuffle", n, 2)
    orders = {tuple(pick(k) for k in range(epoch * n, (epoch + 1) * n)) for epoch in range(5)}
    orders.add(tuple(other(k) for k in range(n)))
    assert len(orders) == 6
    assert tuple(range(n)) not in orders


@pytest.mark.parametrize("n", [3, 257, 1000])
def test_shuffle_is_uniform(n: int) -> None:
    epochs = 3000
    pick = picker("shuffle", n, 5)
    first = Counter(pick(epoch * n) * 3 // n for epoch in range(epochs))
    assert all(abs(first[third] - epochs / 3) < 5 * (epochs * 2 / 9) ** 0.5 for third in range(3))
    following = Counter((pick(epoch * n + 1) - pick(epoch * n)) % n for epoch in range(epochs))
    assert max(following.values()) < epochs / (n - 1) + 6 * (epochs / (n - 1)) ** 0.5 + 1


@pytest.mark.parametrize("n", [2, 7, 1000])
def test_random_draws_are_uniform(n: int) -> None:
    draws = 20_000
    pick = picker("random", n, 5)
    seen = Counter(pick(k) for k in range(draws))
    spread = 6 * (draws / n) ** 0.5
    assert all(abs(seen[index] - draws / n) < spread for index in range(n))
    assert [pick(k) for k in range(20)] != [picker("random", n, 6)(k) for k in range(20)]


def test_order_of_a_seed_does_not_change_between_versions() -> None:
    assert [picker("shuffle", 10, 42)(k) for k in range(10)] == [9, 7, 5, 4, 6, 1, 3, 0, 8, 2]
    assert [picker("shuffle", 1000, 42)(k) for k in range(5)] == [418, 470, 315, 549, 591]
    assert [picker("random", 1000, 42)(k) for k in range(5)] == [459, 209, 42, 381, 78]


def test_empty_dataset_raises_value_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        picker("sequential", 0, 0)
