"""The Python API: benchmarks from a script, a notebook or a test.

    import penstock

    with penstock.mock(ttft=20, itl=5) as url:
        result = penstock.profile(model="test", url=url, streaming=True, concurrency=4, request_count=40)
    print(result.metrics["time_to_first_token"].p99, result.certificate.verdict)

Nothing here prints, forks the calling process, or touches its signal handlers, garbage collector and event loop: workers are
new interpreters. A mistake in an option raises `UserError` with the sentence that the command line would print.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.cli.parse import parse
from penstock.cli.profile import COMMAND_LINE
from penstock.cli.read_settings import read_settings
from penstock.compare.comparison import Comparison
from penstock.errors import RunError, UserError
from penstock.metrics.bounds import FigureBounds
from penstock.metrics.certificate import Certificate
from penstock.metrics.statistics import Stats
from penstock.metrics.summary import Summary
from penstock.reports.artifacts import Artifacts
from penstock.runs.execute import OpenedRun, execute, open_run
from penstock.runs.observer import Observer
from penstock.runs.run_folder import RunFolder
from penstock.runs.runner import PhaseResult, RunProgress
from penstock.runs.summarise import RunReport, summarise
from penstock.schedule.phases import phases
from penstock.settings.flags.flag import Flag, by_spelling
from penstock.settings.resolve import resolve_load
from penstock.settings.schema import Settings, WarmupSettings

if TYPE_CHECKING:
    from penstock.settings.flag_values import ParsedArguments

__all__ = ["Request", "Result", "Runner", "compare", "mock", "profile"]

OnProgress = Callable[[RunProgress], None]


class MetricValue(msgspec.Struct, frozen=True):
    value: float | list[float]
    unit: str


class Request(msgspec.Struct, frozen=True):
    """One request, as in the per-request file."""

    metadata: dict[str, Any]
    """When it was sent and by whom, with AIPerf's names: `request_start_ns`, `session_num`, `turn_index`, …"""
    metrics: dict[str, MetricValue]
    error: dict[str, Any] | None = None
    """None if it succeeded."""

    def __getitem__(self, tag: str) -> float | list[float]:
        """Return the value of a metric."""
        return self.metrics[tag].value


class Result:
    """The results of a run or of one phase."""

    def __init__(self, summary: Summary, artifacts: Artifacts, folder: str) -> None:
        if summary.certificate is None:
            raise RunError("The run has no certificate.")
        self.summary = summary
        """All figures and notes of the report."""
        self.folder = Path(folder)
        """The artifact folder."""
        self._artifacts = artifacts
        self._certificate = summary.certificate

    @property
    def metrics(self) -> Mapping[str, Stats]:
        """Statistics by metric; `docs/metrics.md` describes the metrics."""
        return self.summary.metrics

    @property
    def bounds(self) -> Mapping[str, Mapping[str, FigureBounds]]:
        """Bounds of the true values, by metric and statistic, for the headline figures that are not exactly known."""
        return self.summary.bounds

    @property
    def certificate(self) -> Certificate:
        """Whether the figures can be trusted: `verdict` is VALID, DEGRADED or INVALID, and `reasons` say why."""
        return self._certificate

    def requests(self) -> Iterator[Request]:
        """Yield the requests of the profiling phases, in the order in which they ended."""
        path = self._artifacts.records
        if path is None:
            raise UserError("--export-level summary writes no records; leave it out to read them.")
        decode = msgspec.json.Decoder(Request).decode
        with open(path, "rb") as file:
            for line in file:
                request = decode(line)
                if request.metadata.get("benchmark_phase") == "profiling":
                    yield request

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """Return one array for each metric with one value per request, and the start and end of each request (Unix ns).

        A request without a metric has NaN. Metrics with a list of values for each request are left out."""
        rows = list(self.requests())
        tags = dict.fromkeys(tag for row in rows for tag in row.metrics)
        columns = {
            name: np.array([row.metadata.get(name, np.nan) for row in rows], dtype=np.float64)
            for name in ("request_start_ns", "request_end_ns")
        }
        for tag in tags:
            values = [row.metrics[tag].value if tag in row.metrics else np.nan for row in rows]
            if not any(isinstance(value, list) for value in values):
                columns[tag] = np.array(values, dtype=np.float64)
        return columns

    def __str__(self) -> str:
        """Return the tables of the report."""
        from penstock.reports.console import console_text

        return console_text(self.summary)

    def __repr__(self) -> str:
        return f"<Result of {self.summary.succeeded} requests, {self._certificate.verdict}, in {self.folder}>"


def profile(*, on_progress: OnProgress | None = None, **options: Any) -> Result:
    """Benchmark a server and return the results.

    The options are those of the command line with underscores: `profile(model="m", url="http://…", request_rate=5)`. True
    and False turn an option on and off, a list gives it several values, and a dict is taken for headers and extra inputs.
    `on_progress` is called about every 10 ms while requests are sent.
    """
    settings = _settings(options)
    with RunFolder(settings.output.folder) as folder:
        done = execute(settings, folder, _Observer(on_progress), spawn=True)
        report = summarise(
            settings.output.folder,
            tokenizer=done.tokenizer,
            interrupted=done.interrupts > 0,
            input_error=done.input_error,
        )
    if done.input_error is not None:
        raise UserError(f"The run ended early: {done.input_error}")
    return _result(report, settings.output.folder)


