"""Measure the memory of all processes of a run, and the time from the last reply to the summary.

python -m benchmarks.run_memory              100,000 requests compared with 10,000
python -m benchmarks.run_memory 1000000      a million requests; takes minutes
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from benchmarks.far_end import far_end, line, profile_command

_SMALL = 10_000
_LIMIT = 500e6


class Measured:
    def __init__(self) -> None:
        self.peak = 0
        """Largest sum of the PSS of all processes, in bytes."""
        self.summary_s = 0.0
        """From the last byte of the workers' logs to the end of the command."""


def measure(requests: int) -> Measured:
    result = Measured()
    with far_end(20) as server, tempfile.TemporaryDirectory() as folder:
        command = profile_command(server.url, "--streaming")
        command += ["--isl", "50", "--osl", "20", "--num-dataset-entries", "100", "--concurrency", "64", "--quiet"]
        command += ["--artifact-dir", folder, "--request-count", str(requests), "--workers-max", "2"]
        process = subprocess.Popen(command)
        last_write = 0.0
        while process.poll() is None:
            result.peak = max(result.peak, sum(map(pss, tree(process.pid))))
            last_write = max(last_write, _last_write(os.path.join(folder, "log")))
            time.sleep(0.2)
        result.summary_s = time.time() - last_write
        if process.returncode != 0:
            raise SystemExit(f"The run failed with exit status {process.returncode}.")
    return result


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        return [pid]
    return [pid, *(each for child in children for each in tree(child))]


def pss(pid: int) -> int:
    """Return the memory of a process, with its share of what it shares, in bytes."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            rows = [row.split() for row in file if row.startswith("Pss:")]
        return int(rows[0][1]) * 1024 if rows else 0
    except OSError:
        return 0


def _last_write(log: str) -> float:
    paths = [os.path.join(log, f"worker-{worker}.log") for worker in range(2)]
    return max((os.stat(path).st_mtime for path in paths if os.path.exists(path)), default=0.0)


def main(requests: int = 100_000) -> bool:
    small, large = measure(_SMALL), measure(requests)
    growth = (large.peak - small.peak) / (requests - _SMALL)
    passed = large.peak < _LIMIT and (large.summary_s < 10 or requests < 1_000_000)
    line(
        "memory of all processes (PSS)",
        f"{large.peak / 1e6:.0f} MB at {requests:,}",
        f"{small.peak / 1e6:.0f} MB at {_SMALL:,}",
        f"{growth:.0f} bytes per request; summary {large.summary_s:.1f} s after the last reply",
        passed,
    )
    return passed


if __name__ == "__main__":
    raise SystemExit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
