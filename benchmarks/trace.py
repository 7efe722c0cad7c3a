"""Measure the time from the start of the command to the first request of a large trace, and the peak memory of the run.

The CPU time until then tells whether a late first request is due to other programs on the machine.

python -m benchmarks.trace              traces of a million rows: sorted, unsorted, and a CSV file
python -m benchmarks.trace 100000       traces of 100,000 rows
python -m benchmarks.trace 1000000 sorted
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.far_end import far_end, line, profile_command
from benchmarks.replay import _children

_MAX_FIRST_S = 2.0
_MAX_BYTES = 250e6
_ROWS_PER_S = 500
_BLOCK = 512
_KINDS = ("sorted", "unsorted", "CSV")


def first_request(rows: int, kind: str) -> bool:
    with tempfile.TemporaryDirectory() as folder, far_end(20) as server:
        path = Path(folder, "trace.csv" if kind == "CSV" else "trace.jsonl")
        path.write_text("".join(_rows(rows, kind)))
        out = Path(folder, "out")
        schedule = ("--input-file", str(path), "--fixed-schedule", "--benchmark-duration", "3")
        command = profile_command(server.url, "--streaming", "--quiet", *schedule, "--artifact-dir", str(out))
        began = time.time_ns()
        process = subprocess.Popen(command)
        peak = 0
        used: list[tuple[int, float]] = []
        while process.poll() is None:
            family = (process.pid, *_children(process.pid))
            peak = max(peak, sum(map(_memory, family)))
            used.append((time.time_ns(), sum(map(_cpu_seconds, family))))
            time.sleep(0.02)
        with open(out / "profile_export.jsonl", "rb") as file:
            first = min(json.loads(text)["metadata"]["request_start_ns"] for text in file)
    seconds = (first - began) / 1e9
    cpu_seconds = max((cpu for at, cpu in used if at <= first), default=0.0)
    passed = peak < _MAX_BYTES and (kind == "unsorted" or seconds < _MAX_FIRST_S)
    limit = "" if kind == "unsorted" else f"{_MAX_FIRST_S:.0f} s and "
    line(
        f"first request of a trace of {rows:,} rows, {kind}",
        f"{seconds:.2f} s",
        f"at most {limit}{_MAX_BYTES / 1e6:.0f} MB",
        f"{cpu_seconds:.2f} s of CPU time; {peak / 1e6:.0f} MB in all processes",
        passed,
    )
    return passed


def _memory(pid: int) -> int:
    """Return the resident memory of a process. A page that n processes share counts as 1/n."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(row.split()[1]) * 1024 for row in file if row.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def _cpu_seconds(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rows(count: int, kind: str) -> list[str]:
    """Return rows with up to 1,500 prompt tokens, a thousand first blocks, and 500 arrivals per second."""
    rng = random.Random(1)
    if kind == "CSV":
        header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        return [header, *(f"{n / _ROWS_PER_S},m,{rng.randrange(100, 1500)},20,,API log\n" for n in range(count))]
    rows = []
    for number in range(count):
        length = rng.randrange(100, 1500)
        ids = [rng.randrange(1000), *(rng.randrange(1000, 10**6) for _ in range((length - 1) // _BLOCK))]
        row = {"timestamp": number * 1000 // _ROWS_PER_S, "input_length": length, "output_length": 20, "hash_ids": ids}
        rows.append(json.dumps(row) + "\n")
    if kind == "unsorted":
        rng.shuffle(rows)
    return rows


def main(rows: int = 1_000_000, kinds: tuple[str, ...] = _KINDS) -> bool:
    results = [first_request(rows, kind) for kind in kinds]
    return all(results)


if __name__ == "__main__":
    raise SystemExit(not main(int((sys.argv[1:] or ["1000000"])[0]), tuple(sys.argv[2:]) or _KINDS))
