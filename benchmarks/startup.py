"""Measure the time of a small run, and the time from the command to its first request.

python -m benchmarks.startup
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.far_end import AIPERF, far_end, line, profile

_TRIES = 5


def first_request() -> bool:
    """Measure the time from the start of the command to its first request, with an input file."""
    delays = []
    with tempfile.TemporaryDirectory() as folder, far_end(10) as server:
        inputs = Path(folder) / "inputs.jsonl"
        inputs.write_text("".join(json.dumps({"text": f"Question {n}?"}) + "\n" for n in range(100)))
        for _ in range(_TRIES):
            began = time.time_ns()
            with profile(server.url, "--streaming", "--input-file", str(inputs), "--request-count", "20") as run:
                first = (Path(run.folder) / "profile_export.jsonl").open().readline()
                delays.append((json.loads(first)["metadata"]["request_start_ns"] - began) / 1e9)
    seconds: float = statistics.median(delays)
    line(
        "command to first request, input file",
        f"{seconds:.2f} s",
        "at most 0.5 s",
        f"{seconds / 0.5:.2f} of the limit",
        seconds < 0.5,
    )
    return seconds < 0.5


def small_run() -> bool:
    with far_end(10) as server:
        times = []
        for _ in range(_TRIES):
            with profile(server.url, "--streaming", "--isl", "100", "--osl", "10", "--request-count", "20") as run:
                times.append(run.seconds)
    seconds = statistics.median(times)
    line(
        "20 requests, no latency, whole command",
        f"{seconds:.2f} s",
        "AIPerf 9 s (recorded)",
        f"{9 / seconds:.0f} times",
        seconds < 1.5,
    )
    return seconds < 1.5


def help_text() -> bool:
    times = []
    for _ in range(_TRIES):
        began = time.monotonic()
        subprocess.run([AIPERF, "profile", "--help"], check=True, capture_output=True)
        times.append(time.monotonic() - began)
    seconds = statistics.median(times)
    line("profile --help", f"{seconds:.2f} s", "AIPerf 2.7 s (recorded)", f"{2.7 / seconds:.0f} times", seconds < 0.5)
    return seconds < 0.5


def prompts() -> bool:
    code = (
        "import time; t = time.monotonic()\n"
        "from penstock.datasets.jsonl import FileErrors\n"
        "from penstock.datasets.synthetic import Synthetic\n"
        "from penstock.settings.schema import InputSettings\n"
        "from penstock.tokens.load import load\n"
        "list(Synthetic(InputSettings(seed=1), 10_000, load('builtin', 'm').tokenizer).read(FileErrors('')))\n"
        "print(time.monotonic() - t)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ)
    seconds = float(done.stdout)
    line(
        "10,000 prompts of exactly 550 tokens",
        f"{seconds:.2f} s",
        "at most 5 s",
        f"{seconds / 5:.2f} of the limit",
        seconds < 5,
    )
    return seconds < 5


def main() -> bool:
    return all([help_text(), first_request(), small_run(), prompts()])


if __name__ == "__main__":
    raise SystemExit(not main())
