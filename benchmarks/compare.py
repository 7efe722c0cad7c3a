"""How often `penstock compare` finds a difference of 2 ms between two servers, and a difference between equal servers.

python -m benchmarks.compare             10 comparisons of each kind, in about 2 minutes
python -m benchmarks.compare 1           one of each

A comparison is one interleaved run with 60 requests per server. The TTFT of a server is uniformly distributed around 25 ms with
a standard deviation of 3 ms, independently for each request; every comparison has other delays. In simulations the difference
is found in 95 % of comparisons, and equal servers differ in 5 %.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.far_end import AIPERF, line

_MEAN_MS = 25.0
_DEVIATION_MS = 3.0
_JITTER_MS = _DEVIATION_MS * 12**0.5
"""Width of a uniform distribution with that deviation."""
_LOAD = ("--streaming", "--isl", "20", "--request-count", "60", "--concurrency", "1", "--random-seed", "1")


def interleaved(name: str, extra_ms: float, comparisons: int) -> int:
    """Return how many comparisons find a difference in TTFT."""
    rows = [_compare(_server(0.0, seed), _server(extra_ms, seed + 1)) for seed in range(100, 100 + 2 * comparisons, 2)]
    for row in rows:
        interval = f"{row['low']:+.2f} to {row['high']:+.2f} ms"
        print(f"      {name}: {row['difference']:+.2f} ms ({interval}), p {row['p']:.4f}, {row['verdict']}", flush=True)
    return sum(row["verdict"] != "within noise" for row in rows)


def _server(extra_ms: float, seed: int) -> str:
    ttft = _MEAN_MS + extra_ms - _JITTER_MS / 2
    return f"mock://?ttft={ttft:.3f}&jitter={_JITTER_MS:.3f}&tokens=1&seed={seed}"


def _compare(*urls: str) -> dict[str, Any]:
    """Compare two servers and return the row of the primary metric."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(AIPERF).with_name("penstock")), "compare", "--model", "m", "--tokenizer", "builtin"]
        command += [*_LOAD, "--artifact-dir", folder, "--json"]
        for url in urls:
            command += ["--url", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        row: dict[str, Any] = next(row for row in json.loads(done.stdout)["rows"] if row["test"] == "primary")
        return row


def main(comparisons: int = 10) -> bool:
    slower = interleaved("B is 2 ms slower", 2.0, comparisons)
    equal = interleaved("equal servers", 0.0, comparisons)
    allowed = comparisons // 5
    results = [slower >= comparisons - allowed, equal <= allowed]
    name, total = "compare, 60 requests", f"of {comparisons} comparisons"
    line(f"{name}: a difference of 2 ms is found", f"{slower}", total, f"at least {comparisons - allowed}", results[0])
    line(f"{name}: equal servers differ", f"{equal}", total, f"at most {allowed}", results[1])
    return all(results)


if __name__ == "__main__":
    raise SystemExit(not main(*map(int, sys.argv[1:2])))
