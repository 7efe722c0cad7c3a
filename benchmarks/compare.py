"""Whether `penstock compare` finds a difference of 2 ms between two servers, and none between equal servers.

python -m benchmarks.compare

Each comparison is one interleaved run with 60 requests per server. The TTFT of a server is uniformly distributed around 25 ms
with a standard deviation of 3 ms, independently for each request. Such a difference is found in 95 % of comparisons, and 5 %
of equal servers differ; fixed seeds make the servers' delays the same in every run of this benchmark.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.far_end import AIPERF, line

_MEAN_MS = 25.0
_DEVIATION_MS = 3.0
_JITTER_MS = _DEVIATION_MS * 12**0.5
"""Width of a uniform distribution with that deviation."""
_LOAD = ("--streaming", "--isl", "20", "--request-count", "60", "--concurrency", "1", "--random-seed", "1")


def interleaved(name: str, extra_ms: float, expected: str) -> bool:
    comparison = _compare(_server(0.0, seed=1), _server(extra_ms, seed=2))
    row = next(
        row
        for row in comparison["rows"]
        if (row["metric"], row["statistic"]) == ("time_to_first_token", "avg") and row["test"] == "primary"
    )
    passed: bool = row["verdict"] == expected
    interval = f"95 % interval {row['low']:+.2f} to {row['high']:+.2f} ms"
    line(name, f"{row['difference']:+.2f} ms", interval, f"{row['verdict']}, p {row['p']:.4f}", passed)
    return passed


def _server(extra_ms: float, seed: int) -> str:
    ttft = _MEAN_MS + extra_ms - _JITTER_MS / 2
    return f"mock://?ttft={ttft:.3f}&jitter={_JITTER_MS:.3f}&tokens=1&seed={seed}"


def _compare(*urls: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(AIPERF).with_name("penstock")), "compare", "--model", "m", "--tokenizer", "builtin"]
        command += [*_LOAD, "--artifact-dir", folder, "--json"]
        for url in urls:
            command += ["--url", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        comparison: dict[str, Any] = json.loads(done.stdout)
        return comparison


def main() -> bool:
    return all(
        [
            interleaved("compare, 60 requests: B is 2 ms slower", 2.0, "A is better"),
            interleaved("compare, 60 requests: equal servers", 0.0, "within noise"),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(not main())
