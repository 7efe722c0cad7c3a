"""The final screen: failures first, then the table, then how far to trust it and where the files are."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

from penstock.metrics.catalogue import Metric, Table, in_table, label
from penstock.metrics.phase_stats import ErrorGroup
from penstock.metrics.statistics import Stats
from penstock.metrics.summary import Summary
from penstock.plural import counted
from penstock.reports.artifacts import Artifacts
from penstock.reports.error_text import one_line

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["WIDTH", "console_text", "draw"]

WIDTH = 140
"""Without a terminal, and in the file."""
_SEVEN = ("avg", "min", "max", "p99", "p90", "p50", "std")
_FIVE = ("avg", "min", "max", "p99", "p50")


class _Layout(NamedTuple):
    columns: tuple[str, ...]
    ruled: bool
    """With lines between the columns."""
    name: int
    """How wide the names must at least be; narrower than they are, they wrap."""


_LAYOUTS = (
    _Layout(_SEVEN, True, 1000),
    _Layout(_SEVEN[:6], True, 1000),
    _Layout(_FIVE, True, 1000),
    _Layout(_SEVEN, True, 30),
    _Layout(_SEVEN[:6], True, 30),
    _Layout(_FIVE, True, 30),
    _Layout(_FIVE, False, 22),
    _Layout(("avg", "max", "p99", "p50"), False, 22),
    _Layout(("avg", "p99", "p50"), False, 0),
)
"""From wide terminals to narrow ones."""
_ONE_LINE = 30
"""Longer names put their unit on a second line."""
_GROUPS_SHOWN = 10
_COLOURS = {"VALID": "bold green", "DEGRADED": "bold yellow", "INVALID": "bold red"}


def draw(console: Console, summary: Summary, artifacts: Artifacts, *, show_http: bool = False) -> None:
    """On a console of the caller's."""
    _render(console, summary, show_http)
    _paths(console, artifacts)


def console_text(summary: Summary, *, show_http: bool = False, width: int = WIDTH) -> str:
    """The same without colour and without the paths."""
    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False, color_system=None, force_terminal=False)
    _render(console, summary, show_http)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _render(console: Console, summary: Summary, show_http: bool) -> None:
    _failures(console, summary)
    _metrics(console, "Penstock | LLM Metrics", "main", summary.metrics)
    if show_http:
        _metrics(console, "Penstock | HTTP Phases", "http", summary.metrics)
    _certificate(console, summary)
    _notes(console, summary)


def _failures(console: Console, summary: Summary) -> None:
    if summary.errors:
        completed = summary.succeeded + summary.failed
        _error_table(console, f"Penstock | {summary.failed:,} of {completed:,} Requests Failed", summary.errors)
    if summary.warmup_errors:
        failed = sum(group.count for group in summary.warmup_errors)
        title = f"Penstock | {failed:,} of {summary.warmup_requests:,} Warmup Requests Failed"
        _error_table(console, title, summary.warmup_errors)


def _error_table(console: Console, title: str, groups: list[ErrorGroup]) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(title=title, title_style="bold red", header_style="bold")
    table.add_column("Count", justify="right", no_wrap=True)
    table.add_column("ErrorOwner", no_wrap=True)
    table.add_column("Code", justify="right", no_wrap=True)
    table.add_column("Type", overflow="fold")
    table.add_column("Message", overflow="fold", ratio=1)
    for group in groups[:_GROUPS_SHOWN]:
        code = "-" if group.code is None else str(group.code)
        table.add_row(f"{group.count:,}", group.owner, code, Text(group.type), Text(one_line(group.message)))
    console.print(table)
    if rest := groups[_GROUPS_SHOWN:]:
        console.print(f"and {sum(g.count for g in rest):,} more failures of {len(rest):,} other kinds.", style="red")
    console.print()


def _metrics(console: Console, title: str, table: Table, metrics: dict[str, Stats]) -> None:
    from rich import box
    from rich.table import Table as RichTable

    rows = [(metric, metrics[metric.tag]) for metric in in_table(table) if metric.tag in metrics]
    if not rows:
        return
    layout, name_width = _fit(rows, console.width)
    drawn = RichTable(title=title, title_style="bold", header_style="bold")
    if not layout.ruled:
        drawn.box, drawn.padding, drawn.pad_edge = box.SIMPLE_HEAD, (0, 0, 0, 1), False
    drawn.add_column("Metric", justify="right", style="cyan", max_width=name_width)
    for name in layout.columns:
        drawn.add_column(name, justify="right", no_wrap=True)
    for metric, stats in rows:
        drawn.add_row(_name(metric), *(_cell(stats, name) for name in layout.columns))
    console.print(drawn)
    console.print()


def _fit(rows: list[tuple[Metric, Stats]], width: int) -> tuple[_Layout, int]:
    """The first layout that leaves enough for the names, and how much it leaves."""
    longest = max(len(line) for metric, _ in rows for line in _name(metric).split("\n"))
    for layout in _LAYOUTS:
        between = 3 if layout.ruled else 2
        numbers = sum(max(len(name), *(len(_cell(s, name)) for _, s in rows)) + between for name in layout.columns)
        left = width - numbers - 4
        if left >= min(layout.name, longest):
            break
    return layout, max(left, 10)


