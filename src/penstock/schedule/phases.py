"""From settings to phases: what runs, in which order, and when each ends."""

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
    """The dataset order goes on where the phase before stopped."""
    slots: int | None
    rate: float | None
    pattern: str
    seed: int
    requests: int | None = None
    conversations: int | None = None
    duration_s: float | None = None
    grace_s: float | None = None
    whole: bool = False
    """The dataset once, to its end."""
    scale: float | None = None
    """Conversations start at their recorded times, multiplied by this."""
    arms: int = 1
    """How many servers each conversation goes to (`schedule.server_assignment`); with one, the urls take turns."""

    def scheduler(self, share: Share, recorded: Iterator[int] | None = None) -> Scheduler:
        """`recorded` are the times of a recording, for a phase that follows one."""
        slots = self.slots
        if slots is not None:
            slots = slots // share.workers + (share.worker < slots % share.workers)
        due = recorded
        if due is None and self.rate is not None:
            due = arrivals(self.pattern, self.rate, self.seed)
        return Scheduler(
            share=share,
            slots=slots,
            arrivals=due,
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
    arms: int = 1,
    several_turns: bool = False,
) -> list[PhasePlan]:
    """Without a stop condition a file is sent once, whole, and of synthetic conversations max(10, 2 x concurrency)."""
    open_loop = load.rate is not None or load.recorded is not None
    slots = load.concurrency if open_loop or load.concurrency is not None else 1
    requests, conversations = load.requests, load.conversations
    whole = load.recorded is not None  # a recording has no times for a second round
    if requests is None and conversations is None and load.duration_s is None:
        if synthetic:
            # Conversations, so that none is cut off in the middle; of one turn, they are requests.
            conversations = max(10, 2 * (load.concurrency or 1))
            requests = None if several_turns else conversations
        else:
            whole = True
    found = []
    if warmup.requests:
        found.append(
            PhasePlan(
                name="warmup",
                kind="warmup",
                first=0,
                slots=slots,
                rate=load.rate,
                pattern=load.arrivals,
                seed=seed + 1,
                requests=warmup.requests * arms,
                arms=arms,
            )
        )
    found.append(
        PhasePlan(
            name="profiling",
            kind="profiling",
            first=0 if whole else warmup.requests,
            slots=slots,
            rate=load.rate,
            pattern=load.arrivals,
            seed=seed,
            requests=None if requests is None else requests * arms,
            conversations=None if conversations is None else conversations * arms,
            whole=whole,
            scale=None if load.recorded is None else 1 / load.recorded.speedup,
            arms=arms,
            duration_s=load.duration_s,
            grace_s=load.grace_s if load.duration_s is not None else None,
        )
    )
    return found