class Runner:
    """Runs several phases on the same workers, connections and dataset.

        with penstock.Runner(model="m", url=url, concurrency=64, request_count=500) as runner:
            for concurrency in (1, 8, 64):
                result = runner.run(concurrency=concurrency, request_count=100)

    The options of the constructor are those of `profile`. Workers and connections are sized for its load, so give the
    largest one; `request_count` is also the number of distinct synthetic prompts.
    """

    def __init__(self, *, on_progress: OnProgress | None = None, **options: Any) -> None:
        self._settings = _settings(options)
        self._observer = _Observer(on_progress)
        self._stack = ExitStack()
        self._opened: OpenedRun | None = None
        self._folder: RunFolder | None = None
        self._position = 0
        self._count = 0

    def __enter__(self) -> Runner:
        with ExitStack() as stack:
            folder = stack.enter_context(RunFolder(self._settings.output.folder))
            self._opened = stack.enter_context(open_run(self._settings, folder, self._observer, spawn=True))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(
        self,
        *,
        name: str | None = None,
        until: Callable[[RunProgress], bool] | None = None,
        **load: Any,
    ) -> Result:
        """Run a phase with this load and return its results. Its files are in a subfolder, `phase_0`, `phase_1`, …

        The options are those of the command line for the load: `concurrency`, `request_rate`, `arrival_pattern`,
        `request_count`, `benchmark_duration` and so on. `until` is called about every 10 ms, and the phase ends early when
        it returns True."""
        opened = self._opened
        if opened is None:
            raise RuntimeError("use the Runner in a with statement")
        parsed = _parse(load)
        others = [target for target in parsed.values if not target.startswith("load.")]
        if others:
            raise UserError(f"{parsed.spellings[others[0]]} is not an option of the load; give it to the Runner.")
        number, self._count = self._count, self._count + 1
        (phase,) = phases(
            resolve_load(parsed),
            WarmupSettings(),
            synthetic=opened.dataset.synthetic,
            seed=opened.prepared.job.seed + number,
            several_turns=max(opened.dataset.turns, default=1) > 1,
        )
        phase = msgspec.structs.replace(phase, name=name or f"phase_{number}", first=self._position, point=number)
        running = opened.runner.start(phase)
        if running is None:
            raise RunError("The run has ended, so no phase can start.")
        result: PhaseResult = running.wait(None if until is None else lambda phase: until(phase.progress))
        self._position = result.next_position
        folder = self._settings.output.folder
        into = os.path.join(folder, f"phase_{number}")
        return _result(summarise(folder, tokenizer=opened.tokenizer, phase=result.index, into=into), into)


@contextmanager
def mock(**options: Any) -> Iterator[str]:
    """Run a mock server in a child process and yield its URL. The options are those of `penstock mock`: `ttft=20, itl=5`."""
    from penstock.mock.behaviour import read_options
    from penstock.mock.mock_process import MockProcess

    texts = [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in options.items()]
    with MockProcess(read_options(texts)) as process:
        yield process.url


def compare(
    first: Result | str | os.PathLike[str], second: Result | str | os.PathLike[str], *, metric: str | None = None
) -> Comparison:
    """Compare two runs, given as results or artifact folders. `metric` is the one to decide by."""
    from penstock.compare.comparison import compare as compare_pairs
    from penstock.compare.read_runs import pair, read_requests

    paths = [str(run.folder) if isinstance(run, Result) else os.fspath(run) for run in (first, second)]
    for path in paths:
        if not os.path.exists(path):
            raise UserError(f"There is no run at '{path}'.")
    a, b = (read_requests(path, path) for path in paths)
    return compare_pairs(pair(a, b), throughput=True, metric=metric)


class _Observer(Observer):
    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress

    def progress(self, progress: RunProgress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)


def _result(report: RunReport, folder: str) -> Result:
    return Result(report.summary, report.artifacts, folder)


def _settings(options: Mapping[str, Any]) -> Settings:
    return read_settings(_parse(options))


def _parse(options: Mapping[str, Any]) -> ParsedArguments:
    """Parse options as the command line would."""
    rows = by_spelling(COMMAND_LINE.flags)
    words: list[str] = []
    for name, value in options.items():
        spelling = f"--{name.replace('_', '-')}"
        flag = rows.get(spelling)
        if value is not None:
            words += _words(spelling, flag if isinstance(flag, Flag) else None, value)
    return parse(COMMAND_LINE, words)


def _words(spelling: str, flag: Flag | None, value: Any) -> list[str]:
    """Return the words for an option. Those without a flag are refused by the parser."""
    if isinstance(value, dict):
        return [f"{spelling}={json.dumps(value)}"]
    if isinstance(value, list | tuple):
        texts = [str(item) for item in value]
        return (
            [f"{spelling}={','.join(texts)}"] if flag and flag.comma_separated else [f"{spelling}={t}" for t in texts]
        )
    if isinstance(value, bool):
        return [f"{spelling}={str(value).lower()}"]
    return [f"{spelling}={os.fspath(value) if isinstance(value, os.PathLike) else value}"]
