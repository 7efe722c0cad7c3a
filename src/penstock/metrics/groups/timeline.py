"""Requests and tokens over time, with statistics weighted by time. `PhaseStats` computes them."""

from __future__ import annotations

from penstock.metrics.metric import Metric, MetricGroup, per_run

_STREAMED = "Covers the successful streamed requests."
_GRID = "In bins of 10 ms."
_NOTES = {
    "decode": "Output tokens per second: the first piece of content holds 1 token, and the later pieces hold equal shares of "
    "the rest, each at a constant rate since the stamp before it. Tokens that arrive with the first stamp are prefill's.",
    "prefill": "Input tokens per second: input_sequence_length is spread evenly from start to first.",
    "total": "Prefill throughput + decode throughput at each moment.",
}
_ACTIVE = {
    "decode": "a request is between first and end",
    "prefill": "a request is between start and first",
    "total": "a streamed request is in flight",
}


def _effective(tag: str, header: str, unit: str, note: str, order: int) -> Metric:
    return per_run(tag, header, unit, note, order=order, table="effective", larger="throughput" in tag)


def _throughput(phase: str, order: int) -> Metric:
    note = f"{_NOTES[phase]} Over benchmark_duration. {_GRID}"
    return _effective(
        f"effective_{phase}_throughput", f"Effective {phase.title()} Throughput", "tokens/sec", note, order
    )


def _throughput_per_user(phase: str, order: int) -> Metric:
    note = f"effective_{phase}_throughput / effective_{phase}_concurrency at each moment, 0 without a request. {_GRID}"
    header = f"Effective {phase.title()} Throughput Per User"
    return _effective(f"effective_{phase}_throughput_per_user", header, "tokens/sec/user", note, order)


def _active(phase: str, order: int, *, per_user: bool = False) -> Metric:
    tag, header, unit = f"{phase}_throughput", f"Active {phase.title()} Throughput", "tokens/sec"
    if per_user:
        tag, header, unit = f"{tag}_per_user", f"{header} Per User", f"{unit}/user"
    note = f"effective_{tag} over the time in which {_ACTIVE[phase]}. {_GRID}"
    return per_run(f"active_{tag}", header, unit, note, order=order, table="active", larger=True)


GROUP = MetricGroup(
    (
        _effective(
            "effective_concurrency",
            "Effective Concurrency",
            "requests",
            "Requests in flight, weighted by time, over benchmark_duration. Includes failed and cancelled requests.",
            100,
        ),
        _throughput("decode", 110),
        _throughput("prefill", 120),
        _effective(
            "effective_decode_concurrency",
            "Effective Decode Concurrency",
            "requests",
            f"Requests between first and end, weighted by time, over benchmark_duration. {_STREAMED}",
            130,
        ),
        _effective(
            "effective_prefill_concurrency",
            "Effective Prefill Concurrency",
            "requests",
            f"Requests between start and first, weighted by time, over benchmark_duration. {_STREAMED}",
            140,
        ),
        _throughput("total", 150),
        _throughput_per_user("decode", 160),
        _throughput_per_user("prefill", 170),
        _effective(
            "tokens_in_flight",
            "Tokens In Flight",
            "tokens",
            "Input tokens of the requests in flight + their output tokens that have arrived, weighted by time: what the "
            f"server holds in its KV cache for them. Over benchmark_duration. {_STREAMED} {_GRID}",
            180,
        ),
        _active("decode", 200),
        _active("prefill", 210),
        _active("decode", 220, per_user=True),
        _active("prefill", 230, per_user=True),
        _active("total", 240),
    )
)
