"""The report of repeated runs, sweeps and searches on the terminal: the tables over all points, errors and exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli.exit_status import EXIT_FAILED, EXIT_INTERRUPTED
from penstock.cli.progress import step_progress
from penstock.cli.run_report import check_summary, failed_assertions, parse_assertions
from penstock.cli.screen import draw_on
from penstock.cli.terminal_observer import point_line
from penstock.records.log import RunLog
from penstock.records.read_sections import most_processes
from penstock.reports.experiment_tables import draw_repeated, draw_search, draw_sweep
from penstock.reports.search_page import limit_sentence
from penstock.runs.experiment_report import ExperimentReport, report_experiment, report_points
from penstock.runs.points import PointOutcome
from penstock.runs.run_experiment import FinishedRun
from penstock.runs.run_folder import LOG_FOLDER
from penstock.settings.schema import ExperimentSettings, Settings

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.metrics.capacity import SearchOutcome
    from penstock.metrics.conditions import Condition


def report_results(settings: Settings, done: FinishedRun) -> int:
    """Write and show the tables of an experiment, and return the exit status."""
    output = settings.output
    report = report_experiment(output.folder, settings.experiment, done.results)
    if not output.quiet:
        state = "interrupted" if done.interrupts else "complete" if done.error is None else "ended early"
        print(f"Benchmark {state}. Results saved to: {os.path.join(output.folder, '')}")
        show(report, settings.experiment)
    if report.search is not None:
        return search_status(done, report.search, quiet=output.quiet)
    status = _status(done, settings, parse_assertions(settings))
    if report.recipe is not None and not report.recipe.document.get("found", True):
        return status or EXIT_FAILED  # as a search without a limit
    return status


def report_again(
    folder: str,
    into: str,
    tokenizer: str | None,
    changes: Mapping[str, Any],
) -> int:
    """Write all files of an experiment again from its log, print its tables, and return the exit status. `changes` are those of
    the output settings."""
    settings = RunLog.read_header(os.path.join(folder, LOG_FOLDER)).settings
    results = []
    progress = step_progress("Counting tokens and writing records", True)
    for result in report_points(folder, into, tokenizer, changes, progress=progress, processes=most_processes()):
        results.append(result)
        print(point_line(result))
    report = report_experiment(folder, settings.experiment, results, into)
    print(f"Results saved to: {os.path.join(into, '')}")
    show(report, settings.experiment)
    return 0


def show(report: ExperimentReport, settings: ExperimentSettings) -> None:
    def draw(console: Console) -> None:
        if settings.parameters and settings.table:
            draw_sweep(console, report.variations, auto=settings.sweep == "auto", left_out=report.left_out)
        elif not settings.parameters:
            for cell in report.variations:
                draw_repeated(console, cell, settings.confidence)
        if report.search is not None:
            draw_search(console, report.search)
        for sentence in () if report.recipe is None else report.recipe.sentences:
            console.print(sentence, highlight=False)

    draw_on(draw)
    for path in report.files:
        name = "HTML Report" if path.endswith(".html") else f"{os.path.splitext(path)[1][1:].upper()} Export"
        print(f"{name}: {path}")


def search_status(done: FinishedRun, search: SearchOutcome, *, quiet: bool) -> int:
    """Print what ended a search early and, if the tables are not shown, why it has no result; return the exit status. Loads
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


def _status(done: FinishedRun, settings: Settings, assertions: Sequence[Condition]) -> int:
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


def _check(result: PointOutcome, settings: Settings, assertions: Sequence[Condition]) -> tuple[list[str], list[str]]:
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
