"""Compute the metrics of one record, in display units and in the order of the catalogue."""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.statistics import Values
from penstock.records.log import RunHeader
from penstock.records.record import Record, Usage

__all__ = [
    "UNCOUNTED",
    "Measures",
    "TokenCounts",
    "choice_count",
    "http_phases",
    "latency_ns",
    "measure",
    "requested_length",
    "unfit_metrics",
]


class Measures(msgspec.Struct, frozen=True):
    values: dict[str, float]
    """Values by tag, for metrics of kind `record`."""
    lists: dict[str, Values]
    """Values by tag, for metrics of kind `list`."""


class TokenCounts(msgspec.Struct, frozen=True, gc=False):
    """Token counts of a request; None is unknown."""

    input: int | None = None
    output: int | None = None
    """Output tokens without reasoning."""
    reasoning: int | None = None
    head: int | None = None
    """Tokens that arrived with the first stamp. The server's count is known only with per-chunk usage."""
    by_server: bool = False

    @property
    def total(self) -> int | None:
        """The output sequence length."""
        return None if self.output is None else self.output + (self.reasoning or 0)


UNCOUNTED = TokenCounts()
_NO_MEASURES = Measures({}, {})
_USAGE = (
    ("usage_prompt_tokens", "prompt"),
    ("usage_prompt_cache_read_tokens", "cache_read"),
    ("usage_prompt_cache_write_tokens", "cache_write"),
    ("usage_prompt_audio_tokens", "prompt_audio"),
    ("usage_completion_tokens", "completion"),
    ("usage_reasoning_tokens", "reasoning"),
    ("usage_completion_audio_tokens", "completion_audio"),
    ("usage_accepted_prediction_tokens", "accepted_prediction"),
    ("usage_rejected_prediction_tokens", "rejected_prediction"),
    ("usage_total_tokens", "total"),
)
"""Metric tags and their fields of `Usage`, in the order of the catalogue."""


def unfit_metrics(header: RunHeader) -> frozenset[str]:
    """Return the metrics that mean nothing for the endpoint of a run, which would be rows of zeros."""
    declaration = header.declaration
    return frozenset(tag for tag, m in CATALOGUE.items() if m.needs is not None and not getattr(declaration, m.needs))


def measure(record: Record, counts: TokenCounts, unfit: frozenset[str] = frozenset()) -> Measures:
    """Return the metrics of a record except `unfit`: none if it was cancelled, only `error_isl` if it failed."""
    measures = _measure(record, counts)
    if not unfit:
        return measures
    return Measures(
        {tag: value for tag, value in measures.values.items() if tag not in unfit},
        {tag: values for tag, values in measures.lists.items() if tag not in unfit},
    )


def _measure(record: Record, counts: TokenCounts) -> Measures:
    if record.cancelled:
        return _NO_MEASURES
    if record.failure is not None:
        return _NO_MEASURES if counts.input is None else Measures({"error_isl": counts.input}, {})
    values: dict[str, float] = {}
    length = counts.total
    _times(record, counts, length, values)
    _lengths(record, counts, length, values)
    if record.usage is not None:
        _usage(record.usage, values)
        if not counts.by_server:
            _usage_differences(record.usage, counts, length, values)
    _http(record, values)
    return Measures(values, _gaps(record))


def latency_ns(record: Record) -> int:
    """Return the time from start to the last content of a stream, or to the last byte of any other reply."""
    if record.streamed and record.stamps:
        return record.stamps[-1]
    return record.end - record.start


def requested_length(record: Record) -> int:
    """Return the number of output tokens requested for all choices together, or 0."""
    return (record.requested_output or 0) * choice_count(record)


def choice_count(record: Record) -> int:
    """Return the number of choices in the reply. A server generates them in parallel."""
    outputs = len(record.outputs)
    if outputs == 1 and len(record.reasonings) < 2:
        return 1  # the usual case, without the cost of max()
    return max(1, outputs, len(record.reasonings))


