"""The choice of the next conversation, from a dataset that may still be indexed.

A large file is indexed while the run sends. Until its end is known, conversations are taken in file order and a worker that
reaches the end of the index waits. After that, the sampling strategy chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from penstock.datasets.sampling import picker
from penstock.records.payloads import PayloadStore
from penstock.workers.shared_state import SharedState

__all__ = ["ConversationPicker"]


class ConversationPicker:
    def __init__(
        self, store: PayloadStore, strategy: Literal["sequential", "shuffle", "random"], seed: int, shared: SharedState
    ) -> None:
        self._store = store
        self._strategy: Literal["sequential", "shuffle", "random"] = strategy
        self._seed = seed
        self._shared = shared
        self._indexed = 0
        self._pick: Callable[[int], int] | None = None
        self._refresh()

    def _refresh(self) -> None:
        if self._pick is None:
            # Read the flag before counting: once indexing is done the count is final.
            indexing = self._shared.indexing
            self._indexed = self._store.conversations
            if not indexing:
                self._pick = picker(self._strategy, self._indexed, self._seed)

    @property
    def size(self) -> int | None:
        """Number of conversations; None while it is not known."""
        return None if self._pick is None else self._indexed

    def pick(self, number: int) -> int | None:
        """Return the conversation to send in position `number`; None if it is not indexed yet."""
        if self._pick is not None:
            return self._pick(number)
        if number >= self._indexed:
            self._refresh()
            if self._pick is not None:
                return self._pick(number)
        return number if number < self._indexed else None