def _name(metric: Metric) -> str:
    if len(metric.header) > _ONE_LINE:
        return f"{metric.header}\n({metric.unit})"
    return label(metric)


def _cell(stats: Stats, name: str) -> str:
    value: float | None = getattr(stats, name)
    return "-" if value is None else f"{value:,.2f}"


def _certificate(console: Console, summary: Summary) -> None:
    from rich.text import Text

    certificate = summary.certificate
    if certificate is None:
        return
    style = _COLOURS.get(certificate.verdict, "bold")
    found = f" ({certificate.summary})" if certificate.summary else ""
    console.print(Text.assemble(("Certificate: ", "bold"), (certificate.verdict, style), found))
    for reason in certificate.reasons:
        _bullet(console, reason)


def _notes(console: Console, summary: Summary) -> None:
    from rich.text import Text

    if summary.finish_reasons:
        said = ", ".join(f"{reason} {count:,}" for reason, count in summary.finish_reasons.items())
        console.print(Text.assemble(("Finish reasons: ", "bold"), said))
    tokenizer = summary.tokenizer
    if tokenizer.name is not None:
        console.print(Text.assemble(("Tokens counted by: ", "bold"), f"{tokenizer.name} ({tokenizer.source})"))
    notes = _remarks(summary)
    if notes:
        console.print(Text("Notes:", style="bold"))
        for note in notes:
            _bullet(console, note)


def _bullet(console: Console, text: str) -> None:
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable.grid(padding=(0, 1))
    grid.add_row("-", Text(text))
    console.print(Padding(grid, (0, 0, 0, 2)))


def _remarks(summary: Summary) -> list[str]:
    """What a reader of the table must know."""
    found = []
    if summary.incomplete_reason is not None:
        found.append(summary.incomplete_reason)
    elif summary.was_cancelled:
        found.append("The run was interrupted; these are the requests that had completed.")
    if summary.cancelled:
        found.append(f"Cancelled by us at the end and not counted: {counted(summary.cancelled, 'request')}.")
    lag = summary.metrics.get("replay_sched_lag_p99")
    if summary.queued:
        waited = (
            f"{counted(summary.queued, 'request')} waited for a free slot, up to {summary.longest_queued_ms:,.0f} ms"
        )
        missed = "the rate was not reached" if lag is None else "the recorded times were not kept"
        found.append(f"{waited}: {missed}. Effective latency counts that wait, request latency does not.")
    if lag is not None:
        half = summary.metrics["replay_sched_lag_p50"]
        found.append(
            f"Recorded times: requests went out {half.avg:.2f} ms (p50) and {lag.avg:.2f} ms (p99) after their own."
        )
    if summary.torn_bytes:
        lost = (
            "the requests in them are lost" if summary.torn_requests else "a worker's report on itself, and no request"
        )
        found.append(f"The last {counted(summary.torn_bytes, 'byte')} of the log were torn: {lost}.")
    if summary.note is not None:
        found.append(summary.note)
    if summary.tokenizer.note is not None:
        found.append(summary.tokenizer.note)
    if summary.broken_conversations:
        found.append(f"Conversations that ended early, because a turn failed: {summary.broken_conversations:,}.")
    found += [f"{what}: {count:,}." for what, count in summary.warnings.items()]
    if single := _count(summary, "single_stamp_request_count"):
        found.append(
            f"Arrived whole, with one time stamp: {single:,} of {counted(summary.succeeded, 'reply', 'replies')}. "
            "These have a time to first token, but no second token, no gaps and no decode duration."
        )
    if bounds := _count(summary, "coalesced_first_stamp_count"):
        found.append(
            f"The time to first token is an upper bound for {counted(bounds, 'request')}: the stamp covers several "
            "network segments."
        )
    if off := _count(summary, "osl_mismatch_count"):
        found.append(f"Off the length asked for by more than 5 % or 50 tokens: {counted(off, 'reply', 'replies')}.")
    if off := _count(summary, "usage_discrepancy_count"):
        found.append(
            f"The server's token counts and ours differ by more than 10 % for {counted(off, 'request')}: another "
            "tokenizer, or the server's chat template."
        )
    return found


def _count(summary: Summary, tag: str) -> int:
    stats = summary.metrics.get(tag)
    return 0 if stats is None or stats.avg is None else int(stats.avg)


def _paths(console: Console, artifacts: Artifacts) -> None:
    from rich.text import Text

    console.print()
    for name, path in (
        ("CSV Export", artifacts.summary_csv),
        ("JSON Export", artifacts.summary_json),
        ("Per-Request Export", artifacts.records),
        ("Inputs", artifacts.inputs),
    ):
        if path is not None:
            # One line however long, so that it can be copied.
            console.print(Text.assemble((f"{name}: ", "bold"), path), soft_wrap=True)
