"""The catalogue of metrics: tag, name, unit, console table, formula and limits of each.

Tags, names and units are AIPerf's where AIPerf has the metric. Metrics appear in the order of the entries in the
per-request file and, after the keys whose order AIPerf fixes, in the summary.

In the notes, `start` is the time just before the request's first byte is handed to the socket. `stamp[i]` is the time at
which the i-th piece of content arrived; pieces that arrive together share one stamp. `first` and `last` are the first and
the last stamp, and `end` is the arrival of the reply's last byte.

A metric of kind `record` has one value per request, `list` has several, `run` has one per phase. Record and list metrics
cover the successful requests of the phase.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["ADJUSTED", "CATALOGUE", "Metric", "Table", "in_table", "label"]

Kind = Literal["record", "list", "run"]
Table = Literal["main", "http"]
Tokens = Literal["input_tokens", "output_tokens"]
"""Fields of `settings.endpoint_types.Declaration`."""


class Metric(msgspec.Struct, frozen=True):
    tag: str
    header: str
    unit: str
    kind: Kind
    note: str
    table: Table | None = None
    """The console table that shows the metric; None hides it."""
    order: int = 0
    larger_is_better: bool = False
    needs: Tokens | None = None
    """The metric fits only endpoints that declare such tokens. Run metrics follow from the record metrics."""


def _record(
    tag: str,
    header: str,
    unit: str,
    note: str,
    *,
    order: int = 0,
    larger: bool = False,
    table: Table = "main",
    needs: Tokens | None = None,
) -> Metric:
    return Metric(tag, header, unit, "record", note, table if order else None, order, larger, needs)


def _run(tag: str, header: str, unit: str, note: str, *, order: int = 0, larger: bool = False) -> Metric:
    return Metric(tag, header, unit, "run", note, "main" if order else None, order, larger)


_PER_USER = "tokens/sec/user"

_TIMES = (
    _record(
        "time_to_first_token",
        "Time to First Token",
        "ms",
        "first - start. Present if the reply was streamed and had content. Reasoning counts as content. An upper bound "
        "for the requests in coalesced_first_stamp_count.",
        order=100,
        needs="output_tokens",
    ),
    _record(
        "time_to_second_token",
        "Time to Second Token",
        "ms",
        "stamp[1] - stamp[0]. Absent if several pieces of content arrived with the first stamp. A piece may hold "
        "several tokens.",
        order=200,
        needs="output_tokens",
    ),
    _record(
        "time_to_first_output_token",
        "Time to First Output Token",
        "ms",
        "Arrival of the first content that is not reasoning - start. Absent if the reply was all reasoning.",
        order=210,
        needs="output_tokens",
    ),
    _record(
        "request_latency",
        "Request Latency",
        "ms",
        "last - start if streamed, so a trailing usage event or [DONE] does not count; end - start otherwise. Excludes "
        "the time that a request waited to be sent; effective_latency includes it.",
        order=300,
    ),
    _record(
        "gateway_time",
        "Gateway Time",
        "ms",
        "total - upstream from the reply's Server-Timing header: the time that a gateway spent itself until it sent the "
        "reply headers. Excludes later work, such as guardrails on a stream.",
        order=320,
    ),
    _record(
        "upstream_time",
        "Upstream Time",
        "ms",
        "upstream from the reply's Server-Timing header: the time that the gateway waited for the server behind it, "
        "including the connection set-up. Ends at the first byte of a stream and at the last byte of any other reply.",
        order=321,
    ),
    _record(
        "effective_latency",
        "Effective Latency (CO-aware)",
        "ms",
        "request_latency + the time from the scheduled send to start. CO is coordinated omission: a client that waits for "
        "a slow server sends fewer requests exactly when the server is slow. In a closed loop a request is scheduled when "
        "its slot becomes free, so this is close to request_latency. At a fixed rate it adds the time that the request "
        "waited in the client.",
        order=305,
    ),
    _record(
        "credit_to_start_latency",
        "Credit-to-Start Latency",
        "ms",
        "start - the scheduled send time: the wait for a slot, for a connection and for the client itself.",
    ),
    _record(
        "decode_duration",
        "Decode Duration",
        "ms",
        "last - first. Absent if all content has one stamp.",
        order=350,
        needs="output_tokens",
    ),
    _record(
        "inter_token_latency",
        "Inter Token Latency",
        "ms",
        "(last - first) / (output_sequence_length - 1). Requires two tokens and two stamps. With several choices (n), "
        "the length is the mean length of a choice, because choices are generated in parallel. Too low if several tokens "
        "arrived with the first stamp; time_per_output_token corrects that, and so does --per-chunk-usage, with which the "
        "tokens of the first stamp are subtracted instead of 1.",
        order=400,
        needs="output_tokens",
    ),
    _record(
        "time_per_output_token",
        "Time per Output Token",
        "ms",
        "(last - first) / (output_sequence_length - tokens that arrived with the first stamp). Also correct if the server "
        "sends several tokens per event. With several choices (n), the mean of a choice. The text of the first stamp is "
        "tokenized separately, so a token that spans its end may count twice. With server token counts, present only if "
        "every piece held one token or with --per-chunk-usage.",
        order=410,
        needs="output_tokens",
    ),
    Metric(
        "inter_chunk_latency",
        "Inter Chunk Latency",
        "ms",
        "list",
        "stamp[i] - stamp[i-1], pooled over all requests. Pieces that arrive together share a stamp and add no gap of 0.",
        needs="output_tokens",
    ),
    _record(
        "output_token_throughput_per_user",
        "Output Token Throughput Per User",
        _PER_USER,
        "1 / inter_token_latency. Too high if the server sends several tokens per event.",
        order=500,
        larger=True,
        needs="output_tokens",
    ),
    _record(
        "e2e_output_token_throughput",
        "E2E Output Token Throughput",
        _PER_USER,
        "output_sequence_length / request_latency. Includes the tokens of all choices.",
        order=510,
        larger=True,
        needs="output_tokens",
    ),
    _record(
        "prefill_throughput_per_user",
        "Prefill Throughput Per User",
        _PER_USER,
        "input_sequence_length / time_to_first_token. Includes queueing and network time; cached prefixes raise it.",
        larger=True,
        needs="output_tokens",
    ),
)

_LENGTHS = (
    _record(
        "output_sequence_length",
        "Output Sequence Length",
        "tokens",
        "Output tokens + reasoning tokens of all choices. Counted by the client's tokenizer on the whole text of each "
        "choice, or taken from the server's usage with --use-server-token-count.",
        order=600,
        larger=True,
        needs="output_tokens",
    ),
    _record(
        "output_token_count",
        "Output Token Count",
        "tokens",
        "Tokens of the reply that are not reasoning, including tool calls and refusals.",
        order=610,
        larger=True,
        needs="output_tokens",
    ),
    _record(
        "reasoning_token_count",
        "Reasoning Token Count",
        "tokens",
        "Tokens of the reasoning text.",
        larger=True,
        needs="output_tokens",
    ),
    _record(
        "input_sequence_length",
        "Input Sequence Length",
        "tokens",
        "Tokens of the texts in the body, joined by spaces. Excludes the server's chat template, so the server's count is "
        "usually a little higher.",
        order=700,
        larger=True,
        needs="input_tokens",
    ),
    _record(
        "osl_mismatch_diff_pct",
        "OSL Mismatch Diff %",
        "%",
        "100 * (output_sequence_length - requested) / requested, signed. Present if a length was requested. With several "
        "choices (n), the length is requested for each of them.",
        needs="output_tokens",
    ),
)

_USAGE: tuple[tuple[str, str, bool, Tokens | None], ...] = (
    ("usage_prompt_tokens", "Prompt", True, None),
    ("usage_prompt_cache_read_tokens", "Prompt Cache Read", True, None),
    ("usage_prompt_cache_write_tokens", "Prompt Cache Write", False, None),
    ("usage_prompt_audio_tokens", "Prompt Audio", True, None),
    ("usage_completion_tokens", "Completion", True, "output_tokens"),
    ("usage_reasoning_tokens", "Reasoning", True, "output_tokens"),
    ("usage_completion_audio_tokens", "Completion Audio", True, "output_tokens"),
    ("usage_accepted_prediction_tokens", "Accepted Prediction", True, "output_tokens"),
    ("usage_rejected_prediction_tokens", "Rejected Prediction", False, "output_tokens"),
    ("usage_total_tokens", "Total", True, None),
)
_USAGE_NOTE = "As reported by the server. Absent if the reply has no such field."
_DIFF_NOTE = "100 * |server - client| / client, if both counted. Absent with server token counts."

_SERVER_COUNTS = (
    *(
        _record(tag, f"Usage {name} Tokens", "tokens", _USAGE_NOTE, larger=larger, needs=needs)
        for tag, name, larger, needs in _USAGE
    ),
    *(
        _record(f"usage_{part}_tokens_diff_pct", f"Usage {part.title()} Diff %", "%", _DIFF_NOTE)
        for part in ("prompt", "completion", "reasoning")
    ),
)

_HTTP = (
    (
        "blocked",
        "HTTP Blocked",
        "ms",
        2000,
        "start - slot free - dns_lookup - connecting, at least 0: the wait after a slot was assigned.",
    ),
    ("dns_lookup", "HTTP DNS Lookup", "ms", 2010, "Name resolution that this request waited for."),
    ("connecting", "HTTP Connecting", "ms", 2020, "TCP and TLS set-up that this request waited for, excluding DNS."),
    (
        "sending",
        "HTTP Sending",
        "ms",
        2030,
        "From start to the return of the last write, or to the reply's first byte if that is earlier.",
    ),
    ("waiting", "HTTP Waiting (TTFB)", "ms", 2040, "From the end of sending to the reply's first byte."),
    ("receiving", "HTTP Receiving", "ms", 2050, "From the reply's first byte to its last."),
    ("connection_reused", "HTTP Connection Reused", "ratio", 2060, "1 on a pooled connection, 0 on a new one."),
    ("data_sent", "HTTP Data Sent", "KB", 2070, "Bytes sent / 1024."),
    ("chunks_sent", "HTTP Chunks Sent", "count", 2080, "Always 1: a request is sent in one piece."),
    ("data_received", "HTTP Data Received", "KB", 2090, "Bytes of the reply / 1024."),
    ("chunks_received", "HTTP Chunks Received", "count", 2100, "Socket reads that the reply took."),
    ("connection_overhead", "HTTP Connection Overhead", "ms", 2110, "blocked + dns_lookup + connecting."),
    ("duration", "HTTP Duration (excl. conn)", "ms", 2120, "sending + waiting + receiving."),
    (
        "total",
        "HTTP Total Time",
        "ms",
        2130,
        "blocked + dns_lookup + connecting + sending + waiting + receiving. The phases do not overlap.",
    ),
)

_FAILED = (
    _record(
        "error_isl",
        "Error Input Sequence Length",
        "tokens",
        "input_sequence_length of the failed requests.",
        larger=True,
        needs="input_tokens",
    ),
)

_THROUGHPUT = (
    _run(
        "request_throughput",
        "Request Throughput",
        "requests/sec",
        "request_count / benchmark_duration. Includes the ramp-up and the last requests' tail.",
        order=900,
        larger=True,
    ),
    _run(
        "output_token_throughput",
        "Output Token Throughput",
        "tokens/sec",
        "total_osl / benchmark_duration.",
        order=800,
        larger=True,
    ),
    _run(
        "input_token_throughput",
        "Input Token Throughput",
        "tokens/sec",
        "total_isl / benchmark_duration.",
        order=805,
        larger=True,
    ),
    _run(
        "total_token_throughput",
        "Total Token Throughput",
        "tokens/sec",
        "(total_isl + total_osl) / benchmark_duration.",
        order=810,
        larger=True,
    ),
    _run(
        "benchmark_duration",
        "Benchmark Duration",
        "sec",
        "From the first start to the last end of all requests, including failed and cancelled ones, so that a server that "
        "hangs does not look fast. AIPerf counts successful requests only.",
    ),
    _run(
        "effective_concurrency",
        "Effective Concurrency",
        "requests",
        "Requests in flight, weighted by time, over benchmark_duration. Includes failed and cancelled requests.",
    ),
)

_COUNTS = (
    _run("request_count", "Request Count", "requests", "Successful requests.", order=1100, larger=True),
    _run("error_request_count", "Error Request Count", "requests", "Failed requests. Absent if there are none."),
    _run(
        "cancelled_request_count",
        "Cancelled Request Count",
        "requests",
        "Requests that the client cancelled. Absent if there are none.",
        order=1110,
    ),
    _run(
        "resent_request_count",
        "Resent Request Count",
        "requests",
        "Requests sent a second time, because the server closed the connection before it received them. Absent if there "
        "are none. Their times count from the second send.",
        order=1120,
    ),
    _run(
        "redirect_count",
        "Redirect Count",
        "count",
        "Redirects that were followed. Absent if there are none. The times of a redirected request count from its first "
        "send.",
        order=1130,
    ),
    _run(
        "completed_request_count",
        "Completed Requests (Success + Error)",
        "requests",
        "request_count + error_request_count.",
        order=1075,
    ),
    _run(
        "request_error_rate",
        "Request Error Rate",
        "%",
        "100 * error_request_count / completed_request_count.",
        order=1080,
    ),
    _run(
        "context_overflow_count",
        "Context Overflow Count",
        "requests",
        "Failures whose message mentions the context length. Present if there are failures. Depends on the server's wording.",
    ),
    _run(
        "single_stamp_request_count",
        "Single Stamp Request Count",
        "requests",
        "Streamed replies whose content has a single stamp, including one-token replies. They have no second token, no "
        "gaps and no decode duration. A high count means that something on the network path buffers the stream.",
    ),
    _run(
        "coalesced_stamp_count",
        "Coalesced Stamp Count",
        "count",
        "Stamps that cover several network segments: the first of them may have arrived earlier.",
    ),
    _run(
        "coalesced_first_stamp_count",
        "Coalesced First Stamp Count",
        "requests",
        "Requests whose first stamp covers several segments: their time_to_first_token is an upper bound.",
    ),
    _run(
        "osl_mismatch_count",
        "OSL Mismatch Count",
        "requests",
        "Requests whose output length differs from the requested length by more than 5 % or 50 tokens.",
    ),
    _run(
        "usage_discrepancy_count",
        "Usage Discrepancy Count",
        "requests",
        "Requests in which a usage_*_diff_pct is above 10 %.",
    ),
)

_LAG_NOTE = (
    "Percentile of credit_to_start_latency: the delay of a request after its recorded time. Only with --fixed-schedule. "
    "Includes a delay that all requests share; AIPerf measures relative to the least late request."
)
_SCHEDULE = (
    *(_run(f"replay_sched_lag_p{q}", f"Replay Schedule Lag p{q}", "ms", _LAG_NOTE) for q in (50, 90, 99)),
    _run(
        "replay_sched_degraded",
        "Replay Schedule Degraded",
        "count",
        "1 if replay_sched_lag_p99 is above 500 ms, else 0. Only with --fixed-schedule.",
    ),
)

_TOTALS = (
    _run("total_isl", "Total Input Sequence Length", "tokens", "Sum of input_sequence_length.", larger=True),
    _run("total_osl", "Total Output Sequence Length", "tokens", "Sum of output_sequence_length.", larger=True),
    _run("total_output_tokens", "Total Output Tokens", "tokens", "Sum of output_token_count.", larger=True),
    _run("total_reasoning_tokens", "Total Reasoning Tokens", "tokens", "Sum of reasoning_token_count.", larger=True),
    _run("total_error_isl", "Total Error Input Sequence Length", "tokens", "Sum of error_isl.", larger=True),
    *(
        _run(f"total_{tag}", f"Total Usage {name} Tokens", "tokens", f"Sum of {tag}.", larger=larger)
        for tag, name, larger, _ in _USAGE
    ),
    _run(
        "overall_usage_prompt_cache_read_pct",
        "Overall Usage Prompt Cache Read %",
        "%",
        "100 * total_usage_prompt_cache_read_tokens / total_usage_prompt_tokens.",
        larger=True,
    ),
)

ADJUSTED = ("request_latency", "time_to_first_token", "decode_duration", "inter_token_latency")
_ADJUSTED_NOTE = (
    "Each failed request counts as infinitely slow. Percentiles by nearest rank; infinite ones are omitted. Present if "
    "there are failures."
)
_NAMES = {metric.tag: metric.header for metric in _TIMES}

_ENTRIES: tuple[Metric, ...] = (
    *_TIMES,
    *_LENGTHS,
    *_SERVER_COUNTS,
    *(_record(f"http_req_{tag}", header, unit, note, order=n, table="http") for tag, header, unit, n, note in _HTTP),
    *_FAILED,
    *_THROUGHPUT,
    *_COUNTS,
    *_SCHEDULE,
    *_TOTALS,
    *(
        _run(f"adj_{tag}", f"{_NAMES[tag]} (error-adjusted)", "ms", _ADJUSTED_NOTE, order=1200 + n)
        for n, tag in enumerate(ADJUSTED)
    ),
)

CATALOGUE: dict[str, Metric] = {metric.tag: metric for metric in _ENTRIES}


def in_table(table: Table) -> list[Metric]:
    """Return the metrics of a console table, in display order."""
    return sorted((m for m in CATALOGUE.values() if m.table == table), key=lambda m: m.order)


def label(metric: Metric) -> str:
    return f"{metric.header} ({metric.unit})"
