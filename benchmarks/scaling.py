"""Requests per second of several workers compared with one worker, against one or more C servers.

Two workers share two cores with the server in `make bench`. With more cores, name the number of workers:

    python -m benchmarks.scaling
    python -m benchmarks.scaling 8
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from benchmarks.far_end import far_end, line, profile

_FLAGS = ("--isl", "50", "--num-dataset-entries", "100", "--osl", "100", "--random-seed", "1", "--streaming")
_TURNS = 2
_PER_WORKER = 20_000


def rate(urls: list[str], workers: int) -> float:
    """Return the requests per second of a run with 64 connections for each worker."""
    load = ("--concurrency", str(64 * workers), "--request-count", str(_PER_WORKER * workers))
    others = [word for url in urls[1:] for word in ("--url", url)]
    with profile(urls[0], *others, *_FLAGS, *load, "--workers-max", str(workers)) as run:
        return run.value("request_throughput")


def main(workers: int = 2) -> bool:
    cores = os.cpu_count() or 1
    alone = cores >= 2 * workers  # a core for each worker and one for its server
    at_least = 0.9 * workers if alone else 1.4
    with ExitStack() as stack:
        servers = workers if alone else 1
        urls = [stack.enter_context(far_end(100)).url for _ in range(servers)]
        rates: dict[int, list[float]] = {1: [], workers: []}
        for _ in range(_TURNS):
            for number, found in rates.items():
                found.append(rate(urls, number))
    one, several = (sum(found) / _TURNS for found in rates.values())
    ratio = several / one
    line(
        f"{workers} workers on {cores} cores, streaming, 64 connections each",
        f"{several:,.0f} req/s",
        f"one worker {one:,.0f}",
        f"{ratio:.2f} times (at least {at_least:.1f})",
        ratio >= at_least,
    )
    return ratio >= at_least


if __name__ == "__main__":
    raise SystemExit(not main(*map(int, sys.argv[1:])))
