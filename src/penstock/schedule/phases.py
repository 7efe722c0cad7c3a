"""The phases of a run, from its settings: their order, load and stop rules."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.schedule.arrivals import arrivals
from penstock.schedule.scheduler import Scheduler, Share
from penstock.settings.schema import LoadSettings, WarmupSettings

__all__ = ["PhasePlan", "phases"]


class PhasePlan(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    first: int
    """Position in the dataset at which the phase starts: profiling continues where the warmup stopped."""
    slots: int | None
    rate: float | None
    pattern: str
    seed: int
    requests: int | None = None
    conversations: int | None = None
    duration_s: float | None = None
    grace_s: float | None = None
    whole: bool = False
    """Send the whole dataset once."""
    scale: float | None = None
    """Send conversations at their recorded times, multiplied by this factor."""
    servers: int = 1
    """How many servers each conversation is sent to (`schedule.server_assignment`). With 1, the URLs are used round robin."""

    def scheduler(self, share: Share, recorded: Iterator[int] | None = None) -> Scheduler:
        """Return this worker's scheduler. `recorded` are the recorded times, for a phase with a `scale`."""
        slots = self.slots
        if slots is not None:
            slots = slots // share.workers + (share.worker < slots % share.workers)
        times = recorded
        if times is None and self.rate is not None:
            times = arrivals(self.pattern, self.rate, self.seed)
        return Scheduler(
            share=share,
            slots=slots,
            arrivals=times,
            conversations=self.conversations,
            requests=self.requests,
            duration_ns=None if self.duration_s is None else round(self.duration_s * 1e9),
        )


def phases(
    load: LoadSettings,
    warmup: WarmupSettings,
    *,
    synthetic: bool,
    seed: int,
    servers: int = 1,
    several_turns: bool = False,
) -> list[PhasePlan]:
    """Return the warmup, if there is one, and the profiling phase.

    Without a stop condition, a file is sent once and synthetic data ends after max(10, 2 x concurrency) conversations.
    """
    open_loop = load.rate is not None or load.recorded is not None
    slots = load.concurrency if open_loop or load.concurrency is not None else 1
    requests, conversations = load.requests, load.conversations
    whole = load.recorded is not None  # a recording has no times for a second pass
    if requests is None and conversations is None and load.duration_s is None:
        if synthetic:
            # Count conversations, so that none is cut short. With one turn each, they are requests.
            conversations = max(10, 2 * (load.concurrency or 1))
            requests = None if several_turns else conversations
        else:
            whole = True
    result = []
    if warmup.requests:
        result.append(
            PhasePlan(
                name="warmup",
                kind="warmup",
                first=0,
                slots=slots,
                rate=load.rate,
                pattern=load.arrivals,
                seed=seed + 1,
                requests=warmup.requests * servers,
                servers=servers,
            )
        )
    result.append(
        PhasePlan(
            name="profiling",
            kind="profiling",
            first=0 if whole else warmup.requests,
            slots=slots,
            rate=load.rate,
            pattern=load.arrivals,
            seed=seed,
            requests=None if requests is None else requests * servers,
            conversations=None if conversations is None else conversations * servers,
            whole=whole,
            scale=None if load.recorded is None else 1 / load.recorded.speedup,
            servers=servers,
            duration_s=load.duration_s,
            grace_s=load.grace_s if load.duration_s is not None else None,
        )
    )
    return result
