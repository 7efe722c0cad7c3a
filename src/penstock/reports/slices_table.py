"""The table of time slices on the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metrics.slices import Slice
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS = (
    ("Requests", "request_count", "avg", 0),
    ("Failed", "error_request_count", "avg", 0),
    ("Requests/s", "request_throughput", "avg", 2),
    ("Latency p50 (ms)", "request_latency", "p50", 2),
    ("TTFT p50 (ms)", "time_to_first_token", "p50", 2),
    ("Output tokens/s", "output_token_throughput", "avg", 2),
    ("In flight", "effective_concurrency", "avg", 2),
    ("Latency p99 (ms)", "request_latency", "p99", 2),
    ("TTFT p99 (ms)", "time_to_first_token", "p99", 2),
    ("ITL p50 (ms)", "inter_token_latency", "p50", 2),
)
"""Heading, metric, statistic and decimals. A narrow screen shows only the first ones."""
_COLUMN_WIDTH = 12
_SHOWN = 20


def print_slices(console: Console, slices: list[Slice]) -> None:
    """Print a row for each of the first slices, with the columns that have values."""
    from rich.table import Table

    if not slices:
        return
    present = [column for column in _COLUMNS if any(column[1] in part.metrics for part in slices)]
    columns = present[: max(2, console.width // _COLUMN_WIDTH - 1)]
    table = Table(title="Penstock | Time Slices", title_style="bold", header_style="bold")
    table.add_column("Time (s)", justify="right", style="cyan", no_wrap=True)
    for heading, *_ in columns:
        table.add_column(heading, justify="right")
    for part in slices[:_SHOWN]:
        cells = (_cell(part, tag, statistic, decimals) for _, tag, statistic, decimals in columns)
        table.add_row(_time(part, slices[0].start_ns), *cells)
    console.print(table)
    if hidden := slices[_SHOWN:]:
        console.print(f"and {counted(len(hidden), 'more slice')} in the files.")
    console.print()


def _time(part: Slice, origin: int) -> str:
    return f"{(part.start_ns - origin) / 1e9:,.2f}–{(part.end_ns - origin) / 1e9:,.2f}"


def _cell(part: Slice, tag: str, statistic: str, decimals: int) -> str:
    stats = part.metrics.get(tag)
    value = None if stats is None else getattr(stats, statistic)
    return "-" if value is None else f"{value:,.{decimals}f}"
