"""The progress of a tree of conversations while it is sent: which of its nodes are active, and which turns wait for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.trees import Tree

if TYPE_CHECKING:
    from penstock.schedule.scheduler import ScheduledSession


class TreeProgress:
    """A tree with a slot. A node ends when its last turn has ended, and if it ends with forks, when these have ended."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.root_id = ""
        """The correlation id of the root, given by the sender of its first request."""
        self.active = 1
        """Nodes with a turn that is in flight or waits for its time. The root is one of them."""
        self._awaited: dict[int, int] = {}
        """For each turn that waits, how many nodes have not ended."""
        self._held: dict[int, ScheduledSession] = {}
        """The nodes whose next turn waits for others, by that turn."""
        self._forks: dict[int, int] = {}
        """For each node that ends with forks, how many of them have not ended."""

    def start(self, number: int) -> None:
        """Note that a node starts."""
        self.active += 1
        node = self.tree.nodes[number]
        if node.replaces:
            self._forks[node.parent] = self._forks.get(node.parent, 0) + 1

    def hold(self, session: ScheduledSession) -> bool:
        """Return whether the next turn of a node has to wait for other nodes. `end` returns the node when it may go on."""
        turn = session.turn + 1
        if self._left(turn) == 0:
            return False
        self._held[turn] = session
        self.active -= 1
        return True

    def end(self, number: int) -> list[ScheduledSession]:
        """Note that the last turn of a node has ended. Return the nodes that no longer wait."""
        self.active -= 1
        freed = []
        while not self._forks.get(number):
            node = self.tree.nodes[number]
            if node.joined_at is not None:
                self._awaited[node.joined_at] = self._left(node.joined_at) - 1
                held = self._held.pop(node.joined_at, None) if self._left(node.joined_at) == 0 else None
                if held is not None:
                    self.active += 1
                    freed.append(held)
            if not node.replaces:
                break
            number = node.parent
            self._forks[number] -= 1
        return freed

    def leave(self) -> bool:
        """Note that a node ends without its later turns, because its phase is over. Return whether it was the last."""
        self.active -= 1
        return self.active == 0

    def _left(self, turn: int) -> int:
        """Return for how many nodes a turn still waits."""
        left = self._awaited.get(turn)
        return len(self.tree.joins.get(turn, ())) if left is None else left
