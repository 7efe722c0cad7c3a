"""The final screen with all tables: failures, metrics, the certificate, notes and the paths of the files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.metrics.bounds import STATISTICS
from penstock.metrics.catalogue import CATALOGUE, in_table
from penstock.metrics.certificate import Certificate
from penstock.metrics.metric import Metric, Table, label
from penstock.metrics.phase_stats import ErrorGroup
from penstock.metrics.statistics import Stats
from penstock.metrics.summary import Summary
from penstock.metrics.token_agreement import TOKEN_METRICS
from penstock.plural import counted
from penstock.reports.artifacts import Artifacts, replacing
from penstock.reports.certainty_table import certainty_notes, mark, print_certainty, print_mark
from penstock.reports.error_text import one_line
from penstock.reports.sink import Sink
from penstock.reports.slices_table import print_slices
from penstock.settings.endpoint_types import DEFAULT
from penstock.telemetry.concepts import CONCEPT_HEADERS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

WIDTH = 140
"""Width of the file, and of the screen without a terminal."""
SEVEN = ("avg", "min", "max", "p99", "p90", "p50", "std")
FIVE = ("avg", "min", "max", "p99", "p50")


class Layout(NamedTuple):
    columns: tuple[str, ...]
    ruled: bool
    """Draw lines between the columns."""
    name: int
    """Minimum width of the metric names, at most that of the longest. Longer names wrap."""


_LAYOUTS = (
    Layout(SEVEN, True, 1000),
    Layout(SEVEN[:6], True, 1000),
    Layout(FIVE, True, 1000),
    Layout(SEVEN, True, 30),
    Layout(SEVEN[:6], True, 30),
    Layout(FIVE, True, 30),
    Layout(FIVE, False, 22),
    Layout(("avg", "max", "p99", "p50"), False, 22),
    Layout(("avg", "p99", "p50"), False, 0),
)
"""From wide terminals to narrow ones; the first that fits is used."""
_ONE_LINE = 30
"""Metrics with a longer name show their unit on a second line."""
_GROUPS_SHOWN = 10
_OTHER_COLUMNS, _LEAST_MESSAGE = 30, 40
"""Characters of the columns beside the type and the message of a failure, and of a message that is cut."""
_COLOURS = {"VALID": "bold green", "DEGRADED": "bold yellow", "INVALID": "bold red"}


class ConsoleText(Sink):
    """Writes the screen as text, without colour and without the footer."""

    def finish(self, summary: Summary) -> None:
        with replacing(self.path) as file:
            output = self.context.header.settings.output
            text = console_text(summary, show_http=output.show_http, show_timeline=output.verbose)
            file.write(text.encode())


def draw(
    console: Console, summary: Summary, artifacts: Artifacts, *, show_http: bool = False, show_timeline: bool = False
) -> None:
    """Print the summary, the benchmark duration and the paths of the artifacts."""
    _render(console, summary, show_http, show_timeline)
    _footer(console, summary, artifacts)


def console_text(summary: Summary, *, show_http: bool = False, show_timeline: bool = False, width: int = WIDTH) -> str:
    """Return the summary as text, without colour and without the footer."""
    from rich.console import Console

    text = io.StringIO()
    console = Console(
        file=text, width=width, highlight=False, color_system=None, force_terminal=False, markup=False, emoji=False
    )
    _render(console, summary, show_http, show_timeline)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _render(console: Console, summary: Summary, show_http: bool, show_timeline: bool) -> None:
    print_failures(console, summary)
    if show_timeline:
        print_metrics(console, "Penstock | LLM Metrics: Effective", "effective", summary.metrics)
        print_metrics(console, "Penstock | LLM Metrics: Active", "active", summary.metrics)
    print_metrics(console, f"Penstock | {summary.title}", "main", summary.metrics, certificate=summary.certificate)
    print_certainty(console, summary)
    _both_counts(console, summary)
    print_slices(console, summary.slices)
    if show_http:
        print_metrics(console, "Penstock | HTTP Phases", "http", summary.metrics)
    print_telemetry(console, summary)
    if summary.certificate is not None:
        print_verdict(console, summary.certificate)
        _bounds(console, summary)
    _print_notes(console, summary)


def print_telemetry(console: Console, summary: Summary) -> None:
    _server_metrics(console, summary)
    _gpus(console, summary)
    print_metrics(console, "Penstock | GPU Power", "power", summary.metrics)


def print_failures(
    console: Console, summary: Summary, most_groups: int = _GROUPS_SHOWN, *, brief: bool = False
) -> None:
    """Print the groups of failures; `brief`, with one line each."""
    if summary.errors:
        completed = summary.succeeded + summary.failed
        title = f"Penstock | {summary.failed:,} of {completed:,} Requests Failed"
        _error_table(console, title, summary.errors, most_groups, brief)
    if summary.warmup_errors:
        failed = sum(group.count for group in summary.warmup_errors)
        title = f"Penstock | {failed:,} of {summary.warmup_requests:,} Warmup Requests Failed"
        _error_table(console, title, summary.warmup_errors, most_groups, brief)


def _error_table(console: Console, title: str, groups: list[ErrorGroup], most_groups: int, brief: bool) -> None:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(title=title, title_style="bold red", header_style="bold")
    if brief:
        table.box, table.padding, table.show_edge = box.SIMPLE_HEAD, (0, 0, 0, 1), False
    table.add_column("Count", justify="right", no_wrap=True)
    table.add_column("Fault", no_wrap=True)
    table.add_column("Code", justify="right", no_wrap=True)
    table.add_column("Type", overflow="fold")
    table.add_column("Message", overflow="fold", ratio=1)
    room = console.width - max(len(group.type) for group in groups) - _OTHER_COLUMNS
    for group in groups[:most_groups]:
        code = "-" if group.code is None else str(group.code)
        message = Text(one_line(group.message))
        if brief:
            message.truncate(max(room, _LEAST_MESSAGE), overflow="ellipsis")
        table.add_row(f"{group.count:,}", group.owner, code, Text(group.type), message)
    console.print(table)
    if hidden := groups[most_groups:]:
        more = counted(sum(group.count for group in hidden), "more failure")
        console.print(f"and {more} of {counted(len(hidden), 'other kind')}.", style="red")
    console.print()


def print_metrics(
    console: Console,
    title: str,
    table: Table,
    metrics: dict[str, Stats],
    layouts: Sequence[Layout] | None = None,
    certificate: Certificate | None = None,
) -> None:
    """Print the metrics of a table. The names of those that are INVALID say so."""
    from rich import box
    from rich.table import Table as RichTable

    rows = [(metric, metrics[metric.tag]) for metric in in_table(table) if metric.tag in metrics]
    if not rows:
        return
    layout, name_width = _fit(rows, console.width, layouts or _LAYOUTS)
    drawn = RichTable(title=title, title_style="bold", header_style="bold")
    if not layout.ruled:
        drawn.box, drawn.padding, drawn.pad_edge, drawn.show_edge = box.SIMPLE_HEAD, (0, 0, 0, 1), False, False
    drawn.add_column("Metric", justify="right", style="cyan", max_width=name_width)
    for name in layout.columns:
        drawn.add_column(name, justify="right", no_wrap=True)
    for metric, stats in rows:
        judged = None if certificate is None else certificate.metrics.get(metric.tag)
        mark = "" if judged is None or judged.verdict in ("VALID", "DEGRADED") else f", {judged.verdict}"
        drawn.add_row(f"{_name(metric)}{mark}", *(_cell(stats, name) for name in layout.columns))
    console.print(drawn)
    print_mark(console, ((stats, name) for _, stats in rows for name in layout.columns))
    console.print()


def _both_counts(console: Console, summary: Summary) -> None:
    """Print the token metrics by the counts of client and server, if these do not agree."""
    from rich.table import Table as RichTable

    agreement = summary.token_agreement
    if agreement is None or agreement.by_client_count is None or agreement.by_server_count is None:
        return
    statistics = ("avg", "p50", "p99") if console.width >= WIDTH else ("avg",)
    by_counts = (("client", agreement.by_client_count), ("server", agreement.by_server_count))
    table = RichTable(title="Penstock | Token Metrics by Both Counts", title_style="bold", header_style="bold")
    table.add_column("Metric", justify="right", style="cyan")
    for side, _ in by_counts:
        for name in statistics:
            table.add_column(f"{side} {name}", justify="right", no_wrap=True)
    for tag in TOKEN_METRICS:
        rows = [metrics.get(tag) for _, metrics in by_counts]
        if any(rows):
            cells = ["-" if stats is None else _cell(stats, name) for stats in rows for name in statistics]
            table.add_row(_name(CATALOGUE[tag]), *cells)
    console.print(table)
    console.print()


def _table_of_sources(title: str, source: str, statistics: Sequence[str]) -> RichTable:
    """Return an empty table with a column for the source of the metrics and one for each statistic."""
    from rich.table import Table as RichTable

    table = RichTable(title=f"Penstock | {title}", title_style="bold", header_style="bold")
    table.add_column(source, overflow="fold")
    table.add_column("Metric", justify="right", style="cyan")
    for name in statistics:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _server_metrics(console: Console, summary: Summary) -> None:
    """Print what the servers reported about themselves."""
    metrics = summary.server_metrics
    if metrics is None or not metrics.successful:
        return
    table = _table_of_sources("Server Metrics", "Server", ("avg", "max", "total"))
    for url in metrics.successful:
        for name, figures in metrics.concepts[url].items():
            header = CONCEPT_HEADERS.get(name)
            if header is not None:
                cells = (figures.avg, figures.max, figures.total)
                table.add_row(url, f"{header} ({figures.unit})", *("-" if c is None else f"{c:,.2f}" for c in cells))
                url = ""  # noqa: PLW2901 - shown once
    console.print(table)
    console.print()


def _gpus(console: Console, summary: Summary) -> None:
    telemetry = summary.gpu_telemetry
    if telemetry is None or not telemetry.gpus:
        return
    statistics = ("avg", "min", "max")
    table = _table_of_sources("GPU Telemetry", "GPU", statistics)
    for gpu in telemetry.all_gpus:
        shown = f"{gpu.gpu_index}: {gpu.gpu_name}"
        for tag, figures in gpu.metrics.items():
            cells = ("-" if name not in figures else f"{figures[name]:,.2f}" for name in statistics)
            table.add_row(shown, f"{tag.removeprefix('nvidia_').replace('_', ' ')} ({figures['unit']})", *cells)
            shown = ""
    console.print(table)
    console.print()


def _fit(rows: list[tuple[Metric, Stats]], width: int, layouts: Sequence[Layout]) -> tuple[Layout, int]:
    """Return the first layout that leaves enough width for the names, and that width."""
    longest = max(len(line) for metric, _ in rows for line in _name(metric).split("\n"))
    for layout in layouts:
        separator = 3 if layout.ruled else 2
        numbers = sum(max(len(name), *(len(_cell(s, name)) for _, s in rows)) + separator for name in layout.columns)
        remaining = width - numbers - 4
        if remaining >= min(layout.name, longest):
            break
    return layout, max(remaining, 10)


def _name(metric: Metric) -> str:
    if len(metric.header) > _ONE_LINE:
        return f"{metric.header}\n({metric.unit})"
    return label(metric)


def _cell(stats: Stats, name: str) -> str:
    value: float | None = getattr(stats, name)
    return "-" if value is None else f"{value:,.2f}{mark(stats, name)}"


def print_verdict(console: Console, certificate: Certificate) -> None:
    """Print the verdict with its reasons, and why metrics are left out."""
    from rich.text import Text

    style = _COLOURS.get(certificate.verdict, "bold")
    details = f" ({certificate.summary})" if certificate.summary else ""
    console.print(Text.assemble(("Certificate: ", "bold"), (certificate.verdict, style), details))
    for reason in (*certificate.reasons, *certificate.left_out):
        bullet(console, reason)


def _bounds(console: Console, summary: Summary) -> None:
    """Print the headline figures whose bounds differ from the figure as it is shown."""
    from rich.table import Table as RichTable
    from rich.text import Text

    rows = []
    for tag, figures in summary.bounds.items():
        cells = [f"{f.value:,.2f} [{f.low:,.2f}–{f.high:,.2f}]" for f in figures.values()]
        if any(f"{f.high - f.low:.2f}" != "0.00" for f in figures.values()):
            rows.append((label(CATALOGUE[tag]), *cells))
    if not rows:
        return
    console.print(Text("Figures with the bounds of their true values:", style="bold"))
    table = RichTable(box=None, padding=(0, 1), pad_edge=True)
    table.add_column("")
    for name in STATISTICS:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_notes(console: Console, summary: Summary) -> None:
    from rich.text import Text

    if load := _load_over_time(summary.metrics):
        console.print(Text.assemble(("Average load: ", "bold"), load))
    if summary.finish_reasons:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in summary.finish_reasons.items())
        console.print(Text.assemble(("Finish reasons: ", "bold"), reasons))
    tokenizer = summary.tokenizer
    if tokenizer.name is not None:
        console.print(Text.assemble(("Tokens counted by: ", "bold"), f"{tokenizer.name} ({tokenizer.source})"))
    if sentences := list(notes(summary)):
        console.print(Text("Notes:", style="bold"))
        for note in sentences:
            bullet(console, note)


def _load_over_time(metrics: dict[str, Stats]) -> str | None:
    """Return the averages of the time-line metrics that describe the load, or None if there was no prefill to tell apart."""
    tags = (
        "effective_concurrency",
        "effective_prefill_concurrency",
        "effective_decode_concurrency",
        "tokens_in_flight",
    )
    total, prefill, decode, tokens = (metrics.get(tag) for tag in tags)
    if total is None or prefill is None or decode is None:
        return None
    load = (
        f"{total.avg:,.2f} requests in flight, of which {prefill.avg:,.2f} in prefill and {decode.avg:,.2f} in decode"
    )
    return load if tokens is None else f"{load}; {tokens.avg:,.0f} tokens in flight"


def bullet(console: Console, text: str) -> None:
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable.grid(padding=(0, 1))
    grid.add_row("-", Text(text))
    console.print(Padding(grid, (0, 0, 0, 2)))


def notes(summary: Summary) -> Iterator[str]:
    """Yield what a reader of the table must know."""
    if summary.incomplete_reason is not None:
        yield summary.incomplete_reason
    elif summary.was_cancelled:
        yield "The run was interrupted; the results cover the requests that had completed."
    yield from certainty_notes(summary)
    if summary.cancelled:
        yield f"Cancelled by the client and not counted: {counted(summary.cancelled, 'request')}."
    if "replay_sched_lag_p99" in summary.metrics:
        yield _replay_lag(summary.metrics)
    elif summary.queued:
        yield (
            f"{counted(summary.queued, 'request')} waited up to {summary.longest_queued_ms:,.0f} ms for a free slot, so the "
            "rate was not reached. Effective latency includes this wait; request latency does not."
        )
    waited = None if summary.certificate is None else summary.certificate.figures.get("refusals_waited_s")
    if isinstance(waited, float) and waited:
        yield f"Slots waited {waited:,.1f} s in all before they sent to a server again that had refused connections."
    if summary.damage.torn_bytes:
        lost = (
            "the requests in them are lost"
            if summary.damage.torn_requests
            else "a worker's report is lost, but no request"
        )
        yield f"The last {counted(summary.damage.torn_bytes, 'byte')} of the log are incomplete: {lost}."
    if summary.damage.skipped_bytes:
        places = counted(summary.damage.skipped_places, "place")
        skipped = counted(summary.damage.skipped_bytes, "byte")
        yield f"The log is damaged in {places}: {skipped} were skipped, and the requests in them are lost."
    if summary.note is not None:
        yield summary.note
    if summary.tokenizer.note is not None:
        yield summary.tokenizer.note
    if missing := _without_input_length(summary):
        yield (
            "Requests without an input length, because no text was found in their bodies: "
            f"{missing:,} of {summary.succeeded:,}."
        )
    if summary.streaming_hint is not None:
        yield summary.streaming_hint
    yield from _telemetry_notes(summary)
    if summary.broken_conversations:
        yield f"Conversations that ended early because a turn failed: {summary.broken_conversations:,}."
    yield from (f"{warning}: {count:,}." for warning, count in summary.warnings.items())
    yield from summary.reply_notes
    if summary.prompt_reuse is not None:
        yield from summary.prompt_reuse.notes()
    if count := _count(summary, "single_stamp_request_count"):
        yield (
            f"Replies that arrived with a single timestamp: {count:,} of {summary.succeeded:,}. They have a time to first "
            "token, but no second token, no gaps and no decode duration."
        )
    if count := _count(summary, "osl_mismatch_count"):
        yield f"Replies that differ from the requested length by more than 5 % or 50 tokens: {count:,}."
    if count := _count(summary, "usage_discrepancy_count"):
        yield (
            f"The token counts of server and client differ by more than 10 % for {counted(count, 'request')}. The server "
            "may use another tokenizer or add a chat template."
        )


def _replay_lag(metrics: Mapping[str, Stats]) -> str:
    """Return how late the requests of a replay were sent, and how much of it server and client caused."""
    median, lag = metrics["replay_sched_lag_p50"].avg, metrics["replay_sched_lag_p99"].avg
    server, client = metrics["replay_server_lag"], metrics["replay_client_lag"]
    text = f"Requests were sent {median:,.2f} ms (p50) and {lag:,.2f} ms (p99) after their recorded times"
    if not server.max:
        return f"{text}."
    return (
        f"{text}: {server.p99:,.2f} ms (p99) for earlier replies of the server, {client.p99:,.2f} ms (p99) in the client. "
        "Effective latency counts from the recorded times."
    )


def _without_input_length(summary: Summary) -> int:
    """Return how many successful requests have no input length although a tokenizer counted."""
    stats = summary.metrics.get("input_sequence_length")
    # Endpoints that are not for language models, such as one for audio, may have no text in any request.
    if summary.tokenizer.name is None or (stats is None and summary.title != DEFAULT.title):
        return 0
    return summary.succeeded - (0 if stats is None else stats.count or 0)


def _telemetry_notes(summary: Summary) -> Iterator[str]:
    if summary.gpu_telemetry is not None:
        for url, why in summary.gpu_telemetry.errors.items():
            yield f"No GPU telemetry from {url}: {why}"
    yield from _network_notes(summary)
    metrics = summary.server_metrics
    if metrics is None:
        return
    for url, why in metrics.errors.items():
        yield f"No server metrics from {url}: {why}"
    for url, count in metrics.failed_scrapes.items():
        yield f"{counted(count, 'scrape')} of {url} failed; the figures come from the others."
    for url, figures in metrics.concepts.items():
        if figures["restarts"].total:
            yield f"The server at {url} restarted during the run."


def _network_notes(summary: Summary) -> Iterator[str]:
    network = summary.network
    if network is None:
        return
    if network.rtt_ms is None:
        yield f"The network latency is not known: no probe of the servers succeeded ({network.error})."
    elif network.failed:
        yield f"{counted(network.failed, 'probe')} of the network latency failed; the mean is that of the others."
    if network.clamped:
        yield (
            f"Some requests took less than the network's round trip of {network.rtt_ms:.3g} ms ({', '.join(network.clamped)}), "
            "so it is not that of the requests; their adjusted values are 0."
        )


def _count(summary: Summary, tag: str) -> int:
    stats = summary.metrics.get(tag)
    return 0 if stats is None or stats.avg is None else int(stats.avg)


def _footer(console: Console, summary: Summary, artifacts: Artifacts) -> None:
    """Print the duration and the paths, in AIPerf's order."""
    from rich.text import Text

    duration = summary.metrics.get("benchmark_duration")
    console.print()
    for name, value in (
        ("Benchmark Duration", None if duration is None else f"{duration.avg:,.2f} {duration.unit}"),
        ("CSV Export", artifacts.summary_csv),
        ("JSON Export", artifacts.summary_json),
        ("Timeslice CSV Export", artifacts.paths.get("slices_csv")),
        ("Timeslice JSON Export", artifacts.paths.get("slices_json")),
        ("Per-Request Export", artifacts.records),
        ("Raw Records", artifacts.paths.get("raw")),
        ("Inputs", artifacts.inputs),
        *_server_metrics_files(summary, artifacts),
        ("HTML Report", artifacts.paths.get("html")),
    ):
        if value is not None:
            # Do not wrap, so that a path can be copied.
            console.print(Text.assemble((f"{name}: ", "bold"), value), soft_wrap=True)


def _server_metrics_files(summary: Summary, artifacts: Artifacts) -> Iterator[tuple[str, str | None]]:
    metrics = summary.server_metrics or summary.server_readings
    if metrics is not None and metrics.successful:
        for name in ("csv", "json", "jsonl"):
            yield f"Server Metrics {name.upper()} Export", artifacts.paths.get(f"server_metrics_{name}")
