"""The conversations of the payload store, while the dataset is indexed and after."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from penstock.workers.stored_conversations import StoredConversations


class Store:
    """The part of PayloadStore that is used."""

    def __init__(self, conversations: int) -> None:
        self.conversations = conversations


def make(
    indexed: int, *, growing: bool, strategy: Literal["sequential", "shuffle", "random"] = "sequential"
) -> tuple[StoredConversations, Any]:
    store: Any = Store(indexed)
    return StoredConversations(store, strategy, 1, growing=growing), store


def test_indexed_dataset_is_repeated_in_order() -> None:
    conversations, _ = make(3, growing=False)
    assert conversations.size == 3
    assert [conversations.pick(number) for number in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("strategy", ["shuffle", "random"])
def test_strategy_chooses_from_the_whole_dataset(strategy: Literal["shuffle", "random"]) -> None:
    conversations, _ = make(50, growing=False, strategy=strategy)
    picks = [conversations.pick(number) for number in range(50)]
    assert picks != list(range(50))
    assert set(picks) <= set(range(50))
    if strategy == "shuffle":
        assert sorted(pick for pick in picks if pick is not None) == list(range(50))


def test_conversation_that_is_not_indexed_yet_is_none() -> None:
    conversations, store = make(2, growing=True)
    assert conversations.size is None
    assert [conversations.pick(number) for number in range(3)] == [0, 1, None]
    store.conversations = 4
    assert conversations.pick(2) == 2
    assert conversations.size is None


def test_size_is_known_when_indexing_is_done() -> None:
    conversations, store = make(2, growing=True)
    store.conversations = 5
    conversations.complete()
    assert conversations.pick(7) == 2
    assert conversations.size == 5
