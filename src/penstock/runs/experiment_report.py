"""The files of an experiment over all its points, from their results or from the log. Nothing here prints."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock import __version__
from penstock.metrics.capacity import SearchOutcome
from penstock.metrics.experiment import RunFigures, VariationFigures, group_runs
from penstock.records.header import Variation, decode_header
from penstock.records.log import LoggedPoint, RunLog, variation_label
from penstock.reports.aggregate import aggregate_paths, write_aggregate
from penstock.reports.artifact_writer import ProgressCallback
from penstock.reports.artifacts import write_json
from penstock.reports.collated import collated_path, write_collated
from penstock.reports.experiment_folders import aggregate_folder, sweep_folder
from penstock.reports.recipe_files import RECIPE_FILES, RecipeResult, recipe_result
from penstock.reports.report_html import PAGE_NAME, read_page, write_page
from penstock.reports.runs_page import RunLink, experiment_document
from penstock.reports.sweep_files import sweep_paths, write_sweep
from penstock.runs.point_folder import write_reference
from penstock.runs.points import Point, PointOutcome
from penstock.runs.report_point import report_point, why_unusable
from penstock.runs.run_folder import LOG_FOLDER
from penstock.runs.search import SEARCH_FILE, logged_search, write_search
from penstock.runs.variations import above
from penstock.settings.redact import redacted
from penstock.settings.schema import ExperimentSettings
from penstock.tokens.lazy_tokenizer import LazyTokenizer


class ExperimentReport(NamedTuple):
    variations: list[VariationFigures]
    files: list[str]
    """What was written."""
    search: SearchOutcome | None = None
    """What a search found."""
    left_out: str | None = None
    """Which points of a sweep `--stop-on-overload` left out."""
    recipe: RecipeResult | None = None
    """What a recipe found."""


def report_experiment(
    folder: str, settings: ExperimentSettings, results: Sequence[PointOutcome], into: str | None = None
) -> ExperimentReport:
    """Write the files over all points into the experiment's folder, or into another one."""
    search = logged_search(os.path.join(folder, LOG_FOLDER), settings)
    if search is not None:
        search = search._replace(certificates=_certificates(search.parameter, results))
    left_out = _left_out(RunLog.read_header(os.path.join(folder, LOG_FOLDER)).variations, results)
    folder = into or folder
    variations = group_runs([_figures(result) for result in results], settings.confidence)
    chosen = settings.chooses_points
    if chosen:  # these measure points between earlier ones
        variations.sort(key=lambda each: each.parameters[settings.parameters[0]])
    files: list[str] = []
    if settings.runs > 1 or not chosen:
        for variation in variations:
            files += _write_aggregate(folder, variation, settings, results)
    if settings.parameters and (chosen or any(variation.usable for variation in variations)):
        path = os.path.join(folder, sweep_folder(settings))
        write_sweep(path, variations, settings, __version__)
        files += sweep_paths(path)
    recipe = recipe_result(settings, variations)
    if recipe is not None:
        files.append(os.path.join(folder, sweep_folder(settings), recipe.file))
        write_json(files[-1], recipe.document)
    if search is not None:
        files.append(os.path.join(folder, SEARCH_FILE))
        write_search(files[-1], search)
    if page := _write_page(folder, variations, results, search, left_out, recipe):
        files.append(page)
    return ExperimentReport(variations, files, search, left_out, recipe)


def _left_out(variations: Sequence[Variation], results: Sequence[PointOutcome]) -> str | None:
    overloaded = {result.point.variation for result in results if result.ended_by_overload}
    measured = {result.point.variation for result in results}
    names = [variation_label(variations[n].parameters) for n in above(variations, overloaded) if n not in measured]
    if not names:
        return None
    return f"--stop-on-overload left out, because the server fell behind at a lower rate: {', '.join(names)}."


def _certificates(parameter: str, results: Sequence[PointOutcome]) -> dict[float, str]:
    """Return the verdict on the last visit of each load, which decided."""
    return {
        float(result.point.parameters[parameter]): result.report.summary.certificate.verdict
        for result in results
        if result.report is not None and result.report.summary.certificate is not None
    }


