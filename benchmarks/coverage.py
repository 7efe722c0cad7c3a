"""How often the confidence intervals of simulated runs contain the truth, and how often there is one.

python -m benchmarks.coverage                       400 runs of each case, on all cores
python -m benchmarks.coverage --runs 100 --seed 5   fewer runs, other random numbers
python -m benchmarks.coverage M/M/4                 only the processes with this name; also `errors` and `until`

For each process, number of requests and figure the table shows the percentage of the runs that print an interval, and the
percentage of these that contain the true value. A case is kept if at most 7 % of all runs print an interval that misses it,
and, where at least 25 % print one, at least 90 % of these contain it. Exact intervals break the first rule in 3 % of the cases
by chance, so the benchmark passes if at most 4 % of the cases break a rule and none breaks it by far (10 %; 86 %). Of the
runs that `--until` ended, 90 % have to contain the truth.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from tempfile import gettempdir
from typing import NamedTuple

import numpy as np

from benchmarks.simulated_runs import PROCESSES, Process, Runs
from penstock.metrics.dependence import InFlight, requests_in_flight
from penstock.metrics.intervals import FigureInterval, Sample, product_interval, rate_interval, share_interval
from penstock.metrics.precision import Checkpoints, Precision, parse_precision
from penstock.metrics.request_series import TAGS, SeriesTable
from penstock.metrics.request_series import intervals as series_intervals
from penstock.metrics.statistics import Column, ColumnLimits, Values
from penstock.metrics.steady_state import steady_window
from penstock.scratch import Scratch

COUNTS = (100, 400, 1_000, 5_000, 50_000)
_DISCARDED = 20_000
_PERCENTS = (50, 90, 95, 99)
_TOGETHER = 100
"""Runs that are simulated at the same time; more would take too much memory."""
_ERROR_RATE, _BURST = 0.02, 20
"""Share of the requests that fail, and the mean number of those that fail in a row."""
_UNTIL = tuple(
    (process, target)
    for process in ("independent, lognormal", "M/M/4 at 0.7")
    for target in ("avg request_latency ±5%", "p90 request_latency ±10%")
)
_LONGEST = 204_800
_TICK = 1e6
"""Nanoseconds of a unit of time, where a run is a series with times in ns."""


class Cell(NamedTuple):
    process: str
    requests: int
    figure: str
    runs: int
    printed: int
    missed: int
    judged: bool
    """False if the sample is smaller than those that the table judges."""

    @property
    def missing_share(self) -> float:
        return self.missed / self.runs

    @property
    def covered_share(self) -> float:
        return 1 - self.missed / max(1, self.printed)

    def breaks(self, missing: float = 0.07, covered: float = 0.90) -> bool:
        """Return whether the case breaks one of the rules."""
        often = self.printed >= 0.25 * self.runs
        return self.judged and (self.missing_share > missing or (often and self.covered_share < covered))

    @property
    def text(self) -> str:
        if not self.printed:
            return "–"
        mark = "" if not self.breaks() else " !"
        return f"{100 * self.printed / self.runs:.0f}: {100 * self.covered_share:.0f}{mark}"


class _Tally:
    """Counts the intervals of a figure, by number of requests."""

    def __init__(self) -> None:
        self.found: dict[int, list[FigureInterval]] = {}

    def cell(self, process: Process, count: int, figure: str, truth: float) -> Cell:
        given = [each for each in self.found[count] if each.low is not None and each.high is not None]
        missed = sum(not each.low <= truth <= each.high for each in given)  # type: ignore[operator]
        runs = len(self.found[count])
        return Cell(process.name, count, figure, runs, len(given), missed, count >= process.least)


def _run(runs: Runs, row: int, count: int, good_limit: float) -> Iterator[tuple[str, FigureInterval]]:
    """Yield the intervals of the first requests of a run."""
    every, latencies = runs.starts[row], runs.latencies[row]
    part = slice(runs.before, runs.before + count)
    starts = every[part]
    values = latencies[part]
    in_flight = InFlight(requests_in_flight(every, every + latencies)[part])
    sample = Sample(values, in_flight)
    yield "mean", sample.mean()
    for percent in _PERCENTS:
        yield f"p{percent}", sample.percentile(percent)
    window = float(starts[0]), float(starts[-1])
    throughput = rate_interval(starts + values, None, in_flight, window)
    yield "throughput", throughput
    good = (values <= good_limit).astype(np.float64)
    share = share_interval(good, in_flight, sample.dependence)
    yield "goodput", product_interval(throughput, share)


def _steady_run(runs: Runs, row: int, count: int, good_limit: float) -> Iterator[tuple[str, FigureInterval]]:
    """Yield the intervals of the steady state of the first requests of a run that starts empty."""
    starts, latencies = _TICK * runs.starts[row, :count], runs.latencies[row, :count]
    known = {"start": starts, "intended": starts, "end": starts + _TICK * latencies, "request_latency": latencies}
    known["good"] = (latencies <= good_limit).astype(np.float64)
    known["status"] = np.zeros(count)
    scratch = Scratch(gettempdir())  # stays empty
    columns = {name: Column(scratch, ColumnLimits(in_memory=2 * count)) for name in (*TAGS, *known)}
    for name, column in columns.items():
        column.extend(known.get(name, np.full(count, np.nan)))
    scratch.close()
    table = SeriesTable(columns)
    window = steady_window(table, open_loop=True)
    found = {} if window is None else series_intervals(table, window, whole=False)
    scale = _TICK / 1e9
    for figure, tag, statistic in (
        ("mean", "request_latency", "avg"),
        *((f"p{percent}", "request_latency", f"p{percent}") for percent in _PERCENTS),
        ("throughput", "request_throughput", "avg"),
        ("goodput", "goodput", "avg"),
    ):
        each = found.get(tag, {}).get(statistic, FigureInterval())
        if statistic == "avg" and tag != "request_latency" and each.low is not None and each.high is not None:
            each = FigureInterval(scale * each.low, scale * each.high)
        yield figure, each


def _simulated(process: Process, rng: np.random.Generator, runs: int, count: int) -> list[Runs]:
    return [process.simulate(rng, min(_TOGETHER, runs - i), count, _DISCARDED) for i in range(0, runs, _TOGETHER)]


def cells(process: Process, runs: int, seed: int, counts: tuple[int, ...] = COUNTS) -> list[Cell]:
    """Return what the intervals of simulated runs contain. The truth is that of all runs together, in the long run."""
    longest = max(counts)
    rng = np.random.default_rng([seed, PROCESSES.index(process)])
    batches = stationary = _simulated(process, rng, runs, longest)
    judge = _run
    if process.in_the_long_run is not None:
        judge, stationary = _steady_run, _simulated(process.in_the_long_run, rng, runs, longest)
    latencies = np.concatenate([each.latencies[:, each.before :].ravel() for each in stationary])
    rate = _true_rate(stationary) if process.in_flight is None else process.in_flight / float(latencies.mean())
    quantiles = dict(zip(_PERCENTS, np.percentile(latencies, _PERCENTS).tolist(), strict=True))
    truth = {"mean": float(latencies.mean()), "throughput": rate, "goodput": rate * 0.9}
    truth |= {f"p{percent}": value for percent, value in quantiles.items()}
    tallies: dict[str, _Tally] = {figure: _Tally() for figure in truth}
    for count in counts:
        for batch in batches:
            for row in range(len(batch.starts)):
                for figure, interval in judge(batch, row, count, quantiles[90]):
                    tallies[figure].found.setdefault(count, []).append(interval)
    order = ("mean", *(f"p{percent}" for percent in _PERCENTS), "throughput", "goodput")
    return [tallies[figure].cell(process, count, figure, truth[figure]) for count in counts for figure in order]


def _true_rate(batches: list[Runs]) -> float:
    """Return the rate of starts, which is that of ends in the long run."""
    starts = [each.starts[:, each.before :] for each in batches]
    return float(
        np.mean([part.shape[1] - 1 for part in starts]) / np.mean([(p[:, -1] - p[:, 0]).mean() for p in starts])
    )


def error_cells(runs: int, seed: int, counts: tuple[int, ...] = COUNTS) -> list[Cell]:
    """Return the same for the share of failed requests, which are independent or come in bursts."""
    found = []
    rng = np.random.default_rng([seed, len(PROCESSES)])
    for name, stays in (("independent errors", 0.0), ("errors in bursts", 1 - 1 / _BURST)):
        process = Process(name, PROCESSES[0].simulate, 100 if not stays else 400)
        tally = _Tally()
        failed = _failures(rng, runs, max(counts), stays)
        for count in counts:
            tally.found[count] = [share_interval(row[:count]) for row in failed]
            found.append(tally.cell(process, count, "error rate", _ERROR_RATE))
    return found


def _failures(rng: np.random.Generator, runs: int, count: int, stays: float) -> Values:
    """Return 1 for the requests that fail: the mean length of a burst is 1 / (1 - stays)."""
    if not stays:
        return (rng.random((runs, count)) < _ERROR_RATE).astype(np.float64)
    begins = (1 - stays) * _ERROR_RATE / (1 - _ERROR_RATE)
    failed = np.empty((count, runs), np.bool_)
    state = rng.random(runs) < _ERROR_RATE
    for i in range(count):
        drawn = rng.random(runs)
        state = np.where(state, drawn < stays, drawn < begins)
        failed[i] = state
    return np.ascontiguousarray(failed.T).astype(np.float64)


def until_cell(name: str, target: str, runs: int, seed: int) -> Cell:
    """Return how often the intervals of the runs that `--until` ended contain the truth."""
    process = next(each for each in PROCESSES if each.name == name)
    simulated = _simulated(process, np.random.default_rng([seed, 100 + PROCESSES.index(process)]), runs, _LONGEST)
    latencies = np.concatenate([each.latencies[:, each.before :].ravel() for each in simulated])
    precision = parse_precision(target)
    truth = float(latencies.mean() if precision.statistic == "avg" else np.percentile(latencies, 90))
    intervals = [_until(precision, each, row) for each in simulated for row in range(len(each.starts))]
    ended = [each for each in intervals if each is not None]
    missed = sum(not each.low <= truth <= each.high for each in ended)  # type: ignore[operator]
    return Cell(name, _LONGEST, f"--until '{target}'", runs, len(ended), missed, True)


def _until(target: Precision, runs: Runs, row: int) -> FigureInterval | None:
    """Return the interval of a run at the checkpoint that ends it; None if none does."""
    starts, latencies = runs.starts[row], runs.latencies[row]
    counts = requests_in_flight(starts, starts + latencies)[runs.before :]
    values = latencies[runs.before :]
    checkpoints = Checkpoints(target)
    while checkpoints.next_at <= len(values):
        size = checkpoints.next_at
        if checkpoints.look(values[:size], InFlight(counts[:size])):
            return checkpoints.interval
    return None


def measure(name: str, runs: int, seed: int) -> list[Cell]:
    """Return the cases of one process, by its name."""
    if name == "errors":
        return error_cells(runs, seed)
    if name.startswith("until"):
        process, target = _UNTIL[int(name.split()[1])]
        return [until_cell(process, target, min(runs, 200), seed)]
    return cells(next(each for each in PROCESSES if each.name == name), runs, seed)


def _print(found: list[Cell]) -> None:
    """Print the cases of a process: for each number of requests, the printed share and the covering share of each figure."""
    if found[0].figure.startswith("--until"):
        (cell,) = found
        print(
            f"{cell.process}, {cell.figure} ended {cell.printed} of {cell.runs} runs; {cell.covered_share:.1%} cover."
        )
        return
    for process, count in dict.fromkeys((cell.process, cell.requests) for cell in found):
        row = [cell for cell in found if (cell.process, cell.requests) == (process, count)]
        shown = f"{count:,}" if row[0].judged else f"({count:,})"
        print(f"| {process} | {shown} | {' | '.join(cell.text for cell in row)} |", flush=True)


def _summary(every: list[Cell]) -> bool:
    """Print how many cases break the rules, and return whether they are few enough."""
    ends = [cell for cell in every if cell.figure.startswith("--until")]
    judged = [cell for cell in every if cell.judged and cell not in ends]
    missing = sum(cell.missing_share > 0.07 for cell in judged)
    often = [cell for cell in judged if cell.printed >= 0.25 * cell.runs]
    uncovered = sum(cell.covered_share < 0.90 for cell in often)
    far = sum(cell.breaks(0.10, 0.86) for cell in judged)
    most, least = math.floor(0.04 * len(judged)), math.floor(0.04 * len(often))
    print(f"\nMore than 7 % of the runs miss the truth in {missing} of {len(judged)} judged cases ({most} allowed);")
    print(f"fewer than 90 % of the printed intervals contain it in {uncovered} of {len(often)} ({least} allowed);")
    print(f"{far} cases are far off (0 allowed).")
    until = all(cell.covered_share >= 0.90 for cell in ends)
    return missing <= most and uncovered <= least and not far and until


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("process", nargs="?", default="")
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=2026)
    chosen = parser.parse_args()
    began = time.monotonic()
    of_until = [f"until {i}" for i in range(len(_UNTIL))]
    names = [name for name in (*(each.name for each in PROCESSES), "errors", *of_until) if chosen.process in name]
    print("| process | requests | mean | p50 | p90 | p95 | p99 | throughput | goodput |")
    print("|---|---|---|---|---|---|---|---|---|")
    # One thread for each process: numpy would start as many as there are cores.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("spawn")) as pool:
        # The longest ones begin first.
        order = sorted(names, key=lambda name: not name.startswith("until"))
        results = {name: pool.submit(measure, name, chosen.runs, chosen.seed) for name in order}
        for name in names:
            _print(results[name].result())
        every = list(chain.from_iterable(each.result() for each in results.values()))
    passed = _summary(every)
    print(f"Seed {chosen.seed}; {time.monotonic() - began:.0f} s.")
    return passed


if __name__ == "__main__":
    raise SystemExit(not main())
