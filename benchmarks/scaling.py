"""Requests per second of several workers compared with one worker, against one or more C servers, and the CPU time of each kind
of process.

Two workers share two cores with the server in `make bench`. With more cores, name the number of workers:

    python -m benchmarks.scaling
    python -m benchmarks.scaling 8

The second line tells what limits the ratio. If the CPU time of a worker for a request grows with the number of workers, they
share something in the processor (hyper-threads of a core, caches); if workers are busy for less of the time, they wait, for the
servers or for the parent. The parent of several workers only passes on messages.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks.cpu_time import CpuSamples, cpu_s, physical_cores
from benchmarks.far_end import FarEnd, far_end, line, profile_command
from penstock.records.log import RunLog

_FLAGS = ("--isl", "50", "--num-dataset-entries", "100", "--osl", "100", "--random-seed", "1", "--streaming", "--quiet")
_TURNS = 2
_SECONDS = 5
"""Runs end after a time. After a number of requests, the fast workers would end before the slow ones."""


class Measured(NamedTuple):
    """Figures of a run. CPU times are those of the time in which requests were sent."""

    rate: float
    """Requests per second."""
    worker_us: float
    """CPU time of the workers for a request, in microseconds."""
    worker_share: float
    """CPU time of the workers as a share of their time."""
    server_us: float
    server_share: float
    parent_share: float
    """CPU time of the process that started the workers, as a share of a core. A single worker is in that process."""

    def text(self) -> str:
        return (
            f"worker {self.worker_us:.0f} µs a request, busy {self.worker_share:.0%}; server {self.server_us:.0f} µs, busy "
            f"{self.server_share:.0%}; parent {self.parent_share:.0%}"
        )


def measure(servers: list[FarEnd], workers: int) -> Measured:
    """Run with 64 connections for each worker."""
    load = ("--concurrency", str(64 * workers), "--benchmark-duration", str(_SECONDS))
    others = [word for server in servers[1:] for word in ("--url", server.url)]
    flags = (*others, *_FLAGS, *load, "--workers-max", str(workers))
    with tempfile.TemporaryDirectory() as folder:
        command = profile_command(servers[0].url, *flags, "--artifact-dir", folder)
        before = [cpu_s(server.pid) for server in servers]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process, CpuSamples(process.pid) as parent:
            process.wait()
        if process.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)} failed with exit status {process.returncode}.")
        served = sum(cpu_s(server.pid) - then for server, then in zip(servers, before, strict=True))
        return _read(os.path.join(folder, "log"), parent, served, len(servers))


def _read(path: str, parent: CpuSamples, served_s: float, servers: int) -> Measured:
    log = RunLog(path)
    reports = log.reports("profiling")
    begin, end, requests = math.inf, 0, 0
    for record in log.records():
        begin, end, requests = min(begin, record.start), max(end, record.end), requests + 1
    epoch = log.header.epoch_wall_ns
    seconds = (end - begin) / 1e9
    worker_s = sum(report.machine.cpu_s for report in reports)
    return Measured(
        requests / seconds,
        1e6 * worker_s / requests,
        worker_s / sum(report.machine.wall_s for report in reports),
        1e6 * served_s / requests,
        served_s / seconds / servers,
        parent.between(epoch + int(begin), epoch + end) / seconds,
    )


def main(workers: int = 2) -> bool:
    cores = os.cpu_count() or 1
    alone = cores >= 2 * workers  # a core for each worker and one for its server
    at_least = 0.9 * workers if alone else 1.4
    with ExitStack() as stack:
        servers = [stack.enter_context(far_end(100)) for _ in range(workers if alone else 1)]
        found: dict[int, list[Measured]] = {1: [], workers: []}
        for _ in range(_TURNS):
            for number, measured in found.items():
                measured.append(measure(servers, number))
    one, several = (sum(each.rate for each in measured) / _TURNS for measured in found.values())
    ratio = several / one
    line(
        f"{workers} workers on {cores} cores, streaming, 64 connections each",
        f"{several:,.0f} req/s",
        f"one worker {one:,.0f}",
        f"{ratio:.2f} times (at least {at_least:.1f}); {physical_cores()} physical cores",
        ratio >= at_least,
    )
    for number, measured in found.items():
        print(f"      {number} worker{'s' if number > 1 else ''}: {measured[-1].text()}")
    return ratio >= at_least


if __name__ == "__main__":
    raise SystemExit(not main(*map(int, sys.argv[1:])))
