"""The data of the page of one run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.metrics.bounds import HEADLINE
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.certificate import UNOBSERVABLE
from penstock.metrics.intervals import FigureInterval
from penstock.metrics.metric import label
from penstock.metrics.objectives import parse_objectives
from penstock.metrics.statistics import PERCENTILES, Stats
from penstock.metrics.steady_state import SteadyState
from penstock.metrics.summary import Summary
from penstock.plural import counted
from penstock.records.log import LoggedPhase
from penstock.reports.certainty_table import mark
from penstock.reports.charts import Chart, Mark, numbers
from penstock.reports.checklist import checklist
from penstock.reports.console import notes
from penstock.reports.error_text import one_line
from penstock.reports.request_columns import RequestColumns
from penstock.reports.run_charts import TimeAxis, distribution_charts, gap_chart, lanes, time_charts
from penstock.reports.settings_rows import setting_rows
from penstock.reports.sink import ReportContext
from penstock.reports.summary_json import local_time
from penstock.reports.telemetry_charts import TelemetryColumns

_CARDS = (
    "request_throughput",
    "output_token_throughput",
    "time_to_first_token",
    "inter_token_latency",
    "request_latency",
    "goodput",
    "good_request_fraction",
    "effective_concurrency",
    "benchmark_duration",
)
_STATISTICS = ("avg", "p50", "p90", "p95", "p99", "max")
_NOTED_CHANGE = 0.05
_GROUPS_SHOWN = 50
_MOST_CHARACTERS = 20_000


def run_document(
    summary: Summary,
    context: ReportContext,
    phases: list[LoggedPhase],
    columns: RequestColumns,
    telemetry: TelemetryColumns,
) -> dict[str, Any]:
    header, settings = context.header, context.header.settings
    return {
        "kind": "run",
        "id": header.benchmark_id,
        "title": ", ".join(settings.models),
        "subtitle": _subtitle(summary, context),
        "version": header.penstock_version,
        "verdict": _verdict(summary),
        "counts": {
            "succeeded": summary.succeeded,
            "failed": summary.failed,
            "cancelled": summary.cancelled,
            "warmup": summary.warmup_requests,
        },
        "cards": list(_cards(summary)),
        "latencies": {
            "columns": list(_STATISTICS),
            "rows": list(_latency_rows(summary)),
            "steady": _steady_latencies(summary),
        },
        "errors": _errors(summary),
        "notes": list(notes(summary)),
        **_charts(summary, context, phases, columns, telemetry),
        "urls": list(settings.endpoint.urls),
        "settings": setting_rows(settings),
        "machine": {**header.machine, "worker processes": header.workers},
        "client": {} if summary.certificate is None else summary.certificate.figures,
        "command": settings.command[:_MOST_CHARACTERS],
        "files": sorted(os.path.basename(path) for path in context.artifacts.paths.values()),
        "checklist": checklist(summary, header),
        "metrics": _all_metrics(summary),
    }


def _subtitle(summary: Summary, context: ReportContext) -> str:
    endpoint = context.header.settings.endpoint
    point = context.log.point
    where = ", ".join(endpoint.urls[:3]) + (f" and {len(endpoint.urls) - 3} more" if len(endpoint.urls) > 3 else "")
    name = "" if point is None else f"{point.label}; "
    streaming = "streaming" if endpoint.streaming else "not streaming"
    if context.header.payload_files:
        streaming = "streaming as in the file"
    return (
        f"{name}{endpoint.type}, {streaming}, at {where}; started {local_time(summary.start_ns)[:19].replace('T', ' ')}"
    )


def _verdict(summary: Summary) -> dict[str, Any]:
    certificate = summary.certificate
    if certificate is None:
        return {"verdict": "NONE", "summary": "The run has no certificate.", "reasons": []}
    reasons = [*certificate.reasons, *certificate.left_out]
    return {"verdict": certificate.verdict, "summary": certificate.summary, "reasons": reasons}


def _verdict_on(summary: Summary, tag: str) -> str | None:
    """Return the verdict on a metric, if it is worth a mark."""
    judged = None if summary.certificate is None else summary.certificate.metrics.get(tag)
    return None if judged is None or judged.verdict == "VALID" else judged.verdict


def _cell(summary: Summary, tag: str, statistic: str) -> dict[str, Any] | None:
    """Return a figure with the bounds of its true value and its confidence interval, if there are any."""
    cell = _figure(summary.metrics[tag], statistic, summary.intervals.get(tag, {}).get(statistic))
    bounds = summary.bounds.get(tag, {}).get(statistic)
    if cell is not None and bounds is not None and bounds.low < bounds.high:
        cell["bounds"] = numbers([bounds.low, bounds.high])
    return cell


def _figure(stats: Stats, statistic: str, interval: FigureInterval | None) -> dict[str, Any] | None:
    value = getattr(stats, statistic)
    if value is None:
        return None
    cell: dict[str, Any] = {"value": numbers([value])[0]}
    if interval is not None and interval.low is not None and interval.high is not None:
        cell["interval"] = numbers([interval.low, interval.high])
    if mark(stats, statistic):
        cell["unsupported"] = True
    return cell


def _cards(summary: Summary) -> Iterator[dict[str, Any]]:
    for tag in _CARDS:
        stats, verdict = summary.metrics.get(tag), _verdict_on(summary, tag)
        if stats is None or verdict == UNOBSERVABLE:
            continue
        metric = CATALOGUE[tag]
        card = {"tag": tag, "label": metric.header, "unit": metric.unit, "verdict": verdict}
        if stats.scalar or tag not in HEADLINE:
            yield {**card, "statistic": "", **(_cell(summary, tag, "avg") or {})}
            continue
        yield {**card, "statistic": "p50", **(_cell(summary, tag, "p50") or {}), "also": _cell(summary, tag, "p99")}


def _shown_steady_state(summary: Summary) -> SteadyState | None:
    """Return the steady state, if requests precede it; None if its figures are those of the whole run."""
    steady = summary.steady_state
    return steady if steady is not None and steady.head else None


def _latency_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    for tag in HEADLINE:
        verdict = _verdict_on(summary, tag)
        if tag in summary.metrics and verdict != UNOBSERVABLE:
            cells = [_cell(summary, tag, statistic) for statistic in _STATISTICS]
            note = CATALOGUE[tag].note
            yield {"tag": tag, "label": label(CATALOGUE[tag]), "note": note, "verdict": verdict, "cells": cells}


def _steady_latencies(summary: Summary) -> dict[str, Any] | None:
    """Return the latencies in the steady state, and whether a mean differs much from that of the whole run."""
    steady = _shown_steady_state(summary)
    if steady is None:
        return None
    rows = []
    differs = False
    shown = [tag for tag in HEADLINE if tag in summary.metrics and _verdict_on(summary, tag) != UNOBSERVABLE]
    for tag in (tag for tag in shown if tag in steady.metrics):
        stats, intervals = steady.metrics[tag], steady.intervals.get(tag, {})
        cells = [_figure(stats, name, intervals.get(name)) for name in _STATISTICS]
        rows.append({"tag": tag, "label": label(CATALOGUE[tag]), "note": CATALOGUE[tag].note, "cells": cells})
        whole = summary.metrics[tag].avg
        differs |= stats.avg is not None and whole is not None and abs(stats.avg - whole) > _NOTED_CHANGE * whole
    title = (
        f"In the steady state: {steady.begin_s:,.1f} s to {steady.end_s:,.1f} s, {counted(steady.requests, 'request')}"
    )
    return {"title": title, "rows": rows, "differs": differs}


def _errors(summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            "count": group.count,
            "owner": group.owner,
            "code": group.code,
            "type": group.type,
            "message": one_line(group.message),
        }
        for group in summary.errors[:_GROUPS_SHOWN]
    ]


def _all_metrics(summary: Summary) -> dict[str, Any]:
    names = ("avg", "min", *(f"p{q}" for q in PERCENTILES), "max", "std")
    rows = []
    for tag, stats in summary.metrics.items():
        cells = [_rounded(stats, name) for name in names]
        rows.append({"tag": tag, "label": label(CATALOGUE[tag]), "cells": cells})
    return {"columns": names, "rows": rows}


def _rounded(stats: Stats, name: str) -> float | int | None:
    value = getattr(stats, name)
    return None if value is None else numbers([value])[0]


def _charts(
    summary: Summary,
    context: ReportContext,
    phases: list[LoggedPhase],
    columns: RequestColumns,
    telemetry: TelemetryColumns,
) -> dict[str, Any]:
    requests = columns.finish()
    found: dict[str, Any] = {
        "distributions": [],
        "timeline": [],
        "gaps": [],
        "lanes": None,
        "slowest": [],
        "failed": [],
    }
    if not len(requests.start):
        return found
    kinds = {phase.index: phase.kind for phase in phases}
    profiling = [index for index, kind in kinds.items() if kind == "profiling"]
    profiled = np.isin(requests.phase, profiling)
    starts = requests.start[profiled] if profiled.any() else requests.start
    origin = float(starts.min())
    objectives = parse_objectives(context.header.settings.goodput)
    axis = TimeAxis.of(requests, origin)
    marks = [Mark(0.0, "profiling begins")] if not profiled.all() else []
    if (steady := _shown_steady_state(summary)) is not None:
        marks += [Mark(steady.begin_s, "steady state"), Mark(steady.end_s, "end of steady state")]
    timeline = [
        *time_charts(requests, columns, axis, marks),
        *telemetry.charts(axis.edges[0], axis.edges[-1], origin, marks),
    ]
    gaps: Chart | None = gap_chart(summary.gap_profile)
    details = [columns.slowest(), columns.failed()]
    for detail in (detail for part in details for detail in part):
        detail["at"] = round((detail["at"] - origin) / 1e9, 6)
    return found | {
        "distributions": list(distribution_charts(requests, columns.gaps, profiled, objectives)),
        "timeline": timeline,
        "gaps": [] if gaps is None else [gaps],
        "lanes": lanes(requests, profiled, origin),
        "slowest": details[0],
        "failed": details[1],
    }
