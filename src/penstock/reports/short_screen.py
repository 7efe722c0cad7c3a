"""The final screen of a run in 45 lines of 100 columns. `reports.console` has all tables: --verbose prints them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.metrics.catalogue import in_table
from penstock.metrics.groups.error_adjusted import ADJUSTED
from penstock.metrics.metric import Metric
from penstock.metrics.statistics import Stats
from penstock.metrics.summary import Summary
from penstock.reports.artifacts import Artifacts
from penstock.reports.certainty_table import print_uncertainty
from penstock.reports.console import (
    FIVE,
    SEVEN,
    Layout,
    bullet,
    notes,
    print_failures,
    print_metrics,
    print_telemetry,
    print_verdict,
)
from penstock.reports.slices_table import print_slices

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_DETAILS = (
    "effective_time_to_first_token",
    "time_to_second_token",
    "time_to_first_output_token",
    "decode_duration",
    "time_per_output_token",
    "longest_gap",
    "e2e_output_token_throughput",
    "total_token_throughput",
    "completed_request_count",
    "request_error_rate",
    *(f"adj_{tag}" for tag in ADJUSTED),
)
"""Metrics of the main table that only the full tables show."""
_WAITED = 1.05
"""Effective latency is shown if it is so many times the request latency."""
_LAYOUTS = (
    Layout(SEVEN, False, 36),
    Layout(SEVEN[:6], False, 36),
    Layout(FIVE, False, 22),
    Layout(("avg", "max", "p99", "p50"), False, 22),
    Layout(("avg", "p99", "p50"), False, 0),
)
_GROUPS_SHOWN = 3
_NOTES_SHOWN = 5
_LINES = 45


def draw_short(console: Console, summary: Summary, artifacts: Artifacts, *, show_http: bool = False) -> None:
    """Print the verdict, the headline figures and how well they are known, the first notes and the paths of the artifacts, and
    then the tables that flags ask for."""
    with console.capture() as figures:
        _print_figures(console, summary)
    files = list(_files(summary, artifacts))
    console.file.write(figures.get())
    _print_notes(console, summary, _LINES - figures.get().count("\n") - len(files))
    for line in files:
        console.print(line, soft_wrap=os.sep in line.plain)  # a path in one line can be copied
    if summary.slices or show_http or summary.server_metrics is not None or summary.gpu_telemetry is not None:
        console.print()
    print_slices(console, summary.slices)
    if show_http:
        print_metrics(console, "Penstock | HTTP Phases", "http", summary.metrics)
    print_telemetry(console, summary)


def _print_figures(console: Console, summary: Summary) -> None:
    if summary.certificate is not None:
        print_verdict(console, summary.certificate)
        console.print()
    print_failures(console, summary, _GROUPS_SHOWN, brief=True)
    if summary.succeeded:
        metrics = {metric.tag: summary.metrics[metric.tag] for metric in _headline(summary)}
        print_metrics(console, f"Penstock | {summary.title}", "main", metrics, _LAYOUTS, summary.certificate)
        print_uncertainty(console, summary, metrics)


def _headline(summary: Summary) -> Iterator[Metric]:
    """Yield the metrics that are shown, in the order of the table."""
    hidden = () if summary.certificate is None else summary.certificate.unobservable
    for metric in in_table("main"):
        if metric.tag not in summary.metrics or metric.tag in hidden:
            continue
        if metric.tag == "effective_latency":
            shown = _mean(summary, metric.tag) > _WAITED * _mean(summary, "request_latency")
        elif metric.tag == "input_token_throughput":  # the headline where the server generates no tokens
            shown = "output_token_throughput" not in summary.metrics
        else:
            shown = metric.tag not in _DETAILS
        if shown:
            yield metric


def _mean(summary: Summary, tag: str) -> float:
    stats: Stats | None = summary.metrics.get(tag)
    return 0.0 if stats is None or stats.avg is None else stats.avg


def _print_notes(console: Console, summary: Summary, room: int) -> None:
    """Print the first notes: as many as have room, at least one and at most five."""
    from rich.text import Text

    if summary.streaming_hint is not None:
        console.print(summary.streaming_hint)
        room -= 2
    found = [note for note in notes(summary) if note != summary.streaming_hint]
    room -= 3  # the title, the number of those that are left out, and an empty line
    shown = 0
    for note in found[:_NOTES_SHOWN]:
        with console.capture() as drawn:
            bullet(console, note)
        room -= drawn.get().count("\n")
        if shown and room < 0:
            break
        if not shown:
            console.print(Text("Notes:", style="bold"))
        console.file.write(drawn.get())
        shown += 1
    if shown < len(found):
        console.print(f"  {len(found) - shown} more: --verbose")
    if found or summary.streaming_hint is not None:
        console.print()


def _files(summary: Summary, artifacts: Artifacts) -> Iterator[Text]:
    from rich.text import Text

    duration = summary.metrics.get("benchmark_duration")
    if duration is not None:
        yield Text.assemble(("Benchmark Duration: ", "bold"), f"{duration.avg:,.2f} {duration.unit}")
    paths = artifacts.paths
    own_lines = {
        "JSON Export": artifacts.summary_json,
        "Raw Records": paths.get("raw"),
        "HTML Report": paths.get("html"),
    }
    for name, path in own_lines.items():
        if path is not None:
            yield Text.assemble((f"{name}: ", "bold"), path)
    others = (path for path in paths.values() if path not in own_lines.values() and os.path.exists(path))
    names = ", ".join(os.path.basename(path) for path in others)
    yield Text.assemble(("Beside it: ", "bold"), names)
