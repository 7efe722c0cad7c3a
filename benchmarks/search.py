"""Search for the capacity of the mock: how often the interval contains it, how wide it is, and how many requests it takes.

python -m benchmarks.search              three seeds for each parameter
python -m benchmarks.search 10           more seeds

A search takes about 45 s, because the mock processes 12 or 25 requests per second, and a quarter of a core. Two for each core
run at the same time. A line more says how much processor time it takes to judge the requests of a load that stays undecided.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from benchmarks.far_end import line, profile
from benchmarks.intervals import records_of
from penstock.metrics.capacity import ObjectiveTest, parse_slo
from penstock.records.log import LogWriter
from penstock.records.worker_report import WorkerReport
from penstock.runs import search
from penstock.runs.log_tail import LogTail
from penstock.workers.messages import Progress

_RANGE = 4, 64
_TOKENS = 11


class _Case(NamedTuple):
    parameter: str
    mock: str
    slo: str
    capacity: float

    @property
    def name(self) -> str:
        return f"search for the {self.parameter.replace('-', ' ')}, {self.slo[:3]}"

    def is_contained(self, found: _Found) -> bool:
        return found.low <= self.capacity < found.high


_CASES = (
    # 5 slots of 400 ms. Each request in flight beyond 5 adds 80 ms to the 60 ms until the first token.
    _Case("concurrency", "ttft=60&itl=34&slots=5", "p50 time_to_first_token<260", 7),
    _Case("concurrency", "ttft=60&itl=34&slots=5", "p90 time_to_first_token<500", 10),
    # 5 slots of 200 ms.
    _Case("request-rate", "ttft=20&itl=18&slots=5", "p90 time_to_first_token<200", 25),
)


class _Found(NamedTuple):
    low: float
    high: float
    sent: int


def _search(case: _Case, seed: int) -> _Found:
    flags = ["--streaming", "--isl", "10", "--osl", str(_TOKENS), "--no-html", "--random-seed", str(seed)]
    flags += ["--find-max", case.parameter, "--slo", case.slo]
    flags += ["--search-min", str(_RANGE[0]), "--search-max", str(_RANGE[1])]
    if case.parameter == "request-rate":
        flags += ["--arrival-pattern", "constant"]  # the capacity of random arrivals is not exactly known
    with profile(f"mock://?{case.mock}", *flags) as run:
        limit = json.loads((Path(run.folder) / "profile_export_penstock_search.json").read_text())["limit"]
        sent = sum(len(path.read_text().splitlines()) for path in Path(run.folder).glob("*/profile_export.jsonl"))
        found = _Found(limit.get("low", 0.0), limit.get("high") or math.inf, sent)
        levels = " ".join(each for each in run.output.splitlines() if " did not meet " in each)
    print(
        f"      {case.name}, seed {seed}: {found.low:g} to {found.high:g} with {sent:,} requests in {run.seconds:.0f} s"
        + ("" if case.is_contained(found) else f" without {case.capacity:g}: {levels}"),
        flush=True,
    )
    return found


def _judge(case: _Case, searches: Sequence[_Found]) -> bool:
    lowest, highest = _RANGE
    contained = sum(map(case.is_contained, searches))
    # The neighbouring whole numbers are the narrowest interval of a concurrency.
    widths = [high - low for low, high, _ in searches if case.parameter != "concurrency" or high - low > 1]
    widest = max(widths, default=0.0) / 2 / case.capacity
    most = max(found.sent for found in searches)
    bisection = 1000 * math.ceil(math.log2((highest - lowest) / (0.1 * case.capacity)))
    passed = contained >= math.ceil(0.9 * len(searches)) and widest <= 0.1 and most <= bisection / 3
    line(
        f"{case.name}: intervals with capacity",
        f"{contained} of {len(searches)}",
        f"at most ±{100 * widest:.0f} % wide",
        f"at most {most:,} requests, {most / bisection:.2f} of a bisection",
        passed,
    )
    return passed


def _judging_s(count: int) -> float:
    """Return the processor time for each request of a load that stays undecided for so many requests."""
    slos = (parse_slo("p90 time_to_first_token<92"),)
    spent = 0.0
    with tempfile.TemporaryDirectory() as folder:
        log = LogWriter(folder, 0)
        test = ObjectiveTest(slos, 2 * count, open_loop=True)
        rule = search.LoadRule(LogTail(folder), test, slos, 100, search.Start(False), "last")
        for number, record in enumerate(records_of(count), 1):
            log.record(record)
            if number % 100 == 0:
                log.flush()
                workers = [Progress(ended=number, oldest=record.start, report=WorkerReport(0))]
                running: Any = SimpleNamespace(index=0, done=False, progress=SimpleNamespace(workers=workers))
                begin = time.process_time()
                rule.is_met(running)
                spent += time.process_time() - begin
        log.close()
    return spent / count


def _judge_cost() -> bool:
    search.POLL_NS = 0  # the requests come faster than in a real run
    few, many = _judging_s(5_000), _judging_s(25_000)
    line(
        "processor time to judge a request of an undecided load",
        f"{1e6 * many:.0f} µs at 25,000",
        f"{1e6 * few:.0f} µs at 5,000",
        f"{many / few:.2f}, at most 1.5",
        many <= 1.5 * few,
    )
    return many <= 1.5 * few


def main(seeds: int = 3) -> bool:
    cheap = _judge_cost()
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        runs = {case: [pool.submit(_search, case, seed) for seed in range(seeds)] for case in _CASES}
        results = [_judge(case, [each.result() for each in searches]) for case, searches in runs.items()]
    return cheap and all(results)


if __name__ == "__main__":
    raise SystemExit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
