"""Synthetic conversations, all of them at once."""

from __future__ import annotations

from typing import Any

from penstock.datasets.conversation import Conversation
from penstock.datasets.synthetic import Synthetic


def synthesize(*given: Any) -> list[Conversation]:
    made = Synthetic(*given)
    found = list(made)
    assert made.turns == [len(each.turns) for each in found]
    return found
