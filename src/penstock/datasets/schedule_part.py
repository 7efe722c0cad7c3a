"""The part of a recorded schedule that a run sends: `--fixed-schedule-start-offset` and `--fixed-schedule-end-offset`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.jsonl import FileErrors
from penstock.errors import UserError
from penstock.plural import counted
from penstock.settings.schema import ScheduleSettings

MAX_MS = 9e12
"""Times are stored as 64-bit integers in nanoseconds, which end at 9.2e18."""


def check_milliseconds(**fields: float | None) -> None:
    """Raise ValueError for a time that is negative, not finite or too large."""
    for name, value in fields.items():
        if value is not None and not 0 <= value <= MAX_MS:
            if MAX_MS < value < math.inf:
                raise ValueError(f"'{name}' should be at most {MAX_MS:,.0f} ms (285 years); is it in another unit?")
            raise ValueError(f"'{name}' should be a number of milliseconds, 0 or more")


class SchedulePart:
    """Selects turns by their recorded times. Without a schedule, all turns are selected and keep their times."""

    def __init__(self, schedule: ScheduleSettings | None = None) -> None:
        self.schedule = schedule
        self.left_out = 0
        """Requests outside of the part."""
        settings = schedule or ScheduleSettings(auto_offset=False)
        self.first = -math.inf if settings.start_ms is None else settings.start_ms
        self.last = math.inf if settings.end_ms is None else settings.end_ms
        self._zero = settings.start_ms
        """The recorded time at which the schedule starts; None until the first request is known."""
        if self._zero is None and not settings.auto_offset:
            self._zero = 0.0
        self._speedup = settings.speedup

    def select(self, conversations: Iterable[Conversation], errors: FileErrors) -> Iterator[Conversation]:
        """Yield the conversations with the turns of the part and their times from its start. The first one sets the start."""
        if self.schedule is None:
            yield from conversations
            return
        empty = True
        for conversation in conversations:
            if kept := self._kept(conversation):
                empty = False
                yield msgspec.structs.replace(conversation, turns=tuple([self._shifted(turn) for turn in kept]))
        if empty and not errors.count:
            raise UserError("No conversation lies between the start and the end of the schedule that were given.")

    def start_ms(self, conversation: Conversation) -> float:
        """Return the time of the first turn of the part."""
        times = [time for time in _times(conversation) if self.first <= time <= self.last]
        return times[0] if times else math.inf

    def notes(self) -> list[str]:
        if not self.left_out:
            return []
        return [f"Left out: {counted(self.left_out, 'row')} outside of the requested part of the schedule."]

    def _kept(self, conversation: Conversation) -> list[Turn]:
        times = _times(conversation)
        pairs = zip(conversation.turns, times, strict=True)
        kept = [turn for turn, time in pairs if self.first <= time <= self.last]
        self.left_out += len(times) - len(kept)
        if kept and self._zero is None:
            self._zero = self.start_ms(conversation)
        return kept

    def _shifted(self, turn: Turn) -> Turn:
        time = turn.timestamp_ms
        if time is not None:
            time -= self._zero or 0.0
            if time / self._speedup > MAX_MS:
                raise UserError("With --replay-speedup, the last requests would be sent after more than 285 years.")
        return msgspec.structs.replace(turn, timestamp_ms=time, delay_ms=turn.delay_ms / self._speedup)


def _times(conversation: Conversation) -> list[float]:
    """Return the times of the turns. A turn without a timestamp has that of the turn before it."""
    times: list[float] = []
    for turn in conversation.turns:
        time = turn.timestamp_ms if turn.timestamp_ms is not None or not times else times[-1]
        if time is None:
            raise UserError(
                "--fixed-schedule sends at recorded times, and this dataset has conversations without a 'timestamp'."
            )
        times.append(time)
    return times