def _write_page(
    folder: str,
    variations: Sequence[VariationFigures],
    results: Sequence[PointOutcome],
    search: SearchOutcome | None,
    left_out: str | None,
    recipe: RecipeResult | None,
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
    sentences = () if recipe is None else recipe.sentences
    document = experiment_document(variations, runs[0].settings, runs, __version__, search, left_out, sentences)
    write_page(path, document)
    return path


def _write_aggregate(
    folder: str, variation: VariationFigures, settings: ExperimentSettings, results: Sequence[PointOutcome]
) -> list[str]:
    """Write the files over the runs of a variation, and return their paths. As in AIPerf, they need two usable runs, or one
    in a sweep."""
    if len(variation.usable) < (1 if settings.parameters else 2):
        return []
    path = os.path.join(folder, aggregate_folder(settings, variation.parameters))
    write_aggregate(path, variation, settings, __version__)
    files = [*aggregate_paths(path)]
    records = {
        result.point.label: records_path
        for result in results
        if result.report is not None
        and result.error is None
        and result.point.variation == variation.runs[0].variation
        and (records_path := result.report.artifacts.records) is not None
    }
    if settings.convergence_metric is not None and records:
        write_collated(path, variation, records, settings, __version__)
        files.append(collated_path(path))
    return files


def aggregate_files(folder: str, points: Sequence[LoggedPoint]) -> list[str]:
    """Return all files over several points that the experiment in `folder` may have written."""
    if not points:
        return []
    settings = decode_header(points[0].header).settings.experiment
    aggregates = [os.path.join(folder, aggregate_folder(settings, point.parameters)) for point in points]
    paths = [path for each in aggregates for path in (*aggregate_paths(each), collated_path(each))]
    names = (PAGE_NAME, SEARCH_FILE)
    sweep = os.path.join(folder, sweep_folder(settings))
    paths += [os.path.join(sweep, name) for name in RECIPE_FILES]
    return [*paths, *sweep_paths(sweep), *(os.path.join(folder, name) for name in names)]


def report_points(
    folder: str,
    into: str,
    tokenizer: str | None,
    changes: Mapping[str, Any],
    *,
    progress: ProgressCallback | None = None,
    processes: int = 1,
) -> Iterator[PointOutcome]:
    """Write the artifacts of each point of the experiment in `folder` again, from its log, and yield the results. `changes` are
    those of the output settings."""
    experiment = RunLog(os.path.join(folder, LOG_FOLDER))
    for logged in experiment.points:
        log = experiment.at_point(logged.index).with_output(**changes)
        if not log.covered_phases:  # the experiment ended before its first request
            continue
        settings = decode_header(logged.header).settings
        counter = LazyTokenizer(settings.tokenizer, settings.models[0], tokenizer)
        point = Point(settings, logged.label, logged.parameters, logged.variation, logged.trial)
        yield report_logged(log, point, into, counter, progress=progress, processes=processes)


def report_logged(
    log: RunLog,
    point: Point,
    into: str,
    tokenizer: LazyTokenizer,
    *,
    progress: ProgressCallback | None = None,
    processes: int = 1,
) -> PointOutcome:
    """Write the artifacts of a point, to which the log is narrowed, into its folder in `into`."""
    logged, folder = log.point, os.path.dirname(log.folder)
    assert logged is not None
    report = report_point(log, os.path.join(into, logged.folder), tokenizer, progress=progress, processes=processes)
    if into == folder:
        write_reference(folder, logged)
    return PointOutcome(point, report, why_unusable(report.summary, point.settings.max_error_rate))


def _figures(result: PointOutcome) -> RunFigures:
    point = result.point
    summary = None if result.report is None else result.report.summary
    certificate = None if summary is None else summary.certificate
    return RunFigures(
        point.label,
        variation_label(point.parameters),
        point.parameters,
        point.variation,
        {} if summary is None else summary.metrics,
        None if certificate is None else certificate.verdict,
        0 if summary is None else summary.succeeded + summary.failed,
        0 if summary is None else summary.failed,
        result.error,
        [] if certificate is None else certificate.unobservable,
    )
