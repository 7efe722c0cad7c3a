"""Compare installed versions of Penstock, in turns: throughput, CPU time, memory and the gateway.

    python -m benchmarks.versions PROGRAM REFERENCE [REFERENCE ...]
    python -m benchmarks.versions --only bursts,gateway --rounds 20 .venv/bin/penstock /tmp/old/bin/penstock

PROGRAM and REFERENCE are executables, or checkouts that run with the packages of this environment. In each round every version
is measured once, in the opposite order of the round before, because the speed of a machine changes. A row shows the ratio of
PROGRAM to a REFERENCE, turned so that more is better, with a 95 % interval over the rounds. A comparison ends when each
interval is narrow enough, or after `--max-rounds`. An interval that lies wholly below 0.95 is a MISS; one that contains 0.95
is undecided (`?`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple

from benchmarks.far_end import far_end
from benchmarks.gateway import Server, gateway, latency, model_server, penstock_command, rate
from benchmarks.pinning import CLIENT, pinned_to
from benchmarks.run_memory import pss, tree
from penstock.metrics.confidence import interval

MIN_RATIO = 0.95
_LOAD = ("--isl", "50", "--num-dataset-entries", "100", "--osl", "100", "--random-seed", "1")
_CONCURRENCY = ("--concurrency", "64")


class Figure(NamedTuple):
    name: str
    unit: str
    more_is_better: bool = False


Measurement = Callable[[], dict[Figure, float]]


class Finished(NamedTuple):
    """A command that has ended, with the CPU time of all its processes."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    """Largest sum of the PSS of its processes, sampled; 0 if it was not asked for."""
    summary: Mapping[str, Mapping[str, float]]


def _run(program: str, *arguments: str, memory: bool = False) -> Finished:
    command, environment = penstock_command(program)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    peak = _Peak(process.pid) if memory else None
    output, _ = process.communicate(timeout=600)
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join([*command, *arguments])}\n{output.decode(errors='replace')}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    folder = arguments[arguments.index("--artifact-dir") + 1] if "--artifact-dir" in arguments else arguments[-1]
    with open(os.path.join(folder, "profile_export_aiperf.json"), "rb") as file:
        return Finished(wall, cpu, peak.stop() if peak else 0.0, json.load(file))


class _Peak:
    """The largest memory of a process and its descendants, sampled in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(0.02):
            self._bytes = max(self._bytes, sum(map(pss, tree(self._pid))))

    def stop(self) -> float:
        self._ended.set()
        self._thread.join()
        return self._bytes / 1e6


def _profile(program: str, url: str, *flags: str, requests: int, memory: bool = False) -> Finished:
    with tempfile.TemporaryDirectory() as folder, pinned_to(CLIENT):
        arguments = ["profile", "--model", "m", "--tokenizer", "builtin", "--url", url, "--artifact-dir", folder]
        arguments += [*_LOAD, *flags, "--request-count", str(requests)]
        return _run(program, *arguments, memory=memory)


@contextmanager
def _bursts(program: str, name: str, requests: int, *flags: str) -> Iterator[Measurement]:
    """Measure requests per second with one and two workers, and CPU time per request of the whole command with one."""
    with far_end(100) as server:

        def measure() -> dict[Figure, float]:
            figures = {}
            for workers in (1, 2):
                workers_flags = ("--workers-max", str(workers))
                done = _profile(program, server.url, *_CONCURRENCY, *workers_flags, *flags, requests=requests)
                throughput = Figure(f"{name}, {workers} worker{'s' * (workers > 1)}", "requests/s", True)
                figures[throughput] = done.summary["request_throughput"]["avg"]
                if workers == 1:
                    figures[Figure(f"{name}, CPU time of the command", "µs/request")] = done.cpu_s / requests * 1e6
            return figures

        yield measure


@contextmanager
def _paced(program: str) -> Iterator[Measurement]:
    """Measure the CPU time per event of 250 streams of 100 events/s, as the difference of a longer and a shorter run."""
    flags = ("--streaming", "--concurrency", "250", "--workers-max", "1")
    with far_end(100, 50_000, 10_000) as server:

        def measure() -> dict[Figure, float]:
            short, long = (_profile(program, server.url, *flags, requests=count).cpu_s for count in (250, 1750))
            return {Figure("250 paced streams, CPU time", "µs/event"): (long - short) / 150_000 * 1e6}

        yield measure


@contextmanager
def _small(program: str) -> Iterator[Measurement]:
    """Measure a run of 20 requests, from start to end."""
    with far_end(10) as server:

        def measure() -> dict[Figure, float]:
            done = _profile(program, server.url, "--streaming", requests=20, memory=True)
            return {
                Figure("20 requests, wall time", "s"): done.wall_s,
                Figure("20 requests, CPU time", "s"): done.cpu_s,
                Figure("20 requests, memory", "MB"): done.peak_mb,
            }

        yield measure


