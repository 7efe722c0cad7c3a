"""What the gateway asks of a limiter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.gateway.resources.snapshot import CallerKey, Model, Policy

__all__ = ["Limiter", "Reservation"]


class Reservation:
    """A request that was admitted: what it holds until it is settled.

    `charges` are the token windows it was charged in and `slots` the concurrency slots it occupies, in the form of the
    limiter that made it.
    """

    __slots__ = ("charges", "headers", "owner", "settled", "slots")

    def __init__(
        self,
        headers: tuple[tuple[str, str], ...] = (),
        charges: tuple[tuple[object, int, int], ...] = (),
        slots: tuple[object, ...] = (),
        owner: object = None,
    ) -> None:
        self.headers = headers
        self.charges = charges
        """(bucket, tick, tokens reserved)"""
        self.slots = slots
        self.owner = owner
        self.settled = not charges and not slots


class Limiter(Protocol):
    degraded: bool
    """Counting on this machine alone although it should be counting with others."""
    failures: int
    """How often the shared counters could not be reached."""

    @property
    def evicted(self) -> int:
        """Windows that this process gave up although they still counted."""

    async def admit(
        self, key: CallerKey, model: Model, policies: Sequence[Policy], tokens: int, now: float
    ) -> Reservation:
        """Charges one request and `tokens` to every limit that applies, or to none and raises Refusal 429."""

    async def admit_target(self, model: Model, tokens: int, now: float) -> Reservation:
        """The same for the limits of a routing group's target alone."""

    async def settle(self, reservation: Reservation, tokens: int, now: float) -> None:
        """The real tokens replace the reserved ones and the concurrency slots are freed; a second call does nothing.

        Never waits for a network, so that it can stand in a `finally` of a cancelled request.
        """

    async def close(self) -> None: ...