def _times(record: Record, counts: TokenCounts, length: int | None, values: dict[str, float]) -> None:
    stamps = record.stamps if record.streamed else []
    latency = latency_ns(record)
    if stamps:
        first = stamps[0]
        values["time_to_first_token"] = first / 1e6
        if len(stamps) > 1 and record.pieces[0] == 1:
            values["time_to_second_token"] = (stamps[1] - first) / 1e6
        if record.first_output is not None:
            values["time_to_first_output_token"] = stamps[record.first_output] / 1e6
    delay = record.start - record.intended
    values["request_latency"] = latency / 1e6
    if record.gateway_ms is not None and record.upstream_ms is not None:
        values["gateway_time"] = record.gateway_ms
        values["upstream_time"] = record.upstream_ms
    values["effective_latency"] = (delay + latency) / 1e6
    values["credit_to_start_latency"] = delay / 1e6
    if len(stamps) > 1:
        decode = stamps[-1] - stamps[0]
        values["decode_duration"] = decode / 1e6
        if length is not None:
            choices = choice_count(record)
            head = counts.head if counts.by_server and counts.head is not None else choices
            gaps = (length - head) / choices
            if gaps > 0:
                values["inter_token_latency"] = decode / 1e6 / gaps
            if (remaining := length - _first_stamp_tokens(record, counts, length)) > 0:
                values["time_per_output_token"] = decode / 1e6 / (remaining / choices)
            if gaps > 0:
                values["output_token_throughput_per_user"] = gaps * 1e9 / decode
    if length is not None and latency > 0:
        values["e2e_output_token_throughput"] = length * 1e9 / latency
    if stamps and stamps[0] > 0 and counts.input is not None:
        values["prefill_throughput_per_user"] = counts.input * 1e9 / stamps[0]


def _gaps(record: Record) -> dict[str, Values]:
    if not record.streamed or len(record.stamps) < 2:
        return {}
    stamps = np.fromiter(record.stamps, np.int64, len(record.stamps))
    return {"inter_chunk_latency": (stamps[1:] - stamps[:-1]) / 1e6}


def _first_stamp_tokens(record: Record, counts: TokenCounts, length: int) -> int:
    """Return the number of tokens that arrived with the first stamp.

    If they were not counted, they are known only if every piece held one token. Otherwise return `length`, which leaves
    no tokens to divide by.
    """
    if counts.head is not None:
        return counts.head
    return record.pieces[0] if sum(record.pieces) == length else length


def _lengths(record: Record, counts: TokenCounts, length: int | None, values: dict[str, float]) -> None:
    if length is not None:
        values["output_sequence_length"] = length
    if counts.output is not None:
        values["output_token_count"] = counts.output
    if counts.reasoning is not None:
        values["reasoning_token_count"] = counts.reasoning
    if counts.input is not None:
        values["input_sequence_length"] = counts.input
    if length is not None and record.requested_output:
        requested = requested_length(record)
        values["osl_mismatch_diff_pct"] = 100 * (length - requested) / requested


def _usage(usage: Usage, values: dict[str, float]) -> None:
    for tag, field in _USAGE:
        tokens = getattr(usage, field)
        if tokens is not None:
            values[tag] = tokens


def _usage_differences(usage: Usage, counts: TokenCounts, length: int | None, values: dict[str, float]) -> None:
    if usage.prompt is not None and counts.input:
        values["usage_prompt_tokens_diff_pct"] = 100 * abs(usage.prompt - counts.input) / counts.input
    if usage.completion is not None and length:
        values["usage_completion_tokens_diff_pct"] = 100 * abs(usage.completion - length) / length
    if usage.reasoning is not None and counts.reasoning:
        values["usage_reasoning_tokens_diff_pct"] = 100 * abs(usage.reasoning - counts.reasoning) / counts.reasoning


def http_phases(record: Record) -> tuple[int, int, int, int, int, int] | None:
    """Return blocked, DNS, connecting, sending, waiting and receiving time in ns; None if no reply byte arrived."""
    first_byte = record.first_byte
    if first_byte is None or record.sent is None:
        return None
    # A reply can arrive before the last write has returned.
    sent = min(record.sent, first_byte)
    dns, connect = record.dns_ns, record.connect_ns
    blocked = max(0, record.start - record.issued - dns - connect)
    return blocked, dns, connect, sent - record.start, first_byte - sent, record.end - first_byte


def _http(record: Record, values: dict[str, float]) -> None:
    phases = http_phases(record)
    if phases is None:
        return
    blocked, dns, connect, sending, waiting, receiving = phases
    overhead = blocked + dns + connect
    duration = sending + waiting + receiving
    values["http_req_blocked"] = blocked / 1e6
    values["http_req_dns_lookup"] = dns / 1e6
    values["http_req_connecting"] = connect / 1e6
    values["http_req_sending"] = sending / 1e6
    values["http_req_waiting"] = waiting / 1e6
    values["http_req_receiving"] = receiving / 1e6
    values["http_req_connection_reused"] = 1 if record.reused else 0
    values["http_req_data_sent"] = record.bytes_sent / 1024
    values["http_req_chunks_sent"] = 1
    values["http_req_data_received"] = record.bytes_received / 1024
    values["http_req_chunks_received"] = record.reads
    values["http_req_connection_overhead"] = overhead / 1e6
    values["http_req_duration"] = duration / 1e6
    values["http_req_total"] = (overhead + duration) / 1e6
