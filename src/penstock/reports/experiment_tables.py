"""The tables of an experiment over all its points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.metrics.catalogue import in_table
from penstock.metrics.confidence import Interval
from penstock.metrics.experiment import VariationFigures
from penstock.metrics.metric import label

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["draw_repeated", "with_half_width"]

_STATISTICS = ("avg", "p50", "p99")


def with_half_width(figure: Interval | None) -> str:
    """Return the mean, with ± half the width of its confidence interval if there are several runs."""
    if figure is None:
        return "-"
    half = figure.half_width
    return f"{figure.mean:,.2f}" if half is None else f"{figure.mean:,.2f} ± {half:,.2f}"


def draw_repeated(console: Console, cell: VariationFigures, level: float) -> None:
    """Print the figures of repeated runs, and the runs that failed."""
    from rich.table import Table

    usable = len(cell.usable)
    if usable:
        title = f"Penstock | Mean of {usable} Run{'s' if usable > 1 else ''} ± {100 * level:.4g} % Confidence Interval"
        table = Table(title=title, title_style="bold", header_style="bold")
        table.add_column("Metric", justify="right", style="cyan")
        for name in _STATISTICS:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("CV of avg", justify="right", no_wrap=True)
        for metric in in_table("main"):
            cells = [cell.figures.get(f"{metric.tag}_{name}") for name in _STATISTICS]
            if cells[0] is not None:
                table.add_row(label(metric), *map(with_half_width, cells), _percent(cells[0].cv))
        console.print(table)
        console.print()
    _failed_runs(console, [cell])


def _failed_runs(console: Console, variations: Sequence[VariationFigures]) -> None:
    from rich.text import Text

    for cell in variations:
        for run in cell.failed:
            console.print(Text.assemble((f"{run.label} is left out: ", "bold"), run.error or ""), soft_wrap=True)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
