"""The data of the page of several runs: a sweep, a search, repeated runs, or a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from penstock.metrics.capacity import SearchOutcome
from penstock.metrics.catalogue import CATALOGUE, in_table
from penstock.metrics.conditions import parse_condition
from penstock.metrics.confidence import Interval
from penstock.metrics.experiment import VariationFigures, shown_parameter
from penstock.metrics.metric import label
from penstock.metrics.objectives import parse_objectives
from penstock.metrics.sweep import best_points, latency_figure, pareto_optimal, saturation
from penstock.plural import counted, joined
from penstock.reports.certainty_table import figure_mark
from penstock.reports.charts import Chart, Mark, Series, is_wide, numbers
from penstock.reports.search_page import (
    limit_cards,
    limit_sentence,
    load_table,
    objective_charts,
    search_notes,
    search_title,
)
from penstock.reports.settings_rows import changed_settings
from penstock.settings.schema import Settings

_THROUGHPUTS = ("request_throughput_avg", "output_token_throughput_avg")
_COLUMNS = (
    ("request_throughput_avg", "requests/s"),
    ("output_token_throughput_avg", "output tokens/s"),
    ("time_to_first_token_p50", "TTFT p50 (ms)"),
    ("time_to_first_token_p99", "TTFT p99 (ms)"),
    ("inter_token_latency_p50", "ITL p50 (ms)"),
    ("inter_token_latency_p99", "ITL p99 (ms)"),
    ("request_latency_p50", "latency p50 (ms)"),
    ("request_latency_p99", "latency p99 (ms)"),
    ("goodput_avg", "good requests/s"),
)
_BY_PARAMETER = (
    ("Throughput", "requests/s", (("request_throughput_avg", "requests"),)),
    ("Output token throughput", "tokens/s", (("output_token_throughput_avg", "output tokens"),)),
    ("Time to first token", "ms", (("time_to_first_token_p50", "p50"), ("time_to_first_token_p99", "p99"))),
    ("Inter-token latency", "ms", (("inter_token_latency_p50", "p50"), ("inter_token_latency_p99", "p99"))),
    ("Request latency", "ms", (("request_latency_p50", "p50"), ("request_latency_p99", "p99"))),
)
_OVERLAID = ("ttft-cdf", "itl-cdf", "latency-cdf")
_MOST_OVERLAID = 8


class RunLink(NamedTuple):
    """One run on the page."""

    name: str
    href: str | None
    """Path of its own page, relative to this page."""
    settings: Settings
    page: Mapping[str, Any] | None = None
    """The data of its own page."""
    group: str = ""
    """Repeated runs are in one group, of which charts and settings show the first run."""


def experiment_document(
    variations: Sequence[VariationFigures],
    settings: Settings,
    runs: Sequence[RunLink],
    version: str,
    search: SearchOutcome | None = None,
    left_out: str | None = None,
    found: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the page of a sweep, a search or repeated runs. `runs` are all runs, in the order of time; `left_out` names points
    that were not run; `found` says what a recipe found."""
    experiment = settings.experiment
    count = sum(len(each.runs) for each in variations)
    if search is not None:
        subtitle = search_title(search)
    elif experiment.parameters:
        names = " and ".join(name.replace("_", " ") for name in experiment.parameters)
        subtitle = f"Sweep of {names}: {counted(len(variations), 'point')}, {counted(count, 'run')}"
    else:
        subtitle = f"{counted(count, 'run')} of the same settings"
    usable = [each for each in variations if each.figures]
    return {
        "kind": "runs",
        "title": ", ".join(settings.models),
        "subtitle": subtitle,
        "version": version,
        "confidence": experiment.confidence,
        "cards": [] if search is None else limit_cards(search, variations),
        "conclusions": [*found, *_conclusions(variations, settings)]
        if search is None
        else [limit_sentence(search), *search_notes(search)],
        "loads": None if search is None else load_table(search),
        "overview": _overview(variations),
        "charts": [
            *([] if search is None else objective_charts(search)),
            *_curves(usable, settings),
            *_by_parameter(usable, experiment.parameters),
            *_overlays(runs),
        ],
        "differences": _repeated(variations, experiment.confidence) if experiment.runs > 1 else _changes(usable),
        "changed": _changed(runs),
        "runs": [{"name": run.name, "href": run.href} for run in runs],
        "notes": [
            *(f"{run.label} is left out: {run.error}" for each in variations for run in each.failed),
            *([] if left_out is None else [left_out]),
            *_unobserved(variations),
        ],
    }


