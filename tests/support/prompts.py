"""Generate all conversations of a synthetic dataset."""

from __future__ import annotations

from typing import Any

from penstock.datasets.conversation import Conversation
from penstock.datasets.synthetic import Synthetic


def synthesize(*arguments: Any) -> list[Conversation]:
    dataset = Synthetic(*arguments)
    conversations = list(dataset)
    assert dataset.turns == [len(each.turns) for each in conversations]
    return conversations
