"""Search for the capacity of the mock: how often the interval contains it, how wide it is, and how many requests it takes.

python -m benchmarks.search              three seeds for each parameter
python -m benchmarks.search 10           more seeds
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.far_end import line, profile

_RANGE = 4, 64
_TOKENS = 11


class _Case(NamedTuple):
    parameter: str
    mock: str
    slo: str
    capacity: float


_CASES = (
    # 5 slots of 400 ms. Each request in flight beyond 5 adds 80 ms to the 60 ms until the first token.
    _Case("concurrency", "ttft=60&itl=34&slots=5", "p50 time_to_first_token<260", 7),
    _Case("concurrency", "ttft=60&itl=34&slots=5", "p90 time_to_first_token<500", 10),
    # 5 slots of 200 ms.
    _Case("request-rate", "ttft=20&itl=18&slots=5", "p90 time_to_first_token<200", 25),
)


def _search(case: _Case, seed: int) -> tuple[float, float, int]:
    """Return the interval, and how many requests were sent."""
    flags = ["--streaming", "--isl", "10", "--osl", str(_TOKENS), "--no-html", "--random-seed", str(seed)]
    flags += ["--find-max", case.parameter, "--slo", case.slo]
    flags += ["--search-min", str(_RANGE[0]), "--search-max", str(_RANGE[1])]
    if case.parameter == "request-rate":
        flags += ["--arrival-pattern", "constant"]  # the capacity of random arrivals is not exactly known
    with profile(f"mock://?{case.mock}", *flags) as run:
        found = json.loads((Path(run.folder) / "profile_export_penstock_search.json").read_text())
        sent = sum(len(path.read_text().splitlines()) for path in Path(run.folder).glob("*/profile_export.jsonl"))
        limit = found["limit"]
        return float(limit["low"]), float(limit["high"] or math.inf), sent


def _measure(case: _Case, seeds: int) -> bool:
    lowest, highest = _RANGE
    contained, most = 0, 0
    widest = 0.0
    for seed in range(seeds):
        low, high, sent = _search(case, seed)
        contained += low <= case.capacity < high
        # The neighbouring whole numbers are the narrowest interval of a concurrency.
        narrowest = case.parameter == "concurrency" and high - low <= 1
        widest = max(widest, 0.0 if narrowest else (high - low) / 2 / case.capacity)
        most = max(most, sent)
    bisection = 1000 * math.ceil(math.log2((highest - lowest) / (0.1 * case.capacity)))
    passed = contained >= math.ceil(0.9 * seeds) and widest <= 0.1 and most <= bisection / 3
    line(
        f"search for the {case.parameter.replace('-', ' ')}, {case.slo[:3]}: intervals with capacity",
        f"{contained} of {seeds}",
        f"at most ±{100 * widest:.0f} % wide",
        f"at most {most:,} requests, {most / bisection:.2f} of a bisection",
        passed,
    )
    return passed


def main(seeds: int = 3) -> bool:
    results = [_measure(case, seeds) for case in _CASES]
    return all(results)


if __name__ == "__main__":
    raise SystemExit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
