"""Prints how well the figures of a run are known: confidence intervals, and the figures of the steady state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.experiment import VariationFigures
from penstock.metrics.intervals import CONFIDENCE, FigureInterval, needed_for
from penstock.metrics.metric import label
from penstock.metrics.request_series import PERCENTS, Intervals
from penstock.metrics.statistics import Stats
from penstock.metrics.steady_state import OVERLOADED, CensoredBounds
from penstock.metrics.summary import Summary
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

UNSUPPORTED = "?"
"""Marks a percentile of too few requests."""
_NEEDED = {f"p{percent}": needed_for(percent) for percent in PERCENTS}
"""Requests that a percentile needs."""
_SHARES = ("good_request_fraction", "request_error_rate")
_ROWS = (
    "time_to_first_token",
    "inter_token_latency",
    "request_latency",
    "effective_latency",
    "request_throughput",
    "output_token_throughput",
    "goodput",
    *_SHARES,
)
_STATISTICS = ("avg", "p50", "p90", "p99")
_ALL_FIT = 120
"""Width from which on a line has room for all statistics."""
_WIDE = 160
"""Width from which on a line has room for all statistics with their bounds."""
_Part = tuple[str, dict[str, Stats], Intervals]
"""The whole run or its steady state: its name, figures and intervals."""


def print_certainty(console: Console, summary: Summary) -> None:
    """Print the intervals of the headline figures, of the whole run and, if requests precede it, of its steady state."""
    parts = [("whole run", summary.metrics, summary.intervals)]
    if summary.steady_state is not None and summary.steady_state.head:
        parts.append(("steady state", summary.steady_state.metrics, summary.steady_state.intervals))
    statistics = _STATISTICS if console.width >= _ALL_FIT else ("avg", "p99")
    rows = list(_rows(parts, statistics))
    if not rows:
        return
    from rich.table import Table as RichTable

    table = RichTable(
        title=f"Penstock | {CONFIDENCE:.0%} Confidence Intervals".replace("%", " %"),
        title_style="bold",
        header_style="bold",
    )
    table.add_column("Metric", justify="right", style="cyan")
    table.add_column("of", no_wrap=True)
    for name in statistics:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    _print_advice(console, parts, statistics, rows)


def _rows(parts: list[_Part], statistics: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for tag in _ROWS:
        shown = label(CATALOGUE[tag])
        for name, metrics, intervals in parts:
            if tag not in metrics or not any(map(_is_told, intervals.get(tag, {}).values())):
                continue
            yield shown, name, *(_cell(tag, metrics[tag], intervals[tag].get(each), each) for each in statistics)
            shown = ""


def _is_told(interval: FigureInterval) -> bool:
    """Return whether there is an interval, or how many requests it needs."""
    return interval.half_width is not None or interval.advice is not None


def print_uncertainty(console: Console, summary: Summary, shown: Collection[str]) -> None:
    """Print the intervals of the shown figures, and the bounds of their true values, in one table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    statistics = _STATISTICS if console.width >= _WIDE else ("avg", "p99")
    asked = tuple(tag for tag in _SHARES if tag == "good_request_fraction" or summary.failed)
    rows = []
    for tag in (tag for tag in _ROWS if tag in shown or tag in asked):
        stats, intervals = summary.metrics.get(tag), summary.intervals.get(tag, {})
        if stats is None:
            continue
        cells = [_cell(tag, stats, intervals.get(name), name) for name in statistics]
        bounds = summary.bounds.get(tag, {})
        if any(f"{bound.high - bound.low:.2f}" != "0.00" for bound in bounds.values()):
            cells = [
                f"{cell} [{bounds[name].low:,.2f}–{bounds[name].high:,.2f}]"
                for cell, name in zip(cells, statistics, strict=True)
            ]
        if any(cell != "-" for cell in cells):
            rows.append((label(CATALOGUE[tag]), *cells))
    if not rows:
        return
    of_bounds = ", [bounds of the true value]" if any("[" in cell for row in rows for cell in row) else ""
    table = Table(
        title=Text(f"Uncertainty: ± 95 % confidence interval{of_bounds}"),
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("Metric", justify="right", style="cyan")
    for name in statistics:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    _print_advice(console, [("", summary.metrics, summary.intervals)], statistics, rows)


def _print_advice(
    console: Console, parts: list[_Part], statistics: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Explain the mark of figures without an interval, if one of these rows has it."""
    if any(f"{UNSUPPORTED} " in f"{cell} " for row in rows for cell in row[1:]):
        needed = "; ".join(_advice(parts, statistics))
        console.print(
            f"{UNSUPPORTED} Too few independent requests for an interval"
            + (f". It needs: {needed}." if needed else ".")
        )
    console.print()


def _advice(parts: Iterable[_Part], statistics: Sequence[str]) -> Iterator[str]:
    """Yield what the figures without an interval need, by statistic: that of the first metric that lacks it."""
    for name in statistics:
        for tag in _ROWS:
            advice = [intervals[tag][name].advice for _, _, intervals in parts if name in intervals.get(tag, {})]
            if any(advice):
                yield f"{name} of {label(CATALOGUE[tag]).split(' (')[0].lower()}: {next(filter(None, advice))}"
                break


def _cell(tag: str, stats: Stats, interval: FigureInterval | None, name: str) -> str:
    value: float | None = getattr(stats, name)
    if value is None or interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{value:,.2f}{UNSUPPORTED}"
    if tag in _SHARES:  # at 0 and 1, one side is empty
        return f"{value:,.2f} ({interval.low:,.2f} to {interval.high:,.2f})"
    return f"{value:,.2f} ±{max(value - interval.low, interval.high - value, 0.0):,.2f}"


def mark(stats: Stats, name: str) -> str:
    """Return the mark of a percentile of too few requests, or nothing."""
    return UNSUPPORTED if stats.count is not None and stats.count < _NEEDED.get(name, 0) else ""


def figure_mark(variation: VariationFigures, name: str) -> str:
    """Return the mark of a figure such as `request_latency_p99`, if one of its runs had too few requests."""
    tag, _, statistic = name.rpartition("_")
    marks = (mark(run.metrics[tag], statistic) for run in variation.usable if tag in run.metrics)
    return next(filter(None, marks), "")


def print_mark(console: Console, cells: Iterable[tuple[Stats, str]]) -> None:
    """Explain the mark of percentiles, if one of these has it. A cell is a metric and the name of a statistic."""
    explain_mark(console, {name for stats, name in cells if getattr(stats, name) is not None and mark(stats, name)})


def explain_mark(console: Console, marked: Collection[str]) -> None:
    """Say how many requests these statistics need."""
    if marked:
        needed = ", ".join(f"{count} for {name}" for name, count in _NEEDED.items() if name in marked)
        console.print(f"{UNSUPPORTED} Too few requests for this percentile; needed are {needed}.")


def certainty_notes(summary: Summary) -> Iterator[str]:
    if summary.overload is not None:
        ended = "This ended the run (--stop-on-overload)." if summary.ended_by_overload else f"It is {OVERLOADED}."
        yield f"{summary.overload.sentence} {ended}"
    if summary.until is not None:
        target, requests = summary.until["target"], summary.until["requests"]
        if summary.until["reached"] and not summary.until.get("ended_run", True):
            yield f"The run ended at its limit, and {target} was reached with {counted(requests, 'request')}."
        elif summary.until["reached"]:
            yield f"The run ended because {target} was reached, after {counted(requests, 'request')}."
        elif requests:
            why = "" if summary.ended_by_overload else "The run ended at its limit: "
            yield f"{why}{target} was not reached with {counted(requests, 'request')}."
        else:
            yield f"The run ended at its limit: {target} was not reached, because no reply has this metric."
    if summary.steady_state is not None:
        steady = summary.steady_state
        yield (
            f"Steady state: {steady.begin_s:,.2f} s to {steady.end_s:,.2f} s after the first request, "
            f"{counted(steady.requests, 'request')}; {counted(steady.head, 'request')} before it."
        )
    if summary.censored is not None:
        bounds = summary.censored.bounds.get("request_latency", {})
        text = ", ".join(f"{name} {_range(bound)}" for name, bound in bounds.items())
        with_them = f" With them, request latency in ms is {text}." if text else ""
        yield f"{counted(summary.censored.requests, 'request')} had not ended when the run was cut off.{with_them}"


def _range(bound: CensoredBounds) -> str:
    high = "∞" if bound.high is None else f"{bound.high:,.2f}"
    return f"[{bound.low:,.2f}–{high}]"
