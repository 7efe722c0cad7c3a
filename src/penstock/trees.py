"""Trees of conversations: which conversation starts another, and which turn waits for others.

A tree is plain data. The dataset of a run makes it, the payload store keeps it, the scheduler follows it, and the report reads
it. The turns of a tree are numbered consecutively: those of its root first, then those of each other conversation. So a request
is identified by its session and its turn, as in a run without trees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

AT_START = -1
"""The turn after which conversations start that begin together with the root."""


class Node(msgspec.Struct, frozen=True, array_like=True):
    """A conversation of a tree."""

    name: str
    first: int
    """Number of its first turn."""
    turns: int
    parent: int = -1
    """The node that starts it; -1 for the root, and for a node that starts together with the root."""
    depth: int = 0
    forked: bool = False
    """It goes on from the history of its parent."""
    replaces: bool = False
    """It is one of the forks with which its parent ends."""
    after: int = AT_START
    """The turn after whose reply it starts."""
    joined_at: int | None = None
    """The turn of its parent that waits for it; None if no turn does."""

    @property
    def end(self) -> int:
        """One more than the number of its last turn."""
        return self.first + self.turns


class Tree(msgspec.Struct, frozen=True, dict=True, array_like=True):
    """A root, which is the first node, with all conversations that it starts."""

    nodes: tuple[Node, ...]

    @cached_property
    def starts(self) -> Mapping[int, Sequence[int]]:
        """The nodes that start after each turn, in the order of the file."""
        return _grouped((node.after, number) for number, node in enumerate(self.nodes) if number)

    @cached_property
    def joins(self) -> Mapping[int, Sequence[int]]:
        """The nodes for which each turn waits."""
        return _grouped(
            (node.joined_at, number) for number, node in enumerate(self.nodes) if node.joined_at is not None
        )

    @cached_property
    def _node_of_turn(self) -> list[int]:
        return [number for number, node in enumerate(self.nodes) for _ in range(node.turns)]

    def node_of(self, turn: int) -> int:
        """Return the number of the node to which a turn belongs."""
        return self._node_of_turn[turn]

    def started(self, done: Collection[int]) -> Iterator[Node]:
        """Yield the nodes that start if the turns in `done`, and no others, had a reply."""
        return (
            node for number, node in enumerate(self.nodes) if not number or node.after == AT_START or node.after in done
        )

    def is_finished(self, replied: Collection[int], failed: Collection[int]) -> bool:
        """Return whether nothing of the tree is left to send. `replied` and `failed` are the turns that were sent."""
        for node in self.started(replied):
            ended = next((turn for turn in range(node.first, node.end) if turn not in replied), node.end)
            if ended < node.end and ended not in failed:
                return False
        return True


def _grouped(pairs: Iterator[tuple[int, int]]) -> Mapping[int, Sequence[int]]:
    groups: dict[int, list[int]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
