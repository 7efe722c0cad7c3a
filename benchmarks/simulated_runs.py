"""Simulated runs with known truth: requests of queues, closed loops, batches and pauses, as the client sees them.

A process simulates many runs at the same time, one in each row, so that a step costs one numpy operation for all of them. Times
are in units of a mean service time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from penstock.metrics.statistics import Values

__all__ = ["PROCESSES", "Process", "Runs", "closed_loop", "constant", "exponential", "open_loop", "series"]

_HIGH, _HIGH_SHARE = 5.0, 0.3
"""Distance of the modes of bimodal values, and the share of the upper one."""
_PAUSE_EVERY, _PAUSE = 100.0, 12.0
"""A pausing server stops for 0.6 s every 5 s, in units of 50 ms."""

_GAP = 0.001
"""Time between a reply and the next request."""

Sampler = Callable[[np.random.Generator, int], Values]


class Runs(NamedTuple):
    """Requests in the order of their starts, a run in each row."""

    starts: Values
    latencies: Values
    before: int = 0
    """Requests at the beginning of each row that the run does not include: they are discarded."""


Simulate = Callable[[np.random.Generator, int, int, int], Runs]
"""Takes the random numbers, the number of runs, of requests in each, and of the requests to discard."""


class Process(NamedTuple):
    name: str
    simulate: Simulate
    least: int = 400
    """Requests from which on the intervals are judged."""
    in_flight: int | None = None
    """Requests in flight of a closed loop."""
    in_the_long_run: Process | None = None
    """The same process in its steady state, if this one starts with an empty server: the truth of its steady-state rows."""


def series(margin: str, correlation: float) -> Simulate:
    """Return requests one after the other, whose values are independent or a first-order autoregressive process."""

    def simulate(rng: np.random.Generator, runs: int, count: int, discarded: int) -> Runs:
        del discarded
        if margin == "bimodal":
            values = _HIGH * (rng.random((runs, count)) < _HIGH_SHARE) + rng.standard_normal((runs, count))
        else:
            values = rng.standard_normal((runs, count))
            for i in range(1, count) if correlation else ():
                values[:, i] = correlation * values[:, i - 1] + math.sqrt(1 - correlation**2) * values[:, i]
            if margin == "lognormal":
                values = np.exp(values)
        latencies = 20 + values
        return Runs(np.cumsum(latencies + _GAP, axis=1) - latencies, latencies)

    return simulate


def exponential(rng: np.random.Generator, runs: int) -> Values:
    return rng.exponential(size=runs)


def varied(rng: np.random.Generator, runs: int) -> Values:
    """Return service times with a mean of 1 and a coefficient of variation of 2: lognormal."""
    return np.exp(math.sqrt(math.log(5)) * rng.standard_normal(runs) - math.log(5) / 2)


def open_loop(slots: int, load: float, service: Sampler = exponential, *, empty: bool = False) -> Simulate:
    """Return requests that arrive at random (Poisson) at a server with slots and a queue."""

    def simulate(rng: np.random.Generator, runs: int, count: int, discarded: int) -> Runs:
        discarded = 0 if empty else discarded
        total = count + discarded
        arrivals = np.cumsum(rng.exponential(1 / (load * slots), (total, runs)), axis=0)
        free = np.zeros((slots, runs))
        each = np.arange(runs)
        latencies = np.empty((total, runs))
        for i in range(total):
            slot = free.argmin(axis=0) if slots > 1 else 0
            end = np.maximum(free[slot, each], arrivals[i]) + service(rng, runs)
            free[slot, each] = end
            latencies[i] = end - arrivals[i]
        return Runs(arrivals.T, np.ascontiguousarray(latencies.T), discarded)

    return simulate


def unlimited(in_flight: float) -> Simulate:
    """Return requests that arrive at random at a server that never makes them wait; their latencies are independent."""

    def simulate(rng: np.random.Generator, runs: int, count: int, discarded: int) -> Runs:
        discarded = min(discarded, round(20 * in_flight))
        total = count + discarded
        starts = np.cumsum(rng.exponential(1 / in_flight, (runs, total)), axis=1)
        return Runs(starts, np.exp(0.5 * rng.standard_normal((runs, total)) - 0.125), discarded)

    return simulate


def closed_loop(in_flight: int, slots: int | None, service: Sampler, pause: float = 0.0) -> Simulate:
    """Return requests that start when an earlier one has ended, after a random pause, at a server with a queue."""

    def simulate(rng: np.random.Generator, runs: int, count: int, discarded: int) -> Runs:
        discarded = min(discarded, 100 * in_flight) if slots is None or slots < in_flight else discarded
        discarded = 0 if slots is None else discarded
        total = count + discarded
        each = np.arange(runs)
        ends = np.zeros((in_flight, runs))
        free = np.zeros((slots or 1, runs))
        starts, latencies = np.empty((total, runs)), np.empty((total, runs))
        for i in range(total):
            client = ends.argmin(axis=0)
            start = ends[client, each]
            begin = start
            if slots is not None:
                slot = free.argmin(axis=0)
                begin = np.maximum(free[slot, each], start)
            end = begin + service(rng, runs)
            if slots is not None:
                free[slot, each] = end
            ends[client, each] = end + (pause * rng.exponential(size=runs) if pause else 0.0)
            starts[i], latencies[i] = start, end - start
        return Runs(np.ascontiguousarray(starts.T), np.ascontiguousarray(latencies.T), discarded)

    return simulate


def even(rng: np.random.Generator, runs: int) -> Values:
    """Return service times between 0.9 and 1.1."""
    return rng.uniform(0.9, 1.1, runs)


def constant(rng: np.random.Generator, runs: int) -> Values:
    """Return service times that differ by 0.1 %."""
    return 1 + 0.001 * np.abs(rng.standard_normal(runs))


def batching(size: int, load: float) -> Simulate:
    """Return requests that arrive at random at a server that processes all waiting ones at once, at most `size`."""

    def simulate(rng: np.random.Generator, runs: int, count: int, discarded: int) -> Runs:
        total = count + discarded
        arrivals = np.cumsum(rng.exponential(1 / (load * size), (runs, total)), axis=1)
        latencies = np.empty((runs, total))
        each = np.arange(runs)
        at, free = np.zeros(runs, np.int64), np.zeros(runs)
        while (at < total).any():
            first = np.minimum(at, total - 1)
            begin = np.maximum(free, arrivals[each, first])
            end = begin + rng.uniform(0.8, 1.2, runs)
            taken = at
            for offset in range(size):
                index = np.minimum(at + offset, total - 1)
                chosen = (at + offset < total) & (arrivals[each, index] <= begin)
                latencies[each[chosen], index[chosen]] = (end - arrivals[each, index])[chosen]
                taken = taken + chosen
            at, free = taken, end
        return Runs(arrivals, latencies, discarded)

    return simulate


def pausing(rate: float) -> Simulate:
    """Return requests that arrive at random at a server without a queue, which pauses regularly."""

    def simulate(rng: np.random.Generator, runs: int, count: int, discarded: int) -> Runs:
        discarded = min(discarded, 1000)
        total = count + discarded
        starts = np.cumsum(rng.exponential(1 / rate, (runs, total)), axis=1) + rng.uniform(0, _PAUSE_EVERY, (runs, 1))
        work = np.exp(0.5 * rng.standard_normal((runs, total)) - 0.125)
        phase = starts % _PAUSE_EVERY
        wait = np.maximum(0.0, _PAUSE - phase)
        latencies = wait + work
        late = np.maximum(phase, _PAUSE) + work > _PAUSE_EVERY
        return Runs(starts, latencies + _PAUSE * late, discarded)

    return simulate


_LOADS = (0.5, 0.7, 0.8, 0.9)

PROCESSES = (
    Process("independent, normal", series("normal", 0.0), 100),
    Process("independent, lognormal", series("lognormal", 0.0), 100),
    Process("independent, bimodal", series("bimodal", 0.0), 100),
    Process("independent, 64 in flight", unlimited(64.0), 400),
    Process("AR(1) 0.5", series("normal", 0.5), 100),
    Process("AR(1) 0.9", series("normal", 0.9), 100),
    *(Process(f"M/M/1 at {load}", open_loop(1, load)) for load in _LOADS),
    *(Process(f"M/M/4 at {load}", open_loop(4, load)) for load in _LOADS),
    *(Process(f"M/G/4 at {load}", open_loop(4, load, varied)) for load in _LOADS),
    Process("closed loop, 8, lockstep", closed_loop(8, None, constant), in_flight=8),
    Process("closed loop, 64, lockstep", closed_loop(64, None, constant), 640, in_flight=64),
    Process("closed loop, 8, mixed", closed_loop(8, 4, exponential), in_flight=8),
    Process("closed loop, 64, mixed", closed_loop(64, 16, exponential), 640, in_flight=64),
    Process("closed loop, 64, full", closed_loop(64, 56, exponential), 640, in_flight=64),
    # Its requests are nearly in step, and misses of a percentile come in waves for many rounds.
    Process("closed loop, 24, even", closed_loop(24, 10, even), 5000),
    Process("closed loop, 24, even, pauses", closed_loop(24, 10, even, 0.005), 5000),
    Process("batches of 8", batching(8, 0.7)),
    Process("pause every 5 s", pausing(1.0), 1000),
    Process(
        "M/M/4 at 0.8, steady state", open_loop(4, 0.8, empty=True), in_the_long_run=Process("", open_loop(4, 0.8))
    ),
)
