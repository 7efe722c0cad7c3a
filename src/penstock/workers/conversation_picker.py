"""Which conversation comes next, from a dataset that may still be growing.

A large file is indexed ahead of the sending. Until its end is known, conversations are taken in order, and a worker that has
caught up with the index waits; from then on the sampling strategy decides.
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
        self, store: PayloadStore, strategy: Literal["sequential", "shuffle", "random"], seed: int, board: SharedState
    ) -> None:
        self._store = store
        self._strategy: Literal["sequential", "shuffle", "random"] = strategy
        self._seed = seed
        self._board = board
        self._known = 0
        self._pick: Callable[[int], int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Look how far the index has come."""
        if self._pick is None:
            growing = self._board.growing  # before the count: what is not growing any more is counted whole
            self._known = self._store.conversations
            if not growing:
                self._pick = picker(self._strategy, self._known, self._seed)

    @property
    def size(self) -> int | None:
        """How many conversations there are; None while that is not known."""
        return None if self._pick is None else self._known

    def pick(self, number: int) -> int | None:
        """The conversation to send as number `number`; None when it is not there yet."""
        if self._pick is not None:
            return self._pick(number)
        if number >= self._known:
            self.refresh()
            if self._pick is not None:
                return self._pick(number)
        return number if number < self._known else None
