"""The files of an experiment over all its points, from their results or from the log. Nothing here prints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock import __version__
from penstock.metrics.capacity import SearchOutcome
from penstock.metrics.experiment import RunFigures, VariationFigures, group_runs
from penstock.records.header import decode_header
from penstock.records.log import STOP_RULE, LoggedPoint, RunLog, variation_label
from penstock.reports.aggregate import AGGREGATE_FOLDER, aggregate_paths, write_aggregate
from penstock.reports.report_html import PAGE_NAME, read_page, write_page
from penstock.reports.runs_page import RunLink, experiment_document
from penstock.reports.sweep import sweep_paths, write_sweep
from penstock.runs.point_folder import write_reference
from penstock.runs.points import Point, PointResult
from penstock.runs.run_folder import LOG_FOLDER
from penstock.runs.search import SEARCH_FILE, logged_search, write_search
from penstock.runs.summarise import summarise, why_unusable
from penstock.settings.redact import redacted
from penstock.settings.schema import ExperimentSettings
from penstock.tokens.lazy_tokenizer import LazyTokenizer

__all__ = ["ExperimentReport", "aggregate_files", "report_experiment", "report_points"]


class ExperimentReport(NamedTuple):
    variations: list[VariationFigures]
    files: list[str]
    """What was written."""
    search: SearchOutcome | None = None
    """What a search found."""


def report_experiment(
    folder: str, settings: ExperimentSettings, results: Sequence[PointResult], into: str | None = None
) -> ExperimentReport:
    """Write the files over all points into the experiment's folder, or into another one."""
    search = logged_search(os.path.join(folder, LOG_FOLDER), settings)
    folder = into or folder
    variations = group_runs([_figures(result) for result in results], settings.confidence)
    if settings.sweep == "auto" or settings.find_max is not None:  # these measure points between earlier ones
        variations.sort(key=lambda each: each.parameters[settings.parameters[0]])
    files: list[str] = []
    if settings.runs > 1:
        for variation in variations:
            into = _aggregate_folder(folder, variation.parameters)
            write_aggregate(into, variation, settings, __version__)
            files += aggregate_paths(into)
    if settings.parameters:
        write_sweep(folder, variations, settings, __version__)
        files += sweep_paths(folder)
    if search is not None:
        files.append(os.path.join(folder, SEARCH_FILE))
        write_search(files[-1], search)
    if page := _write_page(folder, variations, results, search):
        files.append(page)
    return ExperimentReport(variations, files, search)


def _write_page(
    folder: str,
    variations: Sequence[VariationFigures],
    results: Sequence[PointResult],
    search: SearchOutcome | None,
) -> str | None:
    """Write the page over all points, and return its path; None if the points have no pages."""
    runs = []
    for result in results:
        path = None if result.report is None else result.report.artifacts.paths.get("html")
        if path is not None:
            point = result.point
            href = os.path.relpath(path, folder)
            group = variation_label(point.parameters)
            runs.append(RunLink(point.name, href, redacted(point.settings), read_page(path), group))
    if not runs:
        return None
    path = os.path.join(folder, PAGE_NAME)
    write_page(path, experiment_document(variations, runs[0].settings, runs, __version__, search))
    return path


def aggregate_files(folder: str, points: Sequence[LoggedPoint]) -> list[str]:
    """Return all files over several points that the experiment in `folder` may have written."""
    aggregates = [path for point in points for path in aggregate_paths(_aggregate_folder(folder, point.parameters))]
    names = (PAGE_NAME, SEARCH_FILE)
    return [*aggregates, *sweep_paths(folder), *(os.path.join(folder, name) for name in names)] if points else []


def _aggregate_folder(folder: str, parameters: dict[str, int | float]) -> str:
    names = [variation_label(parameters)] if parameters else []
    return os.path.join(folder, AGGREGATE_FOLDER, *names)


def report_points(
    folder: str,
    *,
    into: str,
    tokenizer: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    show_http: bool = False,
    show_timeline: bool = False,
    html: bool | None = None,
) -> Iterator[PointResult]:
    """Write the artifacts of each point of the experiment in `folder` again, from its log, and yield the results."""
    log = os.path.join(folder, LOG_FOLDER)
    experiment = RunLog(log)
    for logged in experiment.points:
        opened = experiment.at_point(logged.index)
        if not opened.covered_phases:  # the experiment ended before its first request
            continue
        settings = decode_header(logged.header).settings
        report = summarise(
            folder,
            tokenizer=LazyTokenizer(settings.tokenizer, settings.models[0], tokenizer),
            incomplete=why_incomplete(opened),
            progress=progress,
            show_http=show_http,
            show_timeline=show_timeline,
            point=logged.index,
            into=os.path.join(into, logged.folder),
            html=html,
        )
        if into == folder:
            write_reference(folder, logged)
        point = Point(settings, logged.label, logged.parameters, logged.variation, logged.trial)
        yield PointResult(point, report, why_unusable(report.summary, settings.max_error_rate))


def why_incomplete(log: RunLog) -> str | None:
    """Return why the run or point of a log is incomplete; None if it is complete."""
    part = log.last_part
    workers = part.workers
    reports = [report for report in log.reports("profiling") if report.worker >= part.first_worker]
    missing = workers - len(reports) - len({lost.worker for lost in log.lost_workers})
    ended_by_rule = {decision.phase for decision in log.decisions(STOP_RULE)}
    started = any(phase.kind == "profiling" for phase in log.covered_phases)
    if not started:
        return "The run ended before its profiling phase began."
    if missing > 0:
        subject = "its worker's report is" if workers == 1 else f"the reports of {missing} of its {workers} workers are"
        return f"The run was cut off: {subject} missing, as after a crash or kill -9."
    return (
        "The run was stopped before its end."
        if any(worker.stopped and worker.phase not in ended_by_rule for worker in reports)
        else None
    )


def _figures(result: PointResult) -> RunFigures:
    point = result.point
    summary = None if result.report is None else result.report.summary
    return RunFigures(
        point.label,
        variation_label(point.parameters),
        point.parameters,
        point.variation,
        {} if summary is None else summary.metrics,
        None if summary is None or summary.certificate is None else summary.certificate.verdict,
        0 if summary is None else summary.succeeded + summary.failed,
        0 if summary is None else summary.failed,
        result.error,
    )
