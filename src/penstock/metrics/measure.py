"""One record, its metrics: pure, in display units, in the order of the catalogue."""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.metrics.statistics import Values
from penstock.records.record import Record, Usage

__all__ = ["UNCOUNTED", "Counts", "Measures", "asked_length", "http_phases", "latency_ns", "measure"]


class Measures(msgspec.Struct, frozen=True):
    values: dict[str, float]
    """Tag -> value, for metrics of kind `record`."""
    lists: dict[str, Values]
    """Tag -> values, for metrics of kind `list`."""


class Counts(msgspec.Struct, frozen=True, gc=False):
    """How many tokens a request had; None is unknown."""

    input: int | None = None
    output: int | None = None
    """Without reasoning."""
    reasoning: int | None = None
    head: int | None = None
    """Those that came with the first stamp."""
    by_server: bool = False

    @property
    def total(self) -> int | None:
        """The output sequence length."""
        return None if self.output is None else self.output + (self.reasoning or 0)


UNCOUNTED = Counts()
_NOTHING = Measures({}, {})
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
"""Metrics and the fields of `Usage` that they are, in the order of the catalogue."""


def measure(record: Record, counts: Counts) -> Measures:
    """Nothing for a cancelled request; nothing but `error_isl` for a failed one."""
    if record.cancelled:
        return _NOTHING
    if record.failure is not None:
        return _NOTHING if counts.input is None else Measures({"error_isl": counts.input}, {})
    found: dict[str, float] = {}
    length = counts.total
    _times(record, counts, length, found)
    _lengths(record, counts, length, found)
    if record.usage is not None:
        _usage(record.usage, found)
        if not counts.by_server:
            _differences(record.usage, counts, length, found)
    _http(record, found)
    return Measures(found, _gaps(record))


def latency_ns(record: Record) -> int:
    """To the last content of a stream, to the last byte of anything else."""
    if record.streamed and record.stamps:
        return record.stamps[-1]
    return record.end - record.start


def asked_length(record: Record) -> int:
    """The tokens asked for, of all choices together; 0 when nobody asked for a length."""
    return (record.requested_output or 0) * _choices(record)


def _choices(record: Record) -> int:
    """They are written side by side, so what one of them took is the time of all."""
    found = len(record.outputs)
    if found == 1 and len(record.reasonings) < 2:
        return 1  # the rule, without the cost of a call
    return max(1, found, len(record.reasonings))


def _times(record: Record, counts: Counts, length: int | None, found: dict[str, float]) -> None:
    stamps = record.stamps if record.streamed else []
    latency = latency_ns(record)
    if stamps:
        first = stamps[0]
        found["time_to_first_token"] = first / 1e6
        if len(stamps) > 1 and record.pieces[0] == 1:
            found["time_to_second_token"] = (stamps[1] - first) / 1e6
        if record.first_output is not None:
            found["time_to_first_output_token"] = stamps[record.first_output] / 1e6
    late = record.start - record.intended
    found["request_latency"] = latency / 1e6
    if record.gateway_ms is not None and record.upstream_ms is not None:
        found["gateway_time"] = record.gateway_ms
        found["upstream_time"] = record.upstream_ms
    found["effective_latency"] = (late + latency) / 1e6
    found["credit_to_start_latency"] = late / 1e6
    if len(stamps) > 1:
        decode = stamps[-1] - stamps[0]
        found["decode_duration"] = decode / 1e6
        if length is not None:
            choices = _choices(record)
            gaps = length / choices - 1
            if gaps > 0:
                found["inter_token_latency"] = decode / 1e6 / gaps
            if (rest := length - _head(record, counts, length)) > 0:
                found["time_per_output_token"] = decode / 1e6 / (rest / choices)
            if gaps > 0:
                found["output_token_throughput_per_user"] = gaps * 1e9 / decode
    if length is not None and latency > 0:
        found["e2e_output_token_throughput"] = length * 1e9 / latency
    if stamps and stamps[0] > 0 and counts.input is not None:
        found["prefill_throughput_per_user"] = counts.input * 1e9 / stamps[0]


def _gaps(record: Record) -> dict[str, Values]:
    if not record.streamed or len(record.stamps) < 2:
        return {}
    stamps = np.fromiter(record.stamps, np.int64, len(record.stamps))
    return {"inter_chunk_latency": (stamps[1:] - stamps[:-1]) / 1e6}


def _head(record: Record, counts: Counts, length: int) -> int:
    """The tokens of the first stamp. When nobody counted them, they are known if every piece held one token; if that
    is not so either, this returns `length`: there is no rest to divide by."""
    if counts.head is not None:
        return counts.head
    return record.pieces[0] if sum(record.pieces) == length else length


def _lengths(record: Record, counts: Counts, length: int | None, found: dict[str, float]) -> None:
    if length is not None:
        found["output_sequence_length"] = length
    if counts.output is not None:
        found["output_token_count"] = counts.output
    if counts.reasoning is not None:
        found["reasoning_token_count"] = counts.reasoning
    if counts.input is not None:
        found["input_sequence_length"] = counts.input
    if length is not None and record.requested_output:
        asked = asked_length(record)
        found["osl_mismatch_diff_pct"] = 100 * (length - asked) / asked


def _usage(usage: Usage, found: dict[str, float]) -> None:
    for tag, field in _USAGE:
        tokens = getattr(usage, field)
        if tokens is not None:
            found[tag] = tokens


def _differences(usage: Usage, counts: Counts, length: int | None, found: dict[str, float]) -> None:
    if usage.prompt is not None and counts.input:
        found["usage_prompt_tokens_diff_pct"] = 100 * abs(usage.prompt - counts.input) / counts.input
    if usage.completion is not None and length:
        found["usage_completion_tokens_diff_pct"] = 100 * abs(usage.completion - length) / length
    if usage.reasoning is not None and counts.reasoning:
        found["usage_reasoning_tokens_diff_pct"] = 100 * abs(usage.reasoning - counts.reasoning) / counts.reasoning


def http_phases(record: Record) -> tuple[int, int, int, int, int, int] | None:
    """Blocked, DNS, connecting, sending, waiting, receiving in nanoseconds; None when no byte of a reply arrived."""
    first_byte = record.first_byte
    if first_byte is None or record.sent is None:
        return None
    # A reply can arrive before our last write has returned.
    sent = min(record.sent, first_byte)
    dns, connect = record.dns_ns, record.connect_ns
    blocked = max(0, record.start - record.issued - dns - connect)
    return blocked, dns, connect, sent - record.start, first_byte - sent, record.end - first_byte


def _http(record: Record, found: dict[str, float]) -> None:
    phases = http_phases(record)
    if phases is None:
        return
    blocked, dns, connect, sending, waiting, receiving = phases
    overhead = blocked + dns + connect
    duration = sending + waiting + receiving
    found["http_req_blocked"] = blocked / 1e6
    found["http_req_dns_lookup"] = dns / 1e6
    found["http_req_connecting"] = connect / 1e6
    found["http_req_sending"] = sending / 1e6
    found["http_req_waiting"] = waiting / 1e6
    found["http_req_receiving"] = receiving / 1e6
    found["http_req_connection_reused"] = 1 if record.reused else 0
    found["http_req_data_sent"] = record.bytes_sent / 1024
    found["http_req_chunks_sent"] = 1
    found["http_req_data_received"] = record.bytes_received / 1024
    found["http_req_chunks_received"] = record.reads
    found["http_req_connection_overhead"] = overhead / 1e6
    found["http_req_duration"] = duration / 1e6
    found["http_req_total"] = (overhead + duration) / 1e6
