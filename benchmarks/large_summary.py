"""Measure the report of a large run from its log, and how long `--resume` takes to start. The log is written, not measured.

python -m benchmarks.large_summary               100,000 requests
python -m benchmarks.large_summary 1000000       a million; the targets are for this number
python -m benchmarks.large_summary 10000000      ten million replies of 3 chunks, without the files that have a row for each
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.far_end import AIPERF, line
from benchmarks.large_log import large_log
from benchmarks.run_memory import pss, tree

_PENSTOCK = os.path.join(os.path.dirname(AIPERF), "penstock")
_SMALL = 10_000
_LIMIT_PSS = 500e6
_SUMMARY_S, _RESUME_S = 10.0, 5.0
"""For a million requests."""


class Measured:
    def __init__(self, command: Sequence[str]) -> None:
        """Run a command to its end."""
        self.peak = 0
        """Largest sum of the PSS of its processes, in bytes."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            self.peak = max(self.peak, sum(map(pss, tree(process.pid))))
            time.sleep(0.2)
        self.wall = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with exit status {process.returncode}.")


def report(requests: int, *, chunks: int, rows: bool) -> Measured:
    """Write the report of a log. Without `rows`, it has no files with a row or a point for each request."""
    with large_log(requests, chunks=chunks, rows=rows) as folder:
        return Measured((_PENSTOCK, "report", folder))


_RESUME = """
import sys
from penstock.records.log import RunLog
from penstock.runs.resume import LoggedRun, check_resumable
log = RunLog(sys.argv[1])
check_resumable(log, sys.argv[1])
LoggedRun(log, sys.argv[1])
"""


def resume(requests: int) -> Measured:
    """Find out where a killed run goes on, from the start of the program to where the first worker would be started."""
    with large_log(requests, killed=True) as folder:
        return Measured((sys.executable, "-c", _RESUME, os.path.join(folder, "log")))


def main(requests: int = 100_000) -> bool:
    rows = requests < 10_000_000
    chunks = 20 if rows else 3
    part = requests / 1_000_000
    small, large = (report(count, chunks=chunks, rows=rows) for count in (_SMALL, requests))
    per_request = (large.cpu - small.cpu) / (requests - _SMALL)
    growth = (large.peak - small.peak) / (requests - _SMALL)
    in_time = large.wall < _SUMMARY_S or part < 1 or not rows
    passed = large.peak < _LIMIT_PSS and in_time
    line(
        f"report of {requests:,} requests",
        f"{large.wall:.1f} s, {large.peak / 1e6:.0f} MB",
        f"{small.wall:.1f} s, {small.peak / 1e6:.0f} MB at {_SMALL:,}",
        f"{1e6 * per_request:.0f} µs of CPU and {growth:.0f} bytes per request",
        passed,
    )
    if rows:
        resumed = resume(requests)
        good = resumed.wall < _RESUME_S * max(part, 0.5)
        line(
            f"start of --resume after {requests:,} requests",
            f"{resumed.wall:.1f} s",
            f"{resumed.cpu:.1f} s of CPU",
            f"at most {_RESUME_S:.0f} s after a million",
            good,
        )
        passed &= good
    return passed


if __name__ == "__main__":
    raise SystemExit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
