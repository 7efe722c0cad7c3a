"""The conversations of the payload store, for the scheduler.

A large file is indexed while the run sends. Until its end is known, conversations are taken in file order and a worker that
reaches the end of the index waits. After that, the sampling strategy chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from penstock.datasets.sampling import picker
from penstock.records.payloads import PayloadStore
from penstock.trees import Tree


class StoredConversations:
    def __init__(
        self,
        store: PayloadStore,
        strategy: Literal["sequential", "shuffle", "random"],
        seed: int,
        *,
        growing: bool = False,
    ) -> None:
        """`growing` is True while the store is still being filled."""
        self._store = store
        self._strategy: Literal["sequential", "shuffle", "random"] = strategy
        self._seed = seed
        self._growing = growing
        self._indexed = 0
        self._pick: Callable[[int], int] | None = None
        self._refresh()

    def _refresh(self) -> None:
        if self._pick is None:
            # Read the flag before counting: once indexing is done the count is final.
            growing = self._growing
            self._indexed = self._store.conversations
            if not growing:
                self._pick = picker(self._strategy, self._indexed, self._seed)

    def complete(self) -> None:
        """Note that the store is filled."""
        self._growing = False
        self._refresh()

    @property
    def size(self) -> int | None:
        return None if self._pick is None else self._indexed

    def has(self, conversation: int) -> bool:
        if conversation >= self._indexed:
            self._refresh()
        return conversation < self._indexed

    def pick(self, position: int) -> int | None:
        if self._pick is not None:
            return self._pick(position)
        return position if self.has(position) else None

    def turns(self, conversation: int) -> range:
        return self._store.turns(conversation)

    def tree(self, conversation: int) -> Tree | None:
        return self._store.tree(conversation)

    def delay_ns(self, conversation: int, turn: int) -> int:
        return round(self._store.entry(self._store.turns(conversation)[turn]).delay_ms * 1e6)

    def recorded_ns(self, conversation: int, turn: int) -> int | None:
        entry = self._store.entry(self._store.turns(conversation)[turn])
        return round(entry.timestamp_ms * 1e6) if entry.has_timestamp else None
