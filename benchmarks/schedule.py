"""Measure how close requests are sent to their schedule, and how fast workers compute a long one.

python -m benchmarks.schedule
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections import deque
from itertools import islice
from typing import Any

from benchmarks.far_end import far_end, line, profile
from penstock.schedule.arrivals import Arrivals, Constant
from penstock.schedule.random_arrivals import Gamma, Poisson
from penstock.schedule.share import Share
from penstock.schedule.varying_rate import RatePoint, VaryingRate

_RATE = 5000
_MAX_LATE_MS = 1.0
_ROUNDS = 3
_ARRIVALS = 10_000_000
_WORKERS = 8
_MAX_SECONDS = 5.0
_MAX_GROWTH_MB = 10.0
_WARM = 200_000
"""Arrivals after which the blocks of NumPy have their full size."""
_NO_DATA: Any = None

PROCESSES: dict[str, Arrivals] = {
    "constant": Constant(float(_RATE)),
    "poisson": Poisson(float(_RATE)),
    "gamma": Gamma(float(_RATE), 2.0),
    "poisson with a ramp": VaryingRate(Poisson(1.0), (RatePoint(0.0, 0.0), RatePoint(600.0, float(_RATE)))),
}


def on_time() -> bool:
    """Send Poisson arrivals for ten seconds, with the server on the same cores. The best round counts: other programs on the
    machine can only delay a send."""
    load = ("--request-rate", str(_RATE), "--benchmark-duration", "10", "--num-dataset-entries", "100", "--isl", "50")
    rounds = []
    for _ in range(_ROUNDS):
        with far_end(1) as server, profile(server.url, *load, "--osl", "1", "--use-server-token-count") as run:
            figures = run.certificate["figures"]
            rounds.append((figures["send_lateness_p99_ms"], figures["run_queue_share"], run.value("request_count")))
    late, waited, sent = min(rounds)
    passed: bool = late <= _MAX_LATE_MS
    line(
        f"{_RATE:,} Poisson arrivals/s: sent after the schedule, p99",
        f"{late:.3f} ms",
        f"at most {_MAX_LATE_MS:g} ms",
        f"{sent:,.0f} requests; other programs had the core for {waited or 0:.0%} of the time",
        passed,
    )
    return passed


def _share_of(name: str, worker: int) -> tuple[float, float]:
    """Compute one worker's share of the arrivals; return its CPU time, and by how many MB its memory grew on the way."""
    began = time.process_time()
    times = PROCESSES[name].times(Share(worker, _WORKERS), 1, _NO_DATA)
    deque(islice(times, _WARM), maxlen=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    deque(islice(times, _ARRIVALS // _WORKERS - _WARM), maxlen=0)
    return time.process_time() - began, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def ten_million(name: str) -> bool:
    """Compute the arrivals of all workers, each in a process of its own. The figure is their CPU time on the cores of this
    machine, which other programs change less than the time on the clock."""
    shares = [(name, worker) for worker in range(_WORKERS)]
    with multiprocessing.get_context("fork").Pool(_WORKERS, maxtasksperchild=1) as pool:
        done = pool.starmap(_share_of, shares, chunksize=1)
    cores = min(_WORKERS, os.cpu_count() or 1)
    seconds = [taken for taken, _ in done]
    taken, grown = max(*seconds, sum(seconds) / cores), max(growth for _, growth in done)
    passed = taken <= _MAX_SECONDS and grown <= _MAX_GROWTH_MB
    line(
        f"{_ARRIVALS:,} arrivals over {_WORKERS} workers, {name}",
        f"{taken:.2f} s",
        f"at most {_MAX_SECONDS:g} s",
        f"{max(seconds):.2f} s of CPU a worker, {cores} cores; memory grows by {grown:.1f} MB (at most {_MAX_GROWTH_MB:g})",
        passed,
    )
    return passed


def main() -> bool:
    return all([on_time(), *map(ten_million, PROCESSES)])


if __name__ == "__main__":
    raise SystemExit(not main())
