"""From settings to phases: what runs, in which order, and when each ends."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.plan.arrivals import arrivals
from penstock.plan.stepper import Share, Stepper
from penstock.settings.model import LoadSettings, WarmupSettings

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
    conversations: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    grace_s: float | None = None

    def stepper(self, share: Share) -> Stepper:
        slots = self.slots
        if slots is not None:
            slots = slots // share.workers + (share.worker < slots % share.workers)
        due: Iterator[int] | None = None if self.rate is None else arrivals(self.pattern, self.rate, self.seed)
        return Stepper(
            share=share,
            slots=slots,
            arrivals=due,
            conversations=self.conversations,
            requests=self.requests,
            duration_ns=None if self.duration_s is None else round(self.duration_s * 1e9),
        )


def phases(
    load: LoadSettings, warmup: WarmupSettings, *, synthetic: bool, conversations: int, seed: int
) -> list[PhasePlan]:
    """Without a stop condition a file is sent once, whole, and synthetic input max(10, 2 x concurrency) times."""
    slots = load.concurrency if load.rate is not None or load.concurrency is not None else 1
    requests = load.requests
    whole: int | None = None
    if requests is None and load.duration_s is None:
        if synthetic:
            requests = max(10, 2 * (load.concurrency or 1))
        else:
            whole = conversations
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
                requests=warmup.requests,
            )
        )
    found.append(
        PhasePlan(
            name="profiling",
            kind="profiling",
            first=warmup.requests if whole is None else 0,
            slots=slots,
            rate=load.rate,
            pattern=load.arrivals,
            seed=seed,
            conversations=whole,
            requests=requests,
            duration_s=load.duration_s,
            grace_s=load.grace_s if load.duration_s is not None else None,
        )
    )
    return found
