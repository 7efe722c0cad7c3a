"""Counts of the conversations that others start, and of the turns that wait for them (`branch_stats`)."""

from __future__ import annotations

import msgspec

from penstock.records.payloads import PayloadStore
from penstock.records.record import Record
from penstock.trees import Tree


class BranchStats(msgspec.Struct):
    """The branches of the trees of a phase, with AIPerf's names."""

    children_spawned: int = 0
    children_completed: int = 0
    """All their requests succeeded."""
    children_failed: int = 0
    """One of their requests failed."""
    children_truncated: int = 0
    """They were cut before their last turn: by the end of the phase, by --request-count, or a request was cancelled."""
    joins_fired: int = 0
    """Turns that waited for children and were sent."""
    joins_suppressed: int = 0
    """Turns that waited, or would have waited, for children that started, and were not sent."""

    def add(self, other: BranchStats) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class _Sent:
    """The requests of a tree so far."""

    def __init__(self, conversation: int) -> None:
        self.conversation = conversation
        self.succeeded: set[int] = set()
        self.failed: set[int] = set()
        self.cancelled: set[int] = set()

    @property
    def count(self) -> int:
        return len(self.succeeded) + len(self.failed) + len(self.cancelled)

    def add(self, record: Record) -> None:
        turns = self.cancelled if record.cancelled else self.succeeded if record.failure is None else self.failed
        turns.add(record.turn)

    def merge(self, other: _Sent) -> None:
        self.succeeded |= other.succeeded
        self.failed |= other.failed
        self.cancelled |= other.cancelled

    def stats(self, tree: Tree) -> BranchStats:
        stats = BranchStats()
        replied = self.succeeded | self.cancelled
        started = {node.first for node in tree.started(replied)}
        for node in tree.nodes[1:]:
            turns = range(node.first, node.end)
            if node.first not in started:
                continue
            stats.children_spawned += 1
            if not self.failed.isdisjoint(turns):
                stats.children_failed += 1
            elif self.succeeded.issuperset(turns):
                stats.children_completed += 1
            else:
                stats.children_truncated += 1
        sent = replied | self.failed
        for turn, nodes in tree.joins.items():
            if turn in sent:
                stats.joins_fired += 1
            elif any(tree.nodes[node].first in started for node in nodes):
                stats.joins_suppressed += 1
        return stats


class BranchCounter:
    """Counts the branches of the records of a phase. Trees whose requests have not all been added stay in memory."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], _Sent] = {}
        self._stats = BranchStats()

    def add(self, record: Record, payloads: PayloadStore) -> None:
        key = record.phase, record.number
        sent = self._open.setdefault(key, _Sent(record.conversation))
        sent.add(record)
        self._count_if_complete(key, sent, payloads)

    def merge(self, other: BranchCounter, payloads: PayloadStore) -> None:
        self._stats.add(other._stats)
        for key, sent in other._open.items():
            mine = self._open.setdefault(key, _Sent(sent.conversation))
            mine.merge(sent)
            self._count_if_complete(key, mine, payloads)

    def _count_if_complete(self, key: tuple[int, int], sent: _Sent, payloads: PayloadStore) -> None:
        if sent.count == len(payloads.turns(sent.conversation)):
            self._count(self._open.pop(key), payloads)

    def _count(self, sent: _Sent, payloads: PayloadStore) -> None:
        if (tree := payloads.tree(sent.conversation)) is not None:
            self._stats.add(sent.stats(tree))

    def stats(self, payloads: PayloadStore) -> BranchStats:
        """Return the counts. Call this once, after the last record."""
        for sent in self._open.values():
            self._count(sent, payloads)
        self._open.clear()
        return self._stats
