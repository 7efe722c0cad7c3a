"""Measure how the anonymous memory of the command grows with the number of requests.

python -m benchmarks.memory              200,000 requests compared with 20,000
python -m benchmarks.memory 1000000      a million requests; takes minutes
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from benchmarks.far_end import anonymous_memory, far_end, line, profile_command

_SMALL = 20_000


def peak(requests: int) -> int:
    """Return the peak anonymous memory of the command's main process in bytes."""
    with far_end(20) as server, tempfile.TemporaryDirectory() as folder:
        command = profile_command(server.url, "--streaming")
        command += ["--isl", "50", "--osl", "20", "--num-dataset-entries", "100", "--concurrency", "64", "--quiet"]
        command += ["--artifact-dir", folder, "--request-count", str(requests)]
        process = subprocess.Popen(command)
        highest = 0
        while process.poll() is None:
            highest = max(highest, anonymous_memory(process.pid))
            time.sleep(0.05)
        if process.returncode != 0:
            raise SystemExit(f"The run failed with exit status {process.returncode}.")
    return highest


def main(requests: int = 200_000) -> bool:
    small, large = peak(_SMALL), peak(requests)
    growth = (large - small) / (requests - _SMALL)
    figure = f"{large / 1e6:.0f} MB at {requests:,}"
    passed = growth <= 300 and large < 1e9
    line(
        "anonymous memory",
        figure,
        f"{small / 1e6:.0f} MB at {_SMALL:,}",
        f"{growth:.0f} bytes per request (at most 300)",
        passed,
    )
    return passed


if __name__ == "__main__":
    raise SystemExit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000))
