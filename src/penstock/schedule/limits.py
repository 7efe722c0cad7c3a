"""Limits that are functions of the time since the start of a phase, so that a ramp is data."""

from __future__ import annotations

from typing import Protocol

import msgspec

_SECOND = 1_000_000_000


class SlotLimit(Protocol):
    @property
    def maximum(self) -> int:
        """The largest value that the limit takes."""
        ...

    def at(self, elapsed: int) -> int:
        """Return the limit at this time, in ns from the start of the phase."""
        ...

    def next_change(self, elapsed: int) -> int | None:
        """Return the first time after `elapsed` at which the limit changes; None if it stays."""
        ...


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """A constant limit. `reserve` is the largest value that it may be set to while the phase runs."""

    value: int
    reserve: int = 0

    @property
    def maximum(self) -> int:
        return max(self.value, self.reserve)

    def at(self, elapsed: int) -> int:
        del elapsed
        return self.value

    def next_change(self, elapsed: int) -> int | None:
        del elapsed
        return None


class LinearRamp(msgspec.Struct, frozen=True, tag="linear_ramp"):
    """A limit that moves from `start` to `end` in equal steps of one, the last of them after `duration_s`."""

    start: int
    end: int
    duration_s: float

    @property
    def maximum(self) -> int:
        return max(self.start, self.end)

    def at(self, elapsed: int) -> int:
        steps = abs(self.end - self.start)
        taken = min(steps, int(elapsed * steps // self._duration_ns)) if elapsed > 0 else 0
        return self.start + (taken if self.end > self.start else -taken)

    def next_change(self, elapsed: int) -> int | None:
        steps = abs(self.end - self.start)
        next_step = max(0, int(elapsed * steps // self._duration_ns)) + 1
        if next_step > steps:
            return None
        return -(-next_step * self._duration_ns // steps)

    @property
    def _duration_ns(self) -> int:
        return max(1, round(self.duration_s * _SECOND))