def _unobserved(variations: Sequence[VariationFigures]) -> Iterator[str]:
    """Yield which figures of the tables could not be observed, and at which points."""
    columns = {name.rpartition("_")[0]: None for name, _ in _COLUMNS}
    for tag in columns:
        points = [_name(each) for each in variations if any(tag in run.unobservable for run in each.usable)]
        if points:
            yield (
                f"{CATALOGUE[tag].header} cannot be observed at {joined(points)}: the tokens arrived closer together than "
                "reads can tell apart."
            )


def _conclusions(variations: Sequence[VariationFigures], settings: Settings) -> list[str]:
    found = []
    if settings.experiment.parameters:
        for best in best_points(variations):
            figure = best.variation.figures[best.figure]
            what = "The highest throughput" if best.name == "best_throughput" else "The lowest latency"
            name = best.figure.rpartition("_")[2]
            statistic = "" if name == "avg" else f" ({name})"
            found.append(f"{what}{statistic}: {figure.mean:,.2f} {figure.unit} at {_name(best.variation)}.")
        optimal = [_name(each) for each in pareto_optimal(variations)]
        if optimal:
            found.append(f"No other point has both a higher throughput and a lower latency: {', '.join(optimal)}.")
        if settings.experiment.sweep == "auto" and (point := saturation(variations)) is not None:
            found.append(f"The server is saturated from concurrency {point.parameters['concurrency']} on.")
    return found


def _name(variation: VariationFigures) -> str:
    parts = [f"{name.replace('_', ' ')} {shown_parameter(value)}" for name, value in variation.parameters.items()]
    return ", ".join(parts) or "all runs"


def _values(variation: VariationFigures) -> str:
    return ", ".join(map(shown_parameter, variation.parameters.values()))


def _cell(variation: VariationFigures, name: str) -> dict[str, Any] | None:
    figure = variation.shown(name)
    if figure is None:
        return None
    cell: dict[str, Any] = {"value": numbers([figure.mean])[0]}
    if figure_mark(variation, name):
        cell["unsupported"] = True
    if figure.ci_low is not None and figure.ci_high is not None:
        cell["interval"] = numbers([figure.ci_low, figure.ci_high])
    return cell


def _overview(variations: Sequence[VariationFigures]) -> dict[str, Any]:
    columns = [(name, title) for name, title in _COLUMNS if any(name in each.figures for each in variations)]
    rows = []
    for each in variations:
        verdicts = [run.verdict for run in each.usable if run.verdict is not None]
        worst = next((verdict for verdict in ("INVALID", "DEGRADED", "VALID") if verdict in verdicts), None)
        verdict = {"status": worst or "failed"}
        rows.append([_name(each), *(_cell(each, name) for name, _ in columns), verdict])
    return {
        "columns": ["Point", *(title for _, title in columns), "Certificate"],
        "rows": rows,
    }


def _curves(usable: Sequence[VariationFigures], settings: Settings) -> list[Chart]:
    """Return throughput against latency, with the Pareto front and the objective."""
    if len(usable) < 2 or not settings.experiment.parameters:
        return []
    latency = latency_figure(usable)
    tag = latency.rpartition("_")[0]
    limits = [o.limit for o in parse_objectives(settings.goodput) if o.metric == tag and not o.at_least]
    conditions = [parse_condition("--slo", text, example="", any_percentile=True) for text in settings.experiment.slos]
    limits += [each.limit for each in conditions if f"{each.metric}_{each.statistic}" == latency]
    optimal = {each.label for each in pareto_optimal(usable)}
    parameters = " and ".join(name.replace("_", " ") for name in settings.experiment.parameters)
    charts = []
    for throughput in _THROUGHPUTS:
        points = [each for each in usable if throughput in each.figures and latency in each.figures]
        points.sort(key=lambda each: each.figures[latency].mean)
        if len(points) < 2:
            continue
        rates = [each.figures[throughput] for each in points]
        metric, unit = CATALOGUE[throughput.removesuffix("_avg")], rates[0].unit
        front = [rate.mean if each.label in optimal else np.nan for each, rate in zip(points, rates, strict=True)]
        series = [
            Series("all points", numbers([r.mean for r in rates]), *_ends(rates), [_values(each) for each in points])
        ]
        if throughput == _THROUGHPUTS[0]:
            series.append(Series("Pareto front", numbers(front)))
        charts.append(
            Chart(
                id=f"curve-{throughput.removesuffix('_avg').replace('_', '-')}",
                title=f"{metric.header} against {CATALOGUE[tag].header.lower()}",
                caption=f"Each point is a load, with its {parameters}; up and to the left is better.",
                kind="scatter",
                x_label=f"{CATALOGUE[tag].header} p99 (ms)",
                y_label=unit,
                x=numbers([each.figures[latency].mean for each in points]),
                series=series,
                marks=[Mark(limit, "objective") for limit in limits],
            )
        )
    return charts


