"""One budget in bytes for all that the requests of a worker hold: their bodies, and replies that wait for their end.

A new body beyond the budget is refused. A reply beyond it is paused, because its request has been paid for; the oldest
reply always goes on, so that there is progress.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.gateway.refusal import Refusal

COPIES = 2
"""How often a body is in memory: as it arrived, and as the message or the reply that is made from it."""


class MemoryBudget:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._replies: dict[Holding, None] = {}
        """Requests that hold part of a reply, the oldest first."""
        self.paused: dict[Holding, None] = {}
        """Those whose reply has to wait."""

    def may_go_on(self, holding: Holding) -> bool:
        return self.held <= self.limit or next(iter(self._replies), holding) is holding

    def add_reply(self, holding: Holding) -> None:
        self._replies[holding] = None

    def give_back(self, size: int) -> None:
        """Count bytes that were freed, and wake paused replies."""
        self.held -= size
        for waiting in list(self.paused):
            if self.may_go_on(waiting):
                waiting.wake()

    def remove(self, holding: Holding) -> None:
        self._replies.pop(holding, None)
        self.paused.pop(holding, None)


class Holding:
    """What one request holds."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._body = self._reply = 0
        self._on_free: Callable[[], None] | None = None

    def take_body(self, size: int) -> None:
        """Count bytes of the request body. Raise Refusal 503 if others hold too much already."""
        budget, size = self._budget, COPIES * size
        others = budget.held - self._body
        if others and budget.held + size > budget.limit:
            message = "The gateway holds too many large bodies; try again later."
            raise Refusal(503, "overloaded", message, retry_after=1)
        budget.held += size
        self._body += size

    def set_reply(self, size: int, on_free: Callable[[], None]) -> bool:
        """Set the bytes of the reply that are held. Return False if the reply has to wait: `on_free` is then called once."""
        budget = self._budget
        if not self._reply and size:
            budget.add_reply(self)
        growth = COPIES * size - self._reply
        self._reply += growth
        if growth < 0:
            budget.give_back(-growth)
        else:
            budget.held += growth
        if budget.may_go_on(self):
            return True
        self._on_free = on_free
        budget.paused[self] = None
        return False

    def wake(self) -> None:
        self._budget.paused.pop(self, None)
        on_free, self._on_free = self._on_free, None
        if on_free is not None:
            on_free()

    def release(self) -> None:
        """Give everything back: the request has ended."""
        self._on_free = None
        size = self._body + self._reply
        self._body = self._reply = 0
        self._budget.remove(self)
        if size:
            self._budget.give_back(size)
