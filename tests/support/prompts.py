"""Read all conversations of a dataset."""

from __future__ import annotations

from typing import Any

from penstock.datasets.conversation import Conversation
from penstock.datasets.dataset import Dataset, ReadOptions
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.synthetic import Synthetic


def conversations_of(dataset: Dataset) -> list[Conversation]:
    """Return the conversations of a prepared dataset. Raise UserError for errors in its input."""
    errors = FileErrors(dataset.name)
    conversations = list(dataset.conversations(errors))
    errors.raise_any()
    return conversations


def read_whole(dataset: Dataset, **options: Any) -> list[Conversation]:
    """Prepare a dataset and return its conversations."""
    dataset.prepare(ReadOptions(**options))
    return conversations_of(dataset)


def synthesize(*arguments: Any) -> list[Conversation]:
    dataset = Synthetic(*arguments)
    conversations = conversations_of(dataset)
    assert dataset.turns == [len(each.turns) for each in conversations]
    return conversations
