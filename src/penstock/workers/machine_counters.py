"""Operating system counters of a worker during a run: CPU time, and time that it was kept from running."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

from penstock.records.worker_report import MachineFacts


class MachineCounters:
    """Reads the counters when it is created; `facts` returns how much they have grown since."""

    def __init__(self) -> None:
        self._before = _counters()

    def cpu_facts(self) -> MachineFacts:
        """Return only the facts that cost less than 10 µs; /proc/stat takes milliseconds on a machine with many cores."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu, wall = self._before["cpu"] or 0.0, self._before["wall"] or 0.0
        return MachineFacts(wall_s=time.monotonic() - wall, cpu_s=usage.ru_utime + usage.ru_stime - cpu)

    def facts(self) -> MachineFacts:
        after = _counters()

        def difference(name: str) -> Any:
            first, last = self._before.get(name), after.get(name)
            return None if first is None or last is None else last - first

        run_delay, throttled = difference("run_delay"), difference("throttled")
        if run_delay and throttled:
            # The kernel counts throttled time once per throttled core. A throttled process is ready to run, so its own
            # throttled time is no longer than its run delay.
            throttled = min(throttled, run_delay)
        return MachineFacts(
            wall_s=difference("wall"),
            cpu_s=difference("cpu"),
            run_delay_s=run_delay,
            throttled_s=throttled,
            steal_s=difference("steal"),
        )


def _counters() -> dict[str, float | None]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    values: dict[str, float | None] = {
        "wall": time.monotonic(),
        "cpu": usage.ru_utime + usage.ru_stime,
    }
    if sys.platform == "linux":
        values["run_delay"] = _field("/proc/self/schedstat", lambda text: int(text.split()[1]) / 1e9)
        values["throttled"] = _throttled()
        values["steal"] = _field("/proc/stat", _stolen)
    return values


def _stolen(text: str) -> float:
    """Return the stolen seconds per core: the first line of /proc/stat is the sum of the lines of all cores."""
    lines = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    return int(lines[0][8]) / (len(lines) - 1) / os.sysconf("SC_CLK_TCK")


def _throttled() -> float | None:
    """Return the throttled seconds of the cgroup (version 2 reports µs, version 1 ns)."""
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
    except (OSError, ValueError, IndexError, KeyError, ZeroDivisionError):
        return None
