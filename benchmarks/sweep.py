"""Measure what a point of a sweep costs besides its load: prompts, start, and the files of the point.

python -m benchmarks.sweep
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from benchmarks.far_end import far_end, line, profile

_POINTS = 10
_TRIES = 3
_LIMIT_S = 0.2


def _seconds(url: str, concurrencies: list[int]) -> float:
    """Return the time of a sweep without its loads."""
    values = ",".join(map(str, concurrencies))
    # mockd counts 10 input tokens; another length would add a table about unequal counts to each report.
    flags = ("--streaming", "--isl", "10", "--osl", "10", "--request-count", "100", "--concurrency", values)
    with profile(url, *flags) as run:
        summaries = Path(run.folder).glob("concurrency_*/profile_export_aiperf.json")
        loads = [json.loads(path.read_text())["benchmark_duration"]["avg"] for path in summaries]
        assert len(loads) == len(concurrencies)
        return run.seconds - float(sum(loads))


def points() -> bool:
    costs = []
    with far_end(10, ttft_us=1000, itl_us=500) as server:
        for _ in range(_TRIES):
            few = _seconds(server.url, [1, 2])
            many = _seconds(server.url, list(range(1, 3 + _POINTS)))
            costs.append((many - few) / _POINTS)
    cost = statistics.median(costs)
    line(
        "a sweep point besides its load, 100 requests",
        f"{cost:.3f} s",
        f"at most {_LIMIT_S:g} s",
        f"{cost / _LIMIT_S:.2f} of the limit",
        cost < _LIMIT_S,
    )
    return cost < _LIMIT_S


def main() -> bool:
    return points()


if __name__ == "__main__":
    raise SystemExit(not main())
