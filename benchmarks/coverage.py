"""How often the confidence intervals of simulated runs contain the truth, and how often there is one.

python -m benchmarks.coverage                       400 runs of each case, on two cores
python -m benchmarks.coverage --runs 100 --seed 5   fewer runs, other random numbers
python -m benchmarks.coverage M/M/4                 only the processes with this name

For each process, number of requests and figure the table shows the percentage of the runs that print an interval, and the
percentage of these that contain the true value. A case is kept if at most 7 % of all runs print an interval that misses it,
and, where at least 25 % print one, at least 90 % of these contain it. Exact intervals break the first rule in 3 % of the cases
by chance, so the benchmark passes if at most 4 % of the cases break a rule and none breaks it by far (10 %; 86 %).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np

from benchmarks.simulated_runs import PROCESSES, Process, Runs
from penstock.metrics.dependence import InFlight, requests_in_flight
from penstock.metrics.intervals import FigureInterval, Sample, product_interval, rate_interval, share_interval
from penstock.metrics.precision import Checkpoints, Precision, parse_precision
from penstock.metrics.statistics import Values

__all__ = ["COUNTS", "Cell", "cells", "error_cells", "measure", "until_cells"]

COUNTS = (100, 400, 1_000, 5_000, 50_000)
_DISCARDED = 20_000
_PERCENTS = (50, 90, 95, 99)
_TOGETHER = 100
"""Runs that are simulated at the same time; more would take too much memory."""
_ERROR_RATE, _BURST = 0.02, 20
"""Share of the requests that fail, and the mean number of those that fail in a row."""
_MIN_BURSTS = 10
"""Bursts from which on their intervals are judged. A run without one cannot know that failures come in bursts."""


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


def cells(process: Process, runs: int, seed: int, counts: tuple[int, ...] = COUNTS) -> list[Cell]:
    """Return what the intervals of simulated runs contain. The truth is that of all runs together."""
    longest = max(counts)
    rng = np.random.default_rng([seed, PROCESSES.index(process)])
    batches = [
        process.simulate(rng, min(_TOGETHER, runs - first), longest, _DISCARDED) for first in range(0, runs, _TOGETHER)
    ]
    latencies = np.concatenate([each.latencies[:, each.before :].ravel() for each in batches])
    rate = _true_rate(batches) if process.in_flight is None else process.in_flight / float(latencies.mean())
    quantiles = dict(zip(_PERCENTS, np.percentile(latencies, _PERCENTS).tolist(), strict=True))
    truth = {"mean": float(latencies.mean()), "throughput": rate, "goodput": rate * 0.9}
    truth |= {f"p{percent}": value for percent, value in quantiles.items()}
    tallies: dict[str, _Tally] = {figure: _Tally() for figure in truth}
    for count in counts:
        for batch in batches:
            for row in range(len(batch.starts)):
                for figure, interval in _run(batch, row, count, quantiles[90]):
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
        process = Process(name, PROCESSES[0].simulate, 100 if not stays else _MIN_BURSTS * round(_BURST / _ERROR_RATE))
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


def until_cells(runs: int, seed: int, longest: int = 204_800) -> list[Cell]:
    """Return how often the intervals of the runs that `--until` ended contain the truth, for a mean and a p90."""
    found = []
    for name in ("independent, lognormal", "M/M/4 at 0.7"):
        process = next(each for each in PROCESSES if each.name == name)
        rng = np.random.default_rng([seed, 100 + PROCESSES.index(process)])
        simulated = [
            process.simulate(rng, min(_TOGETHER, runs - i), longest, _DISCARDED) for i in range(0, runs, _TOGETHER)
        ]
        latencies = np.concatenate([each.latencies[:, each.before :].ravel() for each in simulated])
        for target, truth in (("avg", float(latencies.mean())), ("p90", float(np.percentile(latencies, 90)))):
            precision = parse_precision(f"{target} request_latency ±{5 if target == 'avg' else 10}%")
            intervals = [_until(precision, each, row) for each in simulated for row in range(len(each.starts))]
            ended = [each for each in intervals if each is not None]
            missed = sum(not each.low <= truth <= each.high for each in ended)  # type: ignore[operator]
            found.append(Cell(name, longest, f"--until '{precision.text}'", runs, len(ended), missed, True))
    return found


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
    if name == "until":
        return until_cells(min(runs, 200), seed)
    return cells(next(each for each in PROCESSES if each.name == name), runs, seed)


def _print(found: list[Cell]) -> None:
    """Print the cases of a process: for each number of requests, the printed share and the covering share of each figure."""
    if found[0].figure.startswith("--until"):
        for cell in found:
            print(
                f"\n{cell.process}, {cell.figure} ended {cell.printed} of {cell.runs} runs; {cell.covered_share:.1%} cover."
            )
        return
    for count in dict.fromkeys(cell.requests for cell in found):
        row = [cell for cell in found if cell.requests == count]
        for process in dict.fromkeys(cell.process for cell in row):
            texts = [cell.text for cell in row if cell.process == process]
            shown = f"{count:,}" if row[0].judged else f"({count:,})"
            print(f"| {process} | {shown} | {' | '.join(texts)} |", flush=True)


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("process", nargs="?", default="")
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=2026)
    chosen = parser.parse_args()
    names = [name for name in (*(each.name for each in PROCESSES), "errors", "until") if chosen.process in name]
    print("| process | requests | mean | p50 | p90 | p95 | p99 | throughput | goodput |")
    print("|---|---|---|---|---|---|---|---|---|")
    every: list[Cell] = []
    with ProcessPoolExecutor(2) as pool:
        for found in pool.map(measure, names, [chosen.runs] * len(names), [chosen.seed] * len(names)):
            _print(found)
            every += found
    judged = [cell for cell in every if cell.judged]
    missing = sum(cell.missing_share > 0.07 for cell in judged)
    often = [cell for cell in judged if cell.printed >= 0.25 * cell.runs]
    uncovered = sum(cell.covered_share < 0.90 for cell in often)
    far = sum(cell.breaks(0.10, 0.86) for cell in judged)
    print(f"\n{missing} of {len(judged)} judged cases have more than 7 % of runs whose interval misses the truth;")
    print(f"in {uncovered} of {len(often)} less than 90 % of the printed intervals contain it; {far} are far off.")
    return missing <= math.floor(0.04 * len(judged)) and uncovered <= math.floor(0.04 * len(often)) and not far


if __name__ == "__main__":
    raise SystemExit(not main())
