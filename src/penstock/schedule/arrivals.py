"""Arrival processes: when requests are due, in nanoseconds from the start of a phase.

The times are absolute, so a request that is sent late does not delay the requests after it. They are a pure function of the
seed. Every worker computes all of them and takes its share, so workers exchange no messages and any number of them has the
same times together. Random processes are in `schedule.random_arrivals`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import count
from typing import Protocol

import msgspec

from penstock.schedule.conversations import Conversations
from penstock.schedule.share import Share
from penstock.settings.arrival_patterns import ARRIVAL_PATTERNS

_SECOND = 1_000_000_000


class Arrivals(Protocol):
    def times(self, share: Share, seed: int, conversations: Conversations) -> Iterator[int | None]:
        """Yield the due times of arrivals number `share.worker`, `share.worker + share.workers`, … in ascending order.

        None means that the next time is not known yet: ask again later. The iterator ends after the last arrival."""
        ...


def arrival_process(name: str, rate: float, **options: float) -> Arrivals:
    """Return the process for a name of `settings.arrival_patterns`."""
    module, _, attribute = ARRIVAL_PATTERNS[name].partition(":")
    process: Arrivals = getattr(import_module(module), attribute)(rate, **options)
    return process


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    """Arrivals at n / rate for n = 0, 1, 2, …"""

    rate: float

    def times(self, share: Share, seed: int, conversations: Conversations) -> Iterator[int]:
        del seed, conversations
        for number in count(share.worker, share.workers):
            yield round(number * _SECOND / self.rate)


class Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    """Conversations begin at their recorded times, multiplied by `scale`. Each begins `copies` times, once per server."""

    scale: float = 1.0
    copies: int = 1

    def times(self, share: Share, seed: int, conversations: Conversations) -> Iterator[int | None]:
        del seed
        for number in count(share.worker, share.workers):
            conversation = number // self.copies
            while not conversations.has(conversation):
                if conversations.size is not None:
                    return
                yield None
            yield round((conversations.recorded_ns(conversation, 0) or 0) * self.scale)


class Continued(msgspec.Struct, frozen=True, tag="continued"):
    """The rest of an arrival process, from `after_ns` on."""

    process: Arrivals
    after_ns: int

    def times(self, share: Share, seed: int, conversations: Conversations) -> Iterator[int | None]:
        for time in self.process.times(share, seed, conversations):
            if time is None:
                yield None
            elif time >= self.after_ns:
                yield time - self.after_ns


class ContinuedRecording(msgspec.Struct, frozen=True, tag="continued_recording"):
    """The rest of a recording, from `after_ns` on. The sessions that begin again are due at once."""

    recording: Recorded
    after_ns: int
    unfinished: int
    """Number of sessions that begin again."""
    next_number: int
    """Number of the first session after them."""

    def times(self, share: Share, seed: int, conversations: Conversations) -> Iterator[int | None]:
        del seed
        copies = self.recording.copies
        for position in count(share.worker, share.workers):
            number = self.next_number + position - self.unfinished
            if position < self.unfinished:
                yield 0
                continue
            while not conversations.has(number // copies):
                if conversations.size is not None:
                    return
                yield None
            recorded = conversations.recorded_ns(number // copies, 0) or 0
            yield max(0, round(recorded * self.recording.scale) - self.after_ns)