def _ends(figures: Sequence[Interval]) -> tuple[list[Any], list[Any]]:
    if all(figure.ci_low is None for figure in figures):
        return [], []
    low = [np.nan if figure.ci_low is None else figure.ci_low for figure in figures]
    high = [np.nan if figure.ci_high is None else figure.ci_high for figure in figures]
    return numbers(low), numbers(high)


def _by_parameter(usable: Sequence[VariationFigures], parameters: Sequence[str]) -> list[Chart]:
    """Return each figure against the parameter of a sweep with one parameter."""
    if len(parameters) != 1 or len(usable) < 2:
        return []
    (parameter,) = parameters
    if any(isinstance(each.parameters[parameter], str) for each in usable):
        return []
    points = sorted(usable, key=lambda each: float(each.parameters[parameter]))
    values = [float(each.parameters[parameter]) for each in points]
    charts = []
    for title, unit, figures in _BY_PARAMETER:
        series = []
        for name, text in figures:
            if all(each.shown(name) is not None for each in points):
                of_points = [each.figures[name] for each in points]
                series.append(Series(text, numbers([figure.mean for figure in of_points]), *_ends(of_points)))
        if series:
            charts.append(
                Chart(
                    id=f"by-{parameter.replace('_', '-')}-{title.lower().replace(' ', '-')}",
                    title=f"{title} by {parameter.replace('_', ' ')}",
                    kind="points",
                    x_label=parameter.replace("_", " "),
                    y_label=unit,
                    log_x=is_wide(values),
                    x=numbers(values),
                    series=series,
                )
            )
    return charts


def _overlays(runs: Sequence[RunLink]) -> list[Chart]:
    """Return the cumulative distributions of the runs in one chart for each metric."""
    return _overlay_charts([(run.name, run.page) for run in _first_of_groups(runs) if run.page is not None])


def _overlay_charts(shown: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Chart]:
    charts = []
    for id_ in _OVERLAID:
        found = []
        for name, page in shown[:_MOST_OVERLAID]:
            found += [(name, chart) for chart in page["distributions"] if chart["id"] == id_]
        if len(found) > 1:
            charts.append(_overlay(id_, found, len(shown)))
    return charts


def overlay_pages(pages: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Chart]:
    """Return the distributions of runs on top of each other, from the names and the pages of the runs."""
    return _overlay_charts([(name, page) for name, page in pages if page["kind"] == "run"])


def _first_of_groups(runs: Sequence[RunLink]) -> list[RunLink]:
    """Return the first run of each group; all runs if there is only one group."""
    groups: dict[str, RunLink] = {}
    for run in runs:
        groups.setdefault(run.group, run)
    return list(groups.values()) if len(groups) > 1 else list(runs)


def _overlay(id_: str, found: Sequence[tuple[str, Mapping[str, Any]]], total: int) -> Chart:
    x = np.unique(np.concatenate([np.array(chart["x"], dtype=np.float64) for _, chart in found]))
    series = []
    for name, chart in found:
        shares = np.interp(x, chart["x"], chart["series"][0]["values"], left=0, right=100)
        series.append(Series(name, numbers(shares)))
    first = found[0][1]
    more = f" The first {_MOST_OVERLAID} of {total:,} runs." if total > _MOST_OVERLAID else ""
    return Chart(
        id=f"runs-{id_}",
        title=first["title"],
        caption=f"Share of the requests at or below each value, for each run.{more}",
        x_label=first["x_label"],
        y_label=first["y_label"],
        log_x=is_wide(x),
        x=numbers(x),
        series=series,
    )


