"""What a worker says about itself at the end of a run: the facts that the certificate judges."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

import msgspec

from penstock.wire.gauge import Gauge, Spread

__all__ = ["Machine", "MachineFacts", "WorkerReport"]


class MachineFacts(msgspec.Struct):
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of this process."""
    run_delay_s: float | None = None
    """How long the process was ready to run but had no core (Linux schedstat)."""
    throttled_s: float | None = None
    """How long the container's CPU quota stopped us."""
    steal_s: float | None = None
    """What the hypervisor took, over all cores."""
    switches: int = 0
    """Involuntary context switches."""


class WorkerReport(msgspec.Struct):
    worker: int
    gauge: Gauge = msgspec.field(default_factory=Gauge)
    lateness: Spread = msgspec.field(default_factory=Spread)
    """From when a request was due and had a slot (and a connection) to when its first byte went out: our own delay."""
    queued: Spread = msgspec.field(default_factory=Spread)
    """How long requests that found no free slot waited for one."""
    ttft: Spread = msgspec.field(default_factory=Spread)
    """Of every eighth stream."""
    latency: Spread = msgspec.field(default_factory=Spread)
    """Of every eighth request."""
    requests: int = 0
    streams: int = 0
    first_coalesced: int = 0
    """Streams whose first stamp covers more than one segment."""
    stamps: int = 0
    coalesced: int = 0
    stalls: Spread = msgspec.field(default_factory=Spread)
    """How late a 10 ms tick of the loop came."""
    held_ns: int = 0
    """Sending waited for the reading of finished replies."""
    starved_ticks: int = 0
    """How often sending found that the dataset was not indexed far enough."""
    broken_conversations: int = 0
    """Conversations that ended early because a turn failed and the next one needed its reply."""
    clock_steps: int = 0
    machine: MachineFacts = msgspec.field(default_factory=MachineFacts)


class Machine:
    """Reads the machine's counters now and again at `stop`."""

    def __init__(self) -> None:
        self._before = _counters()
        self._after = self._before

    def stop(self) -> None:
        self._after = _counters()

    def facts(self) -> MachineFacts:
        def difference(name: str) -> Any:
            first, last = self._before.get(name), self._after.get(name)
            return None if first is None or last is None else last - first

        return MachineFacts(
            wall_s=difference("wall"),
            cpu_s=difference("cpu"),
            run_delay_s=difference("run_delay"),
            throttled_s=difference("throttled"),
            steal_s=difference("steal"),
            switches=int(difference("switches")),
        )


def _counters() -> dict[str, float | None]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found: dict[str, float | None] = {
        "wall": time.monotonic(),
        "cpu": usage.ru_utime + usage.ru_stime,
        "switches": usage.ru_nivcsw,
    }
    if sys.platform == "linux":
        found["run_delay"] = _field("/proc/self/schedstat", lambda text: int(text.split()[1]) / 1e9)
        found["throttled"] = _throttled()
        ticks = os.sysconf("SC_CLK_TCK")
        found["steal"] = _field("/proc/stat", lambda text: int(text.split("\n", 1)[0].split()[8]) / ticks)
    return found


def _throttled() -> float | None:
    """From the cgroup's cpu.stat: version 2 in µs, version 1 in ns."""

    for path in ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"):
        value = _field(path, _throttled_in)
        if value is not None:
            return value
    return None


def _pairs(text: str) -> dict[str, str]:
    return dict(line.split(None, 1) for line in text.splitlines() if " " in line)


def _throttled_in(text: str) -> float:
    pairs = _pairs(text)
    if "throttled_usec" in pairs:
        return int(pairs["throttled_usec"]) / 1e6
    return int(pairs["throttled_time"]) / 1e9


def _field(path: str, read: Any) -> float | None:
    try:
        with open(path) as f:
            return float(read(f.read()))
    except (OSError, ValueError, IndexError, KeyError):
        return None
