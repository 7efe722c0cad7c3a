"""The functions of the Python API."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from penstock.api.options import parse_options, settings_of
from penstock.api.result import PointResult, Result, SweepResult
from penstock.comparison.compare_pairs import Comparison
from penstock.errors import RunError, UserError
from penstock.records.log import RunLog
from penstock.runs.experiment_report import report_experiment
from penstock.runs.observer import Observer
from penstock.runs.phase_runner import RunProgress
from penstock.runs.point_runner import PointRunner
from penstock.runs.points import Point, PointOutcome, Single
from penstock.runs.read_experiment import read_experiment
from penstock.runs.read_settings import asks_for_experiment
from penstock.runs.report_point import PointReport, report_point
from penstock.runs.run_experiment import report_ended, run_experiment
from penstock.runs.run_folder import RunFolder
from penstock.runs.start_run import StartedRun, start_run
from penstock.runs.stop_rules import CallerRule
from penstock.runs.stored_data import default_entries
from penstock.runs.upload import sent_results
from penstock.settings.resolve import resolve_load
from penstock.settings.schema import Settings

OnProgress = Callable[[RunProgress], None]


def profile(*, on_progress: OnProgress | None = None, **options: Any) -> Result:
    """Benchmark a server and return the results.

    The options are those of the command line with underscores: `profile(model="m", url="http://…", request_rate=5)`. True
    and False turn an option on and off, a list gives it several values, and a dict is taken for headers and extra inputs.
    `on_progress` is called about every 10 ms while requests are sent.
    """
    if asks_for_experiment(parse_options(options)):
        raise UserError("These options ask for several runs; use penstock.sweep, which returns a result for each.")
    settings = settings_of(options)
    with sent_results(settings), RunFolder(settings.output.folder) as folder:
        done = run_experiment(Single(settings), folder, _Observer(on_progress), spawn=True)
        report = report_point(RunLog(folder.log), settings.output.folder, done.tokenizer)
    if report.ending.input_error is not None:
        raise UserError(f"The run ended early: {report.ending.input_error}")
    return _result(report, settings.output.folder)


def sweep(
    *,
    on_progress: OnProgress | None = None,
    on_point: Callable[[PointResult], None] | None = None,
    **options: Any,
) -> SweepResult:
    """Run a sweep, repeated runs or a search, and return the results of all points.

    A list gives an option several values: `sweep(model="m", concurrency=[1, 8, 64])`. The other options are those of
    `profile`, with `num_profile_runs`, `sweep_type`, `sweep="auto"`, `find_max` and so on. A point that fails does not end the
    others. `on_point` is called with the result of each point when it ends, but not for the loads of a search, which have
    results only after its end.
    """
    parsed = parse_options(options, sweep=True)
    if not asks_for_experiment(parsed):
        raise UserError("These options ask for one run; use penstock.profile, or give a list of values.")
    experiment = read_experiment(parsed)
    settings = experiment.settings

    def ended(result: PointOutcome) -> None:
        if on_point is not None and result.point.rule is None:
            on_point(_point_result(result))

    with sent_results(settings), RunFolder(settings.output.folder) as folder:
        done = run_experiment(experiment, folder, _Observer(on_progress, ended), spawn=True)
        report = report_experiment(settings.output.folder, settings.experiment, done.results)
    if done.error is not None:
        raise RunError(done.error)
    points = [_point_result(result) for result in done.results]
    return SweepResult(points, report.variations, Path(settings.output.folder), report.search)


class Runner:
    """Runs several phases on the same workers, connections and dataset.

        with penstock.Runner(model="m", url=url, concurrency=64, request_count=500) as runner:
            for concurrency in (1, 8, 64):
                result = runner.run(concurrency=concurrency, request_count=100)

    The options of the constructor are those of `profile`, without a warmup. Workers and connections are sized for its load, so
    give the largest one; `request_count` is also the number of distinct synthetic prompts.
    """

    def __init__(self, *, on_progress: OnProgress | None = None, **options: Any) -> None:
        self._options = options
        self._settings = _with_entries(settings_of(options))
        if self._settings.warmup.on or self._settings.until:
            raise UserError(
                "penstock.Runner runs only the phases that you give to `run`. Leave out the warmup and `until`: run a phase as "
                "warmup, and give a function as `until` to `run`."
            )
        self._observer = _Observer(on_progress)
        self._stack = ExitStack()
        self._run: StartedRun | None = None
        self._points: PointRunner | None = None
        self._count = 0

    def __enter__(self) -> Runner:
        with ExitStack() as stack:
            stack.enter_context(sent_results(self._settings))
            folder = stack.enter_context(RunFolder(self._settings.output.folder))
            self._run = stack.enter_context(start_run(Single(self._settings), folder, self._observer, spawn=True))
            self._points = PointRunner(self._run, self._observer)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def load(self, **options: Any) -> None:
        """Replace the prompts. The options are those of the command line for the input: `isl`, `osl`, `input_file`, …"""
        settings = _with_entries(settings_of(self._options | options))
        self._settings = replace(self._settings, input=settings.input)

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
        if self._run is None or self._points is None:
            raise RuntimeError("use the Runner in a with statement")
        parsed = parse_options(load)
        others = [target for target in parsed.values if not target.startswith("load.")]
        if others:
            raise UserError(f"{parsed.spellings[others[0]]} is not an option of the load; give it to the Runner.")
        number, self._count = self._count, self._count + 1
        folder, label = self._settings.output.folder, f"phase_{number}"
        settings = replace(
            self._settings,
            load=resolve_load(parsed),
            output=replace(self._settings.output, folder=os.path.join(folder, label)),
        )
        seed = self._run.prepared.job.seed + number
        point = Point(settings, label, phase_name=name or label, goes_on=True, seed=seed)
        ended = self._points.run(point, None if until is None else CallerRule(until))
        if ended is None:
            raise RunError("The run has ended, so no phase can start.")
        if ended.unsent is not None:
            raise UserError(ended.unsent)
        report = report_ended(ended, folder, self._run.tokenizer).report
        assert report is not None
        return _result(report, settings.output.folder)


@contextmanager
def mock(**options: Any) -> Iterator[str]:
    """Run a mock server in a child process and yield its URL. The options are those of `penstock mock`: `ttft=20, itl=5`."""
    from penstock.mock_server.behaviour import read_options
    from penstock.mock_server.mock_process import MockProcess

    texts = [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in options.items()]
    with MockProcess(read_options(texts)) as process:
        yield process.url


def compare(
    first: Result | str | os.PathLike[str], second: Result | str | os.PathLike[str], *, metric: str | None = None
) -> Comparison:
    """Compare two runs, given as results or artifact folders. `metric` is the one to decide by."""
    from penstock.comparison.compare_pairs import compare as compare_pairs
    from penstock.comparison.read_runs import pair, read_requests

    paths = [str(run.folder) if isinstance(run, Result) else os.fspath(run) for run in (first, second)]
    for path in paths:
        if not os.path.exists(path):
            raise UserError(f"There is no run at '{path}'.")
    a, b = (read_requests(path, path) for path in paths)
    return compare_pairs(pair(a, b), throughput=True, metric=metric)


def _with_entries(settings: Settings) -> Settings:
    """Return the settings with the number of synthetic prompts, which does not depend on the loads of the phases."""
    if settings.input.file is not None or settings.input.entries is not None:
        return settings
    return replace(settings, input=replace(settings.input, entries=default_entries(settings)))


class _Observer(Observer):
    def __init__(self, on_progress: OnProgress | None, on_point: Callable[[PointOutcome], None] | None = None) -> None:
        self._on_progress = on_progress
        self._on_point = on_point

    def note(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)

    def point_ended(self, result: PointOutcome) -> None:
        if self._on_point is not None:
            self._on_point(result)

    def progress(self, progress: RunProgress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)


def _result(report: PointReport, folder: str) -> Result:
    return Result(report.summary, report.artifacts, folder)


def _point_result(result: PointOutcome) -> PointResult:
    point, report = result.point, result.report
    made = None if report is None else _result(report, point.settings.output.folder)
    return PointResult(point.label, point.parameters, point.trial, made, result.error)