def _repeated(variations: Sequence[VariationFigures], confidence: float) -> list[dict[str, Any]]:
    """Return the figures over repeated runs, with their intervals and their variation."""
    tables = []
    for each in variations:
        rows = []
        for metric in in_table("main"):
            names = [f"{metric.tag}_{name}" for name in ("avg", "p50", "p99")]
            if (mean := each.shown(names[0])) is not None:
                shown = None if mean.cv is None else f"{mean.cv:.1%}"
                rows.append([label(metric), *(_cell(each, name) for name in names), shown])
        if rows:
            title = f"Mean of {counted(len(each.usable), 'run')} with its {100 * confidence:.4g} % confidence interval"
            name = f"{_name(each)}: " if each.parameters else ""
            tables.append(
                {
                    "title": f"{name}{title}",
                    "columns": ["Metric", "avg", "p50", "p99", "variation of avg"],
                    "rows": rows,
                    "text": [0],
                }
            )
    return tables


def _changes(usable: Sequence[VariationFigures]) -> list[dict[str, Any]]:
    """Return by how much each point differs from the first."""
    if len(usable) < 2:
        return []
    first, *others = usable
    columns = [(name, title) for name, title in _COLUMNS if first.shown(name) is not None]
    rows = []
    for each in others:
        cells = []
        for name, _ in columns:
            before, after = first.figures[name].mean, each.shown(name)
            known = after is not None and before
            cells.append(f"{100 * (after.mean / before - 1):+,.1f} %" if known and after is not None else None)
        rows.append([_name(each), *cells])
    title = f"Change from {_name(first)}. A point of one run has no interval; --num-profile-runs gives one."
    return [{"title": title, "columns": ["Point", *(title for _, title in columns)], "rows": rows, "text": [0]}]


def _changed(runs: Sequence[RunLink]) -> dict[str, Any]:
    by_settings = {run.name: run for run in _first_of_groups(runs)}
    found = changed_settings([run.settings for run in by_settings.values()])
    return {"columns": ["Setting", *by_settings], "rows": [[name, *values] for name, values in found]}


def comparison_document(
    comparisons: Sequence[Mapping[str, Any]], runs: Sequence[RunLink], version: str
) -> dict[str, Any]:
    """Return the page of a comparison. `comparisons` are those of the JSON output, each of a run with the first."""
    sides = [comparisons[0]["a"], *(comparison["b"] for comparison in comparisons)]
    rows = [
        [letter, side["name"], ", ".join(side["urls"]), side["requests"], {"status": side["verdict"] or "unknown"}]
        for letter, side in zip(ascii_uppercase, sides, strict=False)
    ]
    notes = [note for comparison in comparisons for note in comparison["notes"]]
    return {
        "kind": "runs",
        "title": f"Comparison of {counted(len(sides), 'run')}",
        "subtitle": "; ".join(
            f"{letter}: {side['name']}" for letter, side in zip(ascii_uppercase, sides, strict=False)
        ),
        "version": version,
        "conclusions": [comparison["conclusion"] for comparison in comparisons],
        "overview": {"columns": ["Run", "Name", "URL", "requests", "Certificate"], "rows": rows, "text": [0, 1, 2]},
        "charts": _overlays(runs),
        "differences": [
            _difference_table(comparison, letter)
            for letter, comparison in zip(ascii_uppercase[1:], comparisons, strict=False)
        ],
        "changed": _changed(runs),
        "runs": [{"name": run.name, "href": run.href} for run in runs],
        "notes": list(dict.fromkeys(notes)),
    }


def _difference_table(comparison: Mapping[str, Any], letter: str) -> dict[str, Any]:
    rows = []
    for row in comparison["rows"]:
        change: dict[str, Any] = {"value": numbers([row["difference"]])[0], "signed": True}
        if row["low"] is not None and row["high"] is not None:
            change["interval"] = numbers([row["low"], row["high"]])
        percent = None if row["percent"] is None else f"{row['percent']:+.1f} %"
        values = numbers([row["a"], row["b"]])
        rows.append(
            [f"{row['name']} ({row['unit']})", row["statistic"], *values, change, percent, row["verdict"] or ""]
        )
    return {
        "title": f"{letter} compared with A, with 95 % confidence intervals",
        "columns": ["Metric", "Statistic", "A", letter, f"{letter} − A", "Change", "Verdict"],
        "rows": rows,
        "text": [0, 1, 6],
    }