@contextmanager
def _report(program: str) -> Iterator[Measurement]:
    """Measure `penstock report` of a log that the version wrote itself."""
    requests = 30_000
    with far_end(20) as server, tempfile.TemporaryDirectory() as folder:
        command, environment = penstock_command(program)
        command += ["profile", "--model", "m", "--tokenizer", "builtin", "--url", server.url, "--artifact-dir", folder]
        command += [*_LOAD, *_CONCURRENCY, "--streaming", "--workers-max", "2", "--request-count", str(requests)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        yield lambda: {Figure("report, CPU time", "µs/request"): _run(program, "report", folder).cpu_s / requests * 1e6}


@contextmanager
def _gateway(program: str) -> Iterator[Measurement]:
    """Measure the gateway with one worker: requests per second, CPU time per request, and added latency.

    The client is the program of this environment for all versions.
    """
    with ExitStack() as stack:
        upstream = stack.enter_context(model_server(20))
        plain = stack.enter_context(gateway(upstream.url, program=program))
        guarded = stack.enter_context(gateway(upstream.url, guardrail=True, program=program))

        def measure() -> dict[Figure, float]:
            figures: dict[Figure, float] = {}
            for name, server, requests, flags in (
                ("gateway, whole replies", plain, 16_000, ()),
                ("gateway, streams", plain, 5_000, ("--streaming",)),
                ("gateway, guarded replies", guarded, 12_000, ()),
                ("gateway, guarded streams", guarded, 4_000, ("--streaming",)),
            ):
                figures |= _gateway_throughput(name, server, requests, flags)
            for name, tag, flags in (
                ("gateway, latency with it", "request_latency", ()),
                ("gateway, TTFT with it", "time_to_first_token", ("--streaming",)),
            ):
                figures[Figure(name, "ms")] = latency(plain.url, tag, *flags, requests=2000)
                direct = latency(upstream.url, tag, *flags, requests=1000)
                added = Figure(name.replace("with it", "added"), "ms")
                figures[added] = max(figures[Figure(name, "ms")] - direct, 0.001)
            return figures

        yield measure


def _gateway_throughput(name: str, server: Server, requests: int, flags: tuple[str, ...]) -> dict[Figure, float]:
    before = server.cpu_s()
    throughput = rate(server.url, requests, 32, *flags)
    return {
        Figure(name, "requests/s", True): throughput,
        Figure(f"{name}, CPU time", "µs/request"): (server.cpu_s() - before) / requests * 1e6,
    }


_PARTS: dict[str, Callable[[str], AbstractContextManager[Measurement]]] = {
    "bursts": lambda program: _bursts(program, "streams in bursts", 20_000, "--streaming"),
    "replies": lambda program: _bursts(program, "whole replies", 40_000),
    "paced": _paced,
    "small": _small,
    "report": _report,
    "gateway": _gateway,
}


def _ratios(figure: Figure, own: list[float], reference: list[float]) -> tuple[float, float, float]:
    """Return the mean ratio over the rounds, and its 95 % interval."""
    logs = [math.log(a / b) if figure.more_is_better else math.log(b / a) for a, b in zip(own, reference, strict=True)]
    found = interval(logs, 0.95)
    half = math.inf if found.half_width is None else found.half_width
    return math.exp(found.mean), math.exp(found.mean - half), math.exp(found.mean + half)


def _compare(part: str, programs: list[str], rounds: int, max_rounds: int, width: float) -> bool:
    """Measure all programs in turns until each interval is narrow, and print a row for each figure and reference."""
    values: list[dict[Figure, list[float]]] = [{} for _ in programs]
    with ExitStack() as stack:
        measurements = [stack.enter_context(_PARTS[part](program)) for program in programs]
        done = 0
        while done < rounds or (done < max_rounds and _widest(values) > width):
            order = range(len(programs)) if done % 2 == 0 else range(len(programs) - 1, -1, -1)
            for index in order:
                for figure, value in measurements[index]().items():
                    values[index].setdefault(figure, []).append(value)
            done += 1
    missed = False
    for program, reference in zip(programs[1:], values[1:], strict=True):
        print(f"\n{part} compared with {program}, {done} rounds")
        for figure, own in values[0].items():
            ratio, low, high = _ratios(figure, own, reference[figure])
            mark = "ok  " if low >= MIN_RATIO else "MISS" if high < MIN_RATIO else "?   "
            missed |= high < MIN_RATIO
            medians = f"{statistics.median(own):,.2f} and {statistics.median(reference[figure]):,.2f} {figure.unit}"
            print(f"{mark}  {figure.name:<46} {medians:>40}  {ratio:.3f} ({low:.3f} to {high:.3f})", flush=True)
    return not missed


def _widest(values: list[dict[Figure, list[float]]]) -> float:
    intervals = [
        _ratios(figure, own, reference[figure])[1:] for reference in values[1:] for figure, own in values[0].items()
    ]
    return max((high - low for low, high in intervals), default=math.inf)


def main() -> int:
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=description)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM", help="this version first, then its references")
    parser.add_argument("--only", default=",".join(_PARTS), help=f"parts to measure, of: {', '.join(_PARTS)}")
    parser.add_argument("--rounds", type=int, default=15, help="rounds at least (15)")
    parser.add_argument("--max-rounds", type=int, default=40, help="rounds at most (40)")
    parser.add_argument("--width", type=float, default=0.08, help="width of each interval at most (0.08)")
    arguments = parser.parse_args()
    if len(arguments.programs) < 2:
        parser.error("give at least two programs")
    parts = arguments.only.split(",")
    if unknown := set(parts) - set(_PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    limits = (arguments.rounds, arguments.max_rounds, arguments.width)
    results = [_compare(part, arguments.programs, *limits) for part in parts]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
