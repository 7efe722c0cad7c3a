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
_FLAT = 20
"""Bytes for each request: 20 MB at a million."""


class Measured:
    def __init__(self) -> None:
        self.running = 0
        """Largest sum of the PSS of all processes while requests were sent, in bytes."""
        self.peak = 0
        """The same, with the report."""
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
        samples: list[tuple[float, int]] = []
        while process.poll() is None:
            samples.append((time.time(), sum(map(pss, tree(process.pid)))))
            last_write = max(last_write, _last_write(os.path.join(folder, "log")))
            time.sleep(0.2)
        result.summary_s = time.time() - last_write
        result.peak = max(size for _, size in samples)
        result.running = max(size for at, size in samples if at < last_write)
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
    growth = (large.running - small.running) / (requests - _SMALL)
    is_flat = growth < _FLAT
    line(
        "memory of all processes (PSS) while they send",
        f"{large.running / 1e6:.0f} MB at {requests:,}",
        f"{small.running / 1e6:.0f} MB at {_SMALL:,}",
        f"{growth:.0f} bytes per request; at most {_FLAT}",
        is_flat,
    )
    in_time = large.peak < _LIMIT and (large.summary_s < 10 or requests < 1_000_000)
    line(
        "report after the last reply",
        f"{large.summary_s:.1f} s at {requests:,}",
        f"{large.peak / 1e6:.0f} MB",
        f"{small.peak / 1e6:.0f} MB at {_SMALL:,}; at most 10 s and 500 MB at a million",
        in_time,
    )
    return is_flat and in_time


if __name__ == "__main__":
    raise SystemExit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
