"""Search for the capacity of a real asyncio server with exponential service times of 10 ms and 8 slots.

python -m benchmarks.queue_search             ten seeds by rate and ten by concurrency
python -m benchmarks.queue_search 2           fewer
python -m benchmarks.queue_search 5 5         the seeds from 5 to 9

The true limit comes from a simulation of the queue with the service times that the server logged, because timers and the event
loop make them longer than intended, and with the time that the client takes between a reply and the next request.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random

from benchmarks.far_end import line, profile
from benchmarks.simulated_search import Server, simulate

_SLOTS = 8
_OBJECTIVE, _LIMIT_MS, _ALLOWED = "p90 request_latency<50", 50.0, 0.1
_SIMULATED = 40_000
_LIMIT_S = 120.0
_LONGEST_PAUSE_S = 0.02


@contextmanager
def _server(folder: Path, seed: int) -> Iterator[str]:
    port = folder / "port"
    command = [sys.executable, "-m", "benchmarks.queue_server", str(port), str(folder / "service"), "--seed", str(seed)]
    with subprocess.Popen(command) as process:
        try:
            while not port.exists() or not port.read_text():
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port.read_text()}"
        finally:
            process.terminate()


def _true_limit(logged: list[tuple[float, float]], *, by_rate: bool) -> float:
    """Return the largest load at which the simulated queue meets the objective."""
    times = [service for service, _ in logged]
    mean = sum(times) / len(times)
    # Connections that a lower load does not use are idle for longer.
    pauses = [pause for _, pause in logged if pause < _LONGEST_PAUSE_S]
    server = Server(
        "logged",
        _OBJECTIVE,
        _SLOTS,
        lambda random, _: random.choice(times),
        math.nan,
        by_rate=by_rate,
        pause_s=max(1e-6, sum(pauses) / max(1, len(pauses))),
    )
    low, high = 1.0, _SLOTS / mean if by_rate else 256.0
    while high - low > (0.005 * low if by_rate else 1.0):
        load = (low + high) / 2 if by_rate else (low + high) // 2
        requests = list(islice(simulate(server, load, Random(1)), _SIMULATED // 20, _SIMULATED))
        missed = sum(end - start >= _LIMIT_MS * 1e6 for start, end, _ in requests) / len(requests)
        low, high = (load, high) if missed < _ALLOWED else (low, load)
    return low


def _search(by_rate: bool, seed: int) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameter, highest = ("request-rate", "1600") if by_rate else ("concurrency", "128")
        flags = ["--isl", "4", "--osl", "1", "--no-html", "--random-seed", str(seed), "--find-max", parameter]
        flags += ["--slo", _OBJECTIVE, "--search-min", "100" if by_rate else "1", "--search-max", highest]
        with _server(folder, seed) as url, profile(url, *flags) as run:
            limit = json.loads((Path(run.folder) / "profile_export_penstock_search.json").read_text())["limit"]
            seconds = run.seconds
        lines = (folder / "service").read_text().splitlines()[:-1]  # the last one may be cut off
        truth = _true_limit([(float(a), float(b)) for a, b in map(str.split, lines)], by_rate=by_rate)
    low, high = limit.get("low", 0.0), limit.get("high") or math.inf
    print(f"      {parameter}, seed {seed}: {low:g} to {high:g}, true limit {truth:.4g}, {seconds:.0f} s", flush=True)
    return low <= truth < high and seconds <= _LIMIT_S


def main(seeds: int = 10, first: int = 0) -> bool:
    passed = True
    for by_rate in (True, False):
        kept = sum(_search(by_rate, seed) for seed in range(first, first + seeds))
        passed &= kept >= 0.9 * seeds
        line(
            f"search by {'rate' if by_rate else 'concurrency'} against a queue of {_SLOTS} slots",
            f"{kept} of {seeds}",
            "contain the true limit",
            f"within {_LIMIT_S:.0f} s each",
            kept >= 0.9 * seeds,
        )
    return passed


if __name__ == "__main__":
    raise SystemExit(not main(*map(int, sys.argv[1:])))
