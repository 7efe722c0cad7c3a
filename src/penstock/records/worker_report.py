"""The report that a worker writes at the end of its log; the certificate is computed from it."""

from __future__ import annotations

import msgspec

from penstock.wire.stats import LogHistogram, WireStats


class MachineFacts(msgspec.Struct):
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of this process."""
    run_delay_s: float | None = None
    """How long the process was runnable but had no core (Linux schedstat)."""
    throttled_s: float | None = None
    """How long the container's CPU quota stopped the process, at most."""
    steal_s: float | None = None
    """Time that the hypervisor took from each core, on average."""


class WorkerReport(msgspec.Struct):
    worker: int
    phase: int = 0
    """Index of the phase that it covers."""
    wire_stats: WireStats = msgspec.field(default_factory=WireStats)
    lateness: LogHistogram = msgspec.field(default_factory=LogHistogram)
    """Penstock's own delay: from when a request was due and had a slot and a connection to its first byte."""
    queued: LogHistogram = msgspec.field(default_factory=LogHistogram)
    """How long requests waited for a free slot, if none was free."""
    latency: LogHistogram = msgspec.field(default_factory=LogHistogram)
    """Latency of every eighth request."""
    requests: int = 0
    stalls: LogHistogram = msgspec.field(default_factory=LogHistogram)
    """How late the 10 ms ticks of the event loop were."""
    held_ns: int = 0
    """How long sending waited because too many finished replies were unread."""
    refusals_waited_ns: int = 0
    """How long slots of a closed loop waited in all because the server refused connections."""
    starved_ticks: int = 0
    """How often sending had to wait for the indexing of the dataset."""
    clock_steps: int = 0
    stopped: bool = False
    """Whether the run was stopped early."""
    machine: MachineFacts = msgspec.field(default_factory=MachineFacts)
