"""Repeated runs, sweeps and searches on the terminal: progress, a line for each point, and the tables over all points."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED
from penstock.cli.progress import Display, step_progress
from penstock.cli.run import TerminalObserver, check_remote, copy_results, explain_early_interrupt, open_folder
from penstock.cli.run_report import check_summary, failed_assertions, parse_assertions
from penstock.cli.screen import draw_on
from penstock.plural import counted
from penstock.records.log import RunLog
from penstock.reports.experiment_tables import draw_repeated, draw_search, draw_sweep
from penstock.reports.search_page import limit_sentence
from penstock.runs.experiment import FinishedExperiment, run_experiment
from penstock.runs.experiment_report import ExperimentReport, report_experiment, report_points
from penstock.runs.points import Experiment, Point, PointResult
from penstock.runs.prepare import Prepared
from penstock.runs.run_folder import LOG_FOLDER, RunFolder
from penstock.schedule.phase import Phase
from penstock.settings.schema import ExperimentSettings, Settings

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.metrics.capacity import SearchOutcome
    from penstock.metrics.conditions import Condition
    from penstock.metrics.summary import Summary

__all__ = ["ExperimentObserver", "describe", "profile", "report_again", "search_status", "show"]


def profile(experiment: Experiment) -> int:
    """Run an experiment, print its tables, and return the exit status."""
    settings = experiment.settings
    assertions = parse_assertions(settings)
    check_remote(settings)
    output = settings.output
    with open_folder(output.folder) as folder:
        observer = ExperimentObserver(settings, folder, describe(experiment), count_points(experiment))
        with explain_early_interrupt(folder):
            done = run_experiment(experiment, folder, observer)
        report = report_experiment(output.folder, settings.experiment, done.results)
    if not output.quiet:
        state = "interrupted" if done.interrupts else "complete" if done.error is None else "ended early"
        print(f"Benchmark {state}. Results saved to: {os.path.join(output.folder, '')}")
        show(report, settings.experiment)
    copy_results(settings)
    if report.search is not None:
        return search_status(done, report.search, quiet=output.quiet)
    return _status(done, settings, assertions)


def report_again(
    folder: str,
    into: str,
    tokenizer: str | None,
    *,
    show_http: bool = False,
    show_timeline: bool = False,
    html: bool = True,
) -> int:
    """Write all files of an experiment again from its log, print its tables, and return the exit status."""
    settings = RunLog.read_header(os.path.join(folder, LOG_FOLDER)).settings
    results = []
    progress = step_progress("Counting tokens and writing records", True)
    for result in report_points(
        folder,
        into=into,
        tokenizer=tokenizer,
        progress=progress,
        show_http=show_http,
        show_timeline=show_timeline,
        html=html,
    ):
        results.append(result)
        print(_line(result))
    report = report_experiment(folder, settings.experiment, results, into)
    print(f"Results saved to: {os.path.join(into, '')}")
    show(report, settings.experiment)
    return 0


def describe(experiment: Experiment) -> str | None:
    """Describe the loads of a sweep; return None for repeated runs, which all have the load of the settings."""
    settings = experiment.settings.experiment
    if not settings.parameters:
        return None
    if settings.find_max is not None:
        name = settings.find_max.replace("-", " ")
        return f"{name} from {settings.search_min:g} up to {settings.search_max:g} under {' and '.join(settings.slos)}"
    if settings.sweep == "auto":
        return f"concurrency from 1 up to saturation, at most {experiment.largest[0].load.concurrency}"
    names = " and ".join(name.replace("_", " ") for name in settings.parameters)
    runs = f", {settings.runs} runs each" if settings.runs > 1 else ""
    return f"{counted(len(experiment.largest), 'point')} of {names}{runs}"


def count_points(experiment: Experiment) -> int | None:
    """Return how many points there will be; None if the results decide."""
    settings = experiment.settings.experiment
    if settings.sweep == "auto" or settings.convergence_metric is not None or settings.find_max is not None:
        return None
    return max(1, len(experiment.largest)) * settings.runs


class ExperimentObserver(TerminalObserver):
    """Prints a line for each point."""

    def __init__(self, settings: Settings, folder: RunFolder, load: str | None, points: int | None) -> None:
        super().__init__(settings, folder, load)
        self._point_count = points
        self._phases: list[Phase] = []
        self._expected: list[int | None] = []

    def _make_display(self, prepared: Prepared) -> Display:
        del prepared
        return Display(self._phases, self._expected, final_lines=False)

    def point_begins(self, point: Point, phases: list[Phase], expected: list[int | None]) -> None:
        name = point.name
        self._phases += [
            replace(phase, name=name if phase.kind == "profiling" else f"{name}, warmup") for phase in phases
        ]
        self._expected += expected
        if self._feed is not None:
            self._feed.builder.begin_point(name, phases, expected)

    @property
    def _points(self) -> int | None:
        return self._point_count

    def point_ended(self, result: PointResult) -> None:
        if self._display is not None:
            self._display.finish()
        if self._feed is not None:
            self._feed.builder.end_point(_short_line(result), failed=result.error is not None)
        if not self._output.quiet:
            self._print(_line(result))


def _line(result: PointResult) -> str:
    """Return the line about a point that has ended."""
    name = result.point.name
    if result.outcome is not None:
        return f"{name}: {result.outcome}"
    if result.report is None or result.error is not None:
        return f"{name}: failed. {result.error}"
    summary = result.report.summary
    verdict = "" if summary.certificate is None else f", {summary.certificate.verdict}"
    return f"{name}: {', '.join(_headline(summary))}{verdict}"


def _short_line(result: PointResult) -> str:
    """Return the figures of a point in a few words, for the dashboard."""
    if result.outcome is not None:
        return result.outcome
    if result.report is None or result.error is not None:
        return f"failed. {result.error}"
    summary = result.report.summary
    rate, ttft = (summary.metrics.get(tag) for tag in ("request_throughput", "time_to_first_token"))
    parts = [] if rate is None else [f"{rate.avg:,.1f}/s"]
    if ttft is not None:
        parts.append(f"TTFT {ttft.p50:,.0f} ms (p99 {ttft.p99:,.0f})")
    return ", ".join([*parts, *([] if summary.certificate is None else [summary.certificate.verdict])])


def _headline(summary: Summary) -> list[str]:
    metrics = summary.metrics
    parts = [counted(summary.succeeded, "request")]
    if summary.failed:
        parts.append(f"{summary.failed:,} failed")
    if (rate := metrics.get("request_throughput")) is not None:
        parts.append(f"{rate.avg:,.2f} requests/s")
    for tag, title in (("time_to_first_token", "TTFT"), ("request_latency", "latency")):
        if (stats := metrics.get(tag)) is not None:
            parts.append(f"{title} p50 {stats.p50:,.2f} ms, p99 {stats.p99:,.2f} ms")
    return parts


def show(report: ExperimentReport, settings: ExperimentSettings) -> None:
    def draw(console: Console) -> None:
        if settings.parameters and settings.table:
            draw_sweep(console, report.variations, auto=settings.sweep == "auto")
        elif not settings.parameters:
            for cell in report.variations:
                draw_repeated(console, cell, settings.confidence)
        if report.search is not None:
            draw_search(console, report.search)

    draw_on(draw)
    for path in report.files:
        name = "HTML Report" if path.endswith(".html") else f"{os.path.splitext(path)[1][1:].upper()} Export"
        print(f"{name}: {path}")


def search_status(done: FinishedExperiment, search: SearchOutcome, *, quiet: bool) -> int:
    """Print what ended a search early and, if the tables are not shown, why it has no result; return the exit status. Levels
    at which requests fail are part of a search."""
    sys.stdout.flush()
    if done.error is not None:
        print(done.error, file=sys.stderr)
    if quiet and search.result.limit is None:
        for result in done.results:
            if result.error is not None:
                print(f"{result.point.name}: {result.error}", file=sys.stderr)
        print(limit_sentence(search), file=sys.stderr)
    if done.interrupts:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if done.error is not None or search.result.limit is None else 0


def _status(done: FinishedExperiment, settings: Settings, assertions: Sequence[Condition]) -> int:
    """Print what went wrong, and return the exit status."""
    sys.stdout.flush()
    failed = False
    for result in done.results:
        tolerated, errors = _check(result, settings, assertions)
        for sentence in (*tolerated, *errors):
            print(f"{result.point.name}: {sentence}", file=sys.stderr)
        failed |= bool(errors)
    if done.error is not None:
        print(done.error, file=sys.stderr)
        failed = True
    if done.interrupts:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if failed else 0


def _check(result: PointResult, settings: Settings, assertions: Sequence[Condition]) -> tuple[list[str], list[str]]:
    """Return sentences about the failures of a point that the user tolerates, and about its errors."""
    if result.report is None:
        return [], [result.error or ""]
    summary = result.report.summary
    tolerated, errors = check_summary(summary, settings.max_error_rate, settings.require_valid)
    certificate = summary.certificate
    if settings.output.quiet and certificate is not None and certificate.verdict != "VALID" and not errors:
        tolerated.append(f"Certificate: {certificate.verdict}. {' '.join(certificate.reasons)}")
    if not errors and result.error is not None:
        errors = [result.error]
    return tolerated, [*errors, *failed_assertions(assertions, summary)]
