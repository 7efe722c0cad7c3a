"""The tables of an experiment over all its points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.metrics.capacity import SearchOutcome
from penstock.metrics.catalogue import in_table
from penstock.metrics.experiment import VariationFigures, shown_parameter
from penstock.metrics.metric import label
from penstock.metrics.sweep import SATURATED_SHARE, latency_figure, pareto_optimal, saturation
from penstock.reports.certainty_table import explain_mark, figure_mark
from penstock.reports.search_page import limit_sentence, search_notes

if TYPE_CHECKING:
    from rich.console import Console

_STATISTICS = ("avg", "p50", "p99")


UNOBSERVED = "- The tokens arrived closer together than reads can tell apart, so this figure cannot be observed."


def _cell(variation: VariationFigures, name: str) -> str:
    """Return the mean, with ± half the width of its confidence interval if there are several runs, and the mark of a percentile
    of too few requests."""
    figure = variation.shown(name)
    if figure is None:
        return "-"
    half = "" if figure.half_width is None else f" ± {figure.half_width:,.2f}"
    return f"{figure.mean:,.2f}{figure_mark(variation, name)}{half}"


def _explain_cells(console: Console, variations: Sequence[VariationFigures], names: Sequence[str]) -> None:
    """Explain the mark of percentiles of too few requests, and the dash of figures that cannot be observed."""
    marked = (name for name in names for each in variations if name in each.figures and figure_mark(each, name))
    explain_mark(console, {name.rpartition("_")[2] for name in marked})
    if any(name in each.figures and each.shown(name) is None for each in variations for name in names):
        console.print(UNOBSERVED)


def draw_repeated(console: Console, cell: VariationFigures, confidence: float) -> None:
    """Print the figures of repeated runs, and name the runs that failed."""
    from rich.table import Table

    usable = len(cell.usable)
    if usable:
        title = (
            f"Penstock | Mean of {usable} Run{'s' if usable > 1 else ''} ± {100 * confidence:.4g} % Confidence Interval"
        )
        table = Table(title=title, title_style="bold", header_style="bold")
        table.add_column("Metric", justify="right", style="cyan")
        for name in _STATISTICS:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("CV of avg", justify="right", no_wrap=True)
        names = []
        for metric in in_table("main"):
            first, *others = (f"{metric.tag}_{name}" for name in _STATISTICS)
            if (mean := cell.shown(first)) is not None:
                names += [first, *others]
                table.add_row(label(metric), *(_cell(cell, name) for name in (first, *others)), _percent(mean.cv))
        console.print(table)
        _explain_cells(console, [cell], names)
        console.print()
    _failed_runs(console, [cell])


def draw_sweep(
    console: Console, variations: Sequence[VariationFigures], *, auto: bool = False, left_out: str | None = None
) -> None:
    """Print a row for each point, with the certificate of its runs or why it failed; with `auto`, which one saturates the
    server. `left_out` names points that were not run."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not variations:
        return
    table = Table(
        title="Penstock | Sweep",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )
    names = list(variations[0].parameters)
    columns = [(name, title) for name, title in _COLUMNS if any(name in each.figures for each in variations)]
    for title in (*(name.replace("_", " ") for name in names), *(title for _, title in columns)):
        table.add_column(title, justify="right")
    table.add_column("Certificate")
    optimal = [each.label for each in pareto_optimal(variations)]
    for each in variations:
        values = map(shown_parameter, each.parameters.values())
        figures = [_cell(each, name) for name, _ in columns]
        table.add_row(*values, *figures, Text(_verdict(each) + (" *" if each.label in optimal else "")))
    console.print(table)
    _explain_cells(console, variations, [name for name, _ in columns])
    if optimal:
        title = "first token" if latency_figure(variations).startswith("time") else "request latency"
        console.print(f"* No other point has both a higher throughput and a lower p99 of the {title}.")
    if auto and (point := saturation(variations)) is not None:
        console.print(
            f"The server is saturated from concurrency {point.parameters['concurrency']} on: the lowest with "
            f"{SATURATED_SHARE:.0%} of the highest throughput."
        )
    _failed_runs(console, variations)
    if left_out is not None:
        console.print(Text(left_out), soft_wrap=True)
    console.print()


def draw_search(console: Console, search: SearchOutcome) -> None:
    """Print a row for each load of a search, and the limit with its interval."""
    from rich.table import Table
    from rich.text import Text

    name = search.parameter.replace("_", " ")
    table = Table(
        title=f"Penstock | Largest {name.title()} within the Objectives", title_style="bold", header_style="bold"
    )
    for head in (
        name.capitalize(),
        "Requests",
        *(f"Misses: {slo.text}" for slo in search.slos),
        "Decision",
        "Certificate",
    ):
        table.add_column(head, justify="right", overflow="fold")
    for load in search.result.loads:
        shares = (f"{misses} ({misses / max(1, load.requests):.1%})" for misses in load.misses)
        verdict = search.certificates.get(load.value, "")
        table.add_row(f"{load.value:g}", f"{load.requests:,}", *shares, load.decision or "undecided", verdict)
    console.print(table)
    console.print(Text(limit_sentence(search), style="bold"), soft_wrap=True)
    for note in search_notes(search):
        console.print(Text(note), soft_wrap=True)
    console.print()


_COLUMNS = (
    ("request_throughput_avg", "requests/s"),
    ("output_token_throughput_avg", "output\ntokens/s"),
    ("time_to_first_token_p50", "TTFT p50\n(ms)"),
    ("time_to_first_token_p99", "TTFT p99\n(ms)"),
    ("inter_token_latency_p50", "ITL p50\n(ms)"),
    ("request_latency_p50", "latency\np50 (ms)"),
    ("request_latency_p99", "latency\np99 (ms)"),
)
_VERDICTS = ("INVALID", "DEGRADED", "VALID")


def _verdict(variation: VariationFigures) -> str:
    """Return the worst certificate of the runs, and how many failed."""
    verdicts = [run.verdict for run in variation.usable]
    worst = next((verdict for verdict in _VERDICTS if verdict in verdicts), "")
    failed = len(variation.failed)
    if not failed:
        return worst
    return f"{worst}, {failed} failed" if worst else "failed"


def _failed_runs(console: Console, variations: Sequence[VariationFigures]) -> None:
    from rich.text import Text

    for cell in variations:
        for run in cell.failed:
            name = run.label if run.label == cell.label or not cell.parameters else f"{cell.label} {run.label}"
            console.print(Text.assemble((f"{name} is left out: ", "bold"), run.error or ""), soft_wrap=True)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
