"""The conversation picker, while the dataset is indexed and after."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from penstock.workers.conversation_picker import ConversationPicker
from penstock.workers.shared_state import SharedState


class Store:
    """The part of PayloadStore that the picker uses."""

    def __init__(self, conversations: int) -> None:
        self.conversations = conversations


def make_picker(
    indexed: int, *, indexing: bool, strategy: Literal["sequential", "shuffle", "random"] = "sequential"
) -> tuple[ConversationPicker, Any, SharedState]:
    store: Any = Store(indexed)
    shared = SharedState(1)
    shared.indexing = indexing
    return ConversationPicker(store, strategy, 1, shared), store, shared


def test_indexed_dataset_is_repeated_in_order() -> None:
    picker, _, _ = make_picker(3, indexing=False)
    assert picker.size == 3
    assert [picker.pick(number) for number in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("strategy", ["shuffle", "random"])
def test_strategy_chooses_from_the_whole_dataset(strategy: Literal["shuffle", "random"]) -> None:
    picker, _, _ = make_picker(50, indexing=False, strategy=strategy)
    picks = [picker.pick(number) for number in range(50)]
    assert picks != list(range(50))
    assert set(picks) <= set(range(50))
    if strategy == "shuffle":
        assert sorted(pick for pick in picks if pick is not None) == list(range(50))


def test_conversation_that_is_not_indexed_yet_is_none() -> None:
    picker, store, _ = make_picker(2, indexing=True)
    assert picker.size is None
    assert [picker.pick(number) for number in range(3)] == [0, 1, None]
    store.conversations = 4
    assert picker.pick(2) == 2
    assert picker.size is None


def test_size_is_known_when_indexing_is_done() -> None:
    picker, store, shared = make_picker(2, indexing=True)
    store.conversations = 5
    shared.indexing = False
    assert picker.pick(1) == 1  # within what is known: the picker does not look again
    assert picker.size is None
    assert picker.pick(7) == 2
    assert picker.size == 5
