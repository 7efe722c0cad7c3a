"""Every metric: its tag, name, unit, where it is shown, its formula and what it cannot see.

Tags, names and units are AIPerf's where AIPerf has the metric. The order of the entries is the order in which metrics
appear in the per-request file and, after AIPerf's fixed head, in the summary.

In the notes: `start` is just before the request's first byte is handed to the socket, `stamp[i]` is the arrival of the
i-th distinct piece of content, `first`/`last` are the first and last of those, and `end` is the reply's last byte.
A metric of kind `record` has one value a request, `list` has several, `run` has one for the phase. Record and list
metrics cover the successful requests of the phase; cancelled requests are in none.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["ADJUSTED", "CATALOGUE", "Metric", "Table", "in_table", "label"]

Kind = Literal["record", "list", "run"]
Table = Literal["main", "http", "usage"]


class Metric(msgspec.Struct, frozen=True):
    tag: str
    header: str
    unit: str
    kind: Kind
    note: str
    table: Table | None = None
    order: int = 0
    larger_is_better: bool = False


def _record(
    tag: str, header: str, unit: str, note: str, *, order: int = 0, larger: bool = False, table: Table = "main"
) -> Metric:
    return Metric(tag, header, unit, "record", note, table if order else None, order, larger)


def _run(
    tag: str, header: str, unit: str, note: str, *, order: int = 0, larger: bool = False, table: Table = "main"
) -> Metric:
    return Metric(tag, header, unit, "run", note, table if order else None, order, larger)


_PER_USER = "tokens/sec/user"

_TIMES = (
    _record(
        "time_to_first_token",
        "Time to First Token",
        "ms",
        "first - start. Exists exactly when the reply was streamed and had content, whatever was asked for. Reasoning "
        "counts as content. An upper bound for the requests in coalesced_first_stamp_count.",
        order=100,
    ),
    _record(
        "time_to_second_token",
        "Time to Second Token",
        "ms",
        "stamp[1] - stamp[0], when the first stamp carried one piece of content. When it carried more, the second "
        "token shared it and the request has no such figure. A piece may hold several tokens.",
        order=200,
    ),
    _record(
        "time_to_first_output_token",
        "Time to First Output Token",
        "ms",
        "The first content that is not reasoning, minus start. Absent for a reply that was all reasoning.",
        order=210,
    ),
    _record(
        "request_latency",
        "Request Latency",
        "ms",
        "last - start when streamed, so that a trailing usage event or end mark does not count; end - start otherwise. "
        "Does not see the time that a request waited for its turn: effective_latency does.",
        order=300,
    ),
    _record(
        "gateway_time",
        "Gateway Time",
        "ms",
        "total - upstream of the reply's Server-Timing header: what a gateway in front of the server says it took itself, "
        "up to the head of its reply. What it did after that (guardrails on a stream) is not in it.",
        order=320,
    ),
    _record(
        "upstream_time",
        "Upstream Time",
        "ms",
        "What that gateway says it waited for the server behind it, connecting included: to the first byte of a stream, to "
        "the last of anything else.",
        order=321,
    ),
    _record(
        "effective_latency",
        "Effective Latency (CO-aware)",
        "ms",
        "The end of request_latency minus the time at which the plan wanted the request sent. CO is coordinated omission: "
        "a client that waits for a slow server sends less, and then measures least when it is worst. In a closed loop the "
        "plan wants it when the slot is free, so the two agree; at a fixed rate the difference is queueing at the "
        "client that a real user would have felt.",
        order=305,
    ),
    _record(
        "credit_to_start_latency",
        "Credit-to-Start Latency",
        "ms",
        "start - the time at which the plan wanted the request sent: waiting for a slot, for a connection and for us.",
    ),
    _record(
        "decode_duration",
        "Decode Duration",
        "ms",
        "last - first. Absent when the whole content had one stamp.",
        order=350,
    ),
    _record(
        "inter_token_latency",
        "Inter Token Latency",
        "ms",
        "(last - first) / (output_sequence_length - 1), for two tokens or more and two stamps or more. With several "
        "choices (n), the length is the mean of a choice's, because they are written side by side. Too low when "
        "the first stamp carried several tokens, whose time is not in the numerator: see time_per_output_token.",
        order=400,
    ),
    _record(
        "time_per_output_token",
        "Time per Output Token",
        "ms",
        "(last - first) / (output_sequence_length - tokens that came with the first stamp). Right also when the server "
        "bundles tokens. With several choices, the tokens of one on average. The first stamp's text is counted on its own, "
        "so a token that spans its edge may count twice. "
        "With server token counts it exists only when every piece held one token.",
        order=410,
    ),
    Metric(
        "inter_chunk_latency",
        "Inter Chunk Latency",
        "ms",
        "list",
        "stamp[i] - stamp[i-1] of every request, pooled. Pieces that arrived together have one stamp and make no gap "
        "of zero, so there may be fewer gaps than pieces.",
    ),
    _record(
        "output_token_throughput_per_user",
        "Output Token Throughput Per User",
        _PER_USER,
        "1 / inter_token_latency. Shares its weakness when the server bundles tokens.",
        order=500,
        larger=True,
    ),
    _record(
        "e2e_output_token_throughput",
        "E2E Output Token Throughput",
        _PER_USER,
        "output_sequence_length / request_latency: the tokens of all choices.",
        order=510,
        larger=True,
    ),
    _record(
        "prefill_throughput_per_user",
        "Prefill Throughput Per User",
        _PER_USER,
        "input_sequence_length / time_to_first_token. Queueing and the network are inside; cached prefixes raise it.",
        larger=True,
    ),
)

_LENGTHS = (
    _record(
        "output_sequence_length",
        "Output Sequence Length",
        "tokens",
        "Output tokens plus reasoning tokens, of all choices together. Counted by our tokenizer over the whole text of each "
        "choice, or the server's usage when that was asked for.",
        order=600,
        larger=True,
    ),
    _record(
        "output_token_count",
        "Output Token Count",
        "tokens",
        "Tokens of the reply that are not reasoning; tool calls and refusals included.",
        order=610,
        larger=True,
    ),
    _record("reasoning_token_count", "Reasoning Token Count", "tokens", "Tokens of the reasoning text.", larger=True),
    _record(
        "input_sequence_length",
        "Input Sequence Length",
        "tokens",
        "Tokens of the texts in the body, joined by a space. The server's chat template is not in it, so its own count "
        "is usually a little higher.",
        order=700,
        larger=True,
    ),
    _record(
        "osl_mismatch_diff_pct",
        "OSL Mismatch Diff %",
        "%",
        "100 * (output_sequence_length - asked for) / asked for, signed; only where a length was asked for. With several "
        "choices (n), that length is asked for each of them.",
    ),
)

_USAGE = (
    ("usage_prompt_tokens", "Prompt", 1000, True),
    ("usage_prompt_cache_read_tokens", "Prompt Cache Read", 1010, True),
    ("usage_prompt_cache_write_tokens", "Prompt Cache Write", 1015, False),
    ("usage_prompt_audio_tokens", "Prompt Audio", 1020, True),
    ("usage_completion_tokens", "Completion", 1100, True),
    ("usage_reasoning_tokens", "Reasoning", 1110, True),
    ("usage_completion_audio_tokens", "Completion Audio", 1120, True),
    ("usage_accepted_prediction_tokens", "Accepted Prediction", 1130, True),
    ("usage_rejected_prediction_tokens", "Rejected Prediction", 1140, False),
    ("usage_total_tokens", "Total", 1200, True),
)
_USAGE_NOTE = "As the server reported it; absent for a request whose reply had no such field."
_DIFF_NOTE = "100 * |server - ours| / ours, where both counted. Absent with server token counts."

_SERVER_COUNTS = (
    *(
        _record(tag, f"Usage {name} Tokens", "tokens", _USAGE_NOTE, order=n, larger=up, table="usage")
        for tag, name, n, up in _USAGE
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
        "start - issued - dns - connecting, at least 0: waiting with a slot in hand.",
    ),
    ("dns_lookup", "HTTP DNS Lookup", "ms", 2010, "Name resolution that this request waited for."),
    ("connecting", "HTTP Connecting", "ms", 2020, "TCP and TLS set-up that this request waited for, without DNS."),
    ("sending", "HTTP Sending", "ms", 2030, "start to the return of the last write, cut at the reply's first byte."),
    ("waiting", "HTTP Waiting (TTFB)", "ms", 2040, "The end of sending to the reply's first byte."),
    ("receiving", "HTTP Receiving", "ms", 2050, "The reply's first byte to its last."),
    ("connection_reused", "HTTP Connection Reused", "ratio", 2060, "1 on a pooled connection, 0 on a new one."),
    ("data_sent", "HTTP Data Sent", "KB", 2070, "Bytes sent / 1024."),
    ("chunks_sent", "HTTP Chunks Sent", "count", 2080, "Always 1: a request is handed over whole."),
    ("data_received", "HTTP Data Received", "KB", 2090, "Bytes of the reply / 1024."),
    ("chunks_received", "HTTP Chunks Received", "count", 2100, "Network reads that the reply took."),
    ("connection_overhead", "HTTP Connection Overhead", "ms", 2110, "blocked + dns_lookup + connecting."),
    ("duration", "HTTP Duration (excl. conn)", "ms", 2120, "sending + waiting + receiving."),
    (
        "total",
        "HTTP Total Time",
        "ms",
        2130,
        "blocked + dns_lookup + connecting + sending + waiting + receiving, each nanosecond in exactly one of them.",
    ),
)

_FAILED = (
    _record(
        "error_isl",
        "Error Input Sequence Length",
        "tokens",
        "input_sequence_length of the failed requests.",
        larger=True,
    ),
)

_W = "benchmark_duration"
_THROUGHPUT = (
    _run(
        "request_throughput",
        "Request Throughput",
        "requests/sec",
        f"request_count / {_W}. Ramp-up and the tail of the last requests are inside the window.",
        order=900,
        larger=True,
    ),
    _run(
        "output_token_throughput", "Output Token Throughput", "tokens/sec", f"total_osl / {_W}.", order=800, larger=True
    ),
    _run(
        "input_token_throughput", "Input Token Throughput", "tokens/sec", f"total_isl / {_W}.", order=805, larger=True
    ),
    _run(
        "total_token_throughput",
        "Total Token Throughput",
        "tokens/sec",
        f"(total_isl + total_osl) / {_W}.",
        larger=True,
    ),
    _run(
        "benchmark_duration",
        "Benchmark Duration",
        "sec",
        "The first start to the last end of all requests, failed and cancelled ones included: a server that hangs does "
        "not look fast. AIPerf's covers the successful ones alone.",
    ),
    _run(
        "effective_concurrency",
        "Effective Concurrency",
        "requests",
        "Requests between start and end, weighted by time, from the first start to the last end; failed and cancelled "
        "ones are in it.",
    ),
)

_COUNTS = (
    _run("request_count", "Request Count", "requests", "Successful requests.", order=1100, larger=True),
    _run("error_request_count", "Error Request Count", "requests", "Failed requests; absent when there are none."),
    _run(
        "cancelled_request_count",
        "Cancelled Request Count",
        "requests",
        "Ended by us; absent when there are none.",
        order=1110,
    ),
    _run(
        "completed_request_count",
        "Completed Requests (Success + Error)",
        "requests",
        "request_count + failed requests.",
        order=1075,
    ),
    _run("request_error_rate", "Request Error Rate", "%", "100 * failed / completed.", order=1080),
    _run(
        "context_overflow_count",
        "Context Overflow Count",
        "requests",
        "Failures whose message speaks of the context length; present when there are failures. A matter of wording.",
    ),
    _run(
        "single_stamp_request_count",
        "Single Stamp Request Count",
        "requests",
        "Streamed replies whose whole content came with one stamp, one-token replies included: they have no second "
        "token, no gaps, no decode duration. Many of them mean that something on the way buffers the stream.",
    ),
    _run(
        "coalesced_stamp_count",
        "Coalesced Stamp Count",
        "count",
        "Stamps that cover more than one network segment: the true arrival is earlier or equal.",
    ),
    _run(
        "coalesced_first_stamp_count",
        "Coalesced First Stamp Count",
        "requests",
        "Requests whose first stamp is one of those: their time_to_first_token is an upper bound.",
    ),
    _run(
        "osl_mismatch_count",
        "OSL Mismatch Count",
        "requests",
        "Requests whose output is off by more than 5 % of what was asked for, or by more than 50 tokens.",
    ),
    _run(
        "usage_discrepancy_count",
        "Usage Discrepancy Count",
        "requests",
        "Requests where one of the usage_*_diff_pct is above 10 %.",
    ),
)

_LAG_NOTE = (
    "Percentile of credit_to_start_latency: how much later than recorded a request went out. Only with --fixed-schedule. "
    "Counted from the recorded time itself, so that a lateness all requests share is seen (AIPerf counts from the least "
    "late one)."
)
_SCHEDULE = (
    *(_run(f"replay_sched_lag_p{q}", f"Replay Schedule Lag p{q}", "ms", _LAG_NOTE) for q in (50, 90, 99)),
    _run(
        "replay_sched_degraded",
        "Replay Schedule Degraded",
        "count",
        "1 when replay_sched_lag_p99 is above 500 ms, else 0. Only with --fixed-schedule.",
    ),
)

_TOTALS = (
    _run("total_isl", "Total Input Sequence Length", "tokens", "Sum of input_sequence_length.", larger=True),
    _run("total_osl", "Total Output Sequence Length", "tokens", "Sum of output_sequence_length.", larger=True),
    _run("total_output_tokens", "Total Output Tokens", "tokens", "Sum of output_token_count.", larger=True),
    _run("total_reasoning_tokens", "Total Reasoning Tokens", "tokens", "Sum of reasoning_token_count.", larger=True),
    _run("total_error_isl", "Total Error Input Sequence Length", "tokens", "Sum of error_isl.", larger=True),
    *(
        _run(
            f"total_{tag}",
            f"Total Usage {name} Tokens",
            "tokens",
            f"Sum of {tag}.",
            order=1000 + n,
            larger=up,
            table="usage",
        )
        for tag, name, n, up in _USAGE
    ),
    _run(
        "overall_usage_prompt_cache_read_pct",
        "Overall Usage Prompt Cache Read %",
        "%",
        "100 * total_usage_prompt_cache_read_tokens / total_usage_prompt_tokens.",
        order=2012,
        larger=True,
        table="usage",
    ),
)

ADJUSTED = ("request_latency", "time_to_first_token", "decode_duration", "inter_token_latency")
_ADJUSTED_NOTE = (
    "With each failed request counted as infinitely slow, by nearest rank; what would be infinite is left out. Present "
    "when there are failures."
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
    """The metrics of a console table, top to bottom."""
    return sorted((m for m in CATALOGUE.values() if m.table == table), key=lambda m: m.order)


def label(metric: Metric) -> str:
    return f"{metric.header} ({metric.unit})"
