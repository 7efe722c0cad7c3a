"""What a worker says about itself at the end of its log: the facts that the certificate judges."""

from __future__ import annotations

import msgspec

from penstock.wire.stats import LogHistogram, WireStats

__all__ = ["MachineFacts", "WorkerReport"]


class MachineFacts(msgspec.Struct):
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of this process."""
    run_delay_s: float | None = None
    """How long the process was ready to run but had no core (Linux schedstat)."""
    throttled_s: float | None = None
    """How long the container's CPU quota stopped us, at most."""
    steal_s: float | None = None
    """What the hypervisor took of each core, on average."""
    switches: int = 0
    """Involuntary context switches."""


class WorkerReport(msgspec.Struct):
    worker: int
    gauge: WireStats = msgspec.field(default_factory=WireStats)
    lateness: LogHistogram = msgspec.field(default_factory=LogHistogram)
    """From when a request was due and had a slot (and a connection) to when its first byte went out: our own delay."""
    queued: LogHistogram = msgspec.field(default_factory=LogHistogram)
    """How long requests that found no free slot waited for one."""
    ttft: LogHistogram = msgspec.field(default_factory=LogHistogram)
    """Of every eighth stream."""
    latency: LogHistogram = msgspec.field(default_factory=LogHistogram)
    """Of every eighth request."""
    requests: int = 0
    streams: int = 0
    stalls: LogHistogram = msgspec.field(default_factory=LogHistogram)
    """How late a 10 ms tick of the loop came."""
    held_ns: int = 0
    """Sending waited for the reading of finished replies."""
    starved_ticks: int = 0
    """How often sending found that the dataset was not indexed far enough."""
    clock_steps: int = 0
    stopped: bool = False
    """The run was told to end before its time."""
    machine: MachineFacts = msgspec.field(default_factory=MachineFacts)
