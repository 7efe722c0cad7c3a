"""The interface through which the scheduler reads the dataset."""

from __future__ import annotations

from typing import Protocol

from penstock.trees import Tree


class Conversations(Protocol):
    """The conversations of a dataset, some of which may not be indexed yet."""

    @property
    def size(self) -> int | None:
        """Number of conversations; None while it is not known."""
        ...

    def has(self, conversation: int) -> bool:
        """Return whether the conversation is indexed."""
        ...

    def pick(self, position: int) -> int | None:
        """Return the conversation at a position of the order in which they are sent; None if it is not indexed yet."""
        ...

    def turns(self, conversation: int) -> range:
        """Return the numbers of the conversation's request bodies; the scheduler uses only how many there are."""
        ...

    def tree(self, conversation: int) -> Tree | None:
        """Return the tree of which the conversation is the root; None if it starts no others."""
        ...

    def delay_ns(self, conversation: int, turn: int) -> int:
        """Return the delay between the end of the previous turn and this one."""
        ...

    def recorded_ns(self, conversation: int, turn: int) -> int | None:
        """Return the recorded time of a turn, from the start of the recording; None if it has none."""
        ...
