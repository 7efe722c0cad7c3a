"""When the next turn of a conversation is due."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec


class TurnEnd(NamedTuple):
    """A turn that has ended, with the facts about the turn after it. Times are on the monotonic clock, in ns."""

    ended_at: int
    intended: int
    """When the turn that ended was due."""
    delay: int
    """Delay that the dataset has between the two turns."""
    recorded: int | None
    """Recorded time of the next turn, from the start of the recording."""
    phase_start: int


class TurnTiming(Protocol):
    takes_arrivals: bool
    """True if a next turn waits for an arrival of the phase, before a new conversation takes it."""

    def due(self, end: TurnEnd) -> int:
        """Return when the next turn is due, or from when it may take an arrival. It is not sent before the reply has ended."""
        ...


class AfterReply(msgspec.Struct, frozen=True, tag="after_reply"):
    """The next turn follows the reply after its delay."""

    takes_arrivals = False

    def due(self, end: TurnEnd) -> int:
        return end.ended_at + end.delay


class AtArrivals(msgspec.Struct, frozen=True, tag="at_arrivals"):
    """The next turn takes the first arrival after its delay, so the rate of a phase counts all requests."""

    takes_arrivals = True

    def due(self, end: TurnEnd) -> int:
        return end.ended_at + end.delay


class AtRecordedTimes(msgspec.Struct, frozen=True, tag="at_recorded_times"):
    """The next turn is due at its recorded time, whenever the reply ends; a turn without a time follows the reply."""

    scale: float = 1.0
    after_ns: int = 0
    """Time of the recording at which the phase begins."""
    takes_arrivals = False

    def due(self, end: TurnEnd) -> int:
        if end.recorded is None:
            return end.ended_at + end.delay
        # A session that begins again in a resumed phase has times from before the phase.
        return max(end.phase_start, end.phase_start + round(end.recorded * self.scale) - self.after_ns)


class PerUser(msgspec.Struct, frozen=True, tag="per_user"):
    """The next turn is due a fixed time after the previous one was, so a late reply does not delay the turns after it."""

    gap_s: float
    takes_arrivals = False

    def due(self, end: TurnEnd) -> int:
        return end.intended + round(self.gap_s * 1e9)
