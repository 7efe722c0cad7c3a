"""Times of a request and the rates that follow from them."""

from __future__ import annotations

import numpy as np

from penstock.metrics.batch import Batch, CountColumns, MeasureTable
from penstock.metrics.metric import MetricGroup, read_metrics
from penstock.metrics.statistics import Values

METRICS = read_metrics("""\
time_to_first_token | Time to First Token | ms | order=100 needs=output_tokens streamed
    first - start. Present if the reply was streamed and had content. Reasoning counts as content. An upper bound for
    the requests in coalesced_first_stamp_count.
effective_time_to_first_token | Effective Time to First Token (CO-aware) | ms | order=105 needs=output_tokens streamed
    time_to_first_token + the time from the scheduled send to start. See effective_latency.
time_to_second_token | Time to Second Token | ms | order=200 needs=output_tokens streamed
    stamp[1] - stamp[0]. Absent if several pieces of content arrived with the first stamp. A piece may hold several
    tokens.
time_to_first_output_token | Time to First Output Token | ms | order=210 needs=output_tokens streamed
    Arrival of the first content that is not reasoning - start. Absent if the reply was all reasoning.
request_latency | Request Latency | ms | order=300
    last - start if streamed, so a trailing usage event or [DONE] does not count; end - start otherwise. Excludes the
    time that a request waited to be sent; effective_latency includes it.
gateway_time | Gateway Time | ms | order=320
    total - upstream from the reply's Server-Timing header: the time that a gateway spent itself until it sent the reply
    headers. Excludes later work, such as guardrails on a stream.
upstream_time | Upstream Time | ms | order=321
    upstream from the reply's Server-Timing header: the time that the gateway waited for the server behind it, including
    the connection set-up. Ends at the first byte of a stream and at the last byte of any other reply.
effective_latency | Effective Latency (CO-aware) | ms | order=305
    request_latency + the time from the scheduled send to start. CO is coordinated omission: a client that waits for a
    slow server sends fewer requests exactly when the server is slow. In a closed loop a request is scheduled when its
    slot becomes free, so this is close to request_latency. At a fixed rate it adds the time that the request waited in
    the client.
credit_to_start_latency | Credit-to-Start Latency | ms
    start - the scheduled send time: the wait for a slot, for a connection and for the client itself.
decode_duration | Decode Duration | ms | order=350 needs=output_tokens streamed
    last - first. Absent if all content has one stamp.
inter_token_latency | Inter Token Latency | ms | order=400 needs=output_tokens streamed
    (last - first) / (output_sequence_length - 1). Requires two tokens and two stamps. With several choices (n), the
    length is the mean length of a choice, because choices are generated in parallel. Too low if several tokens arrived
    with the first stamp; time_per_output_token corrects that, and so does --per-chunk-usage, with which the tokens of
    the first stamp are subtracted instead of 1.
time_per_output_token | Time per Output Token | ms | order=410 needs=output_tokens streamed
    (last - first) / (output_sequence_length - tokens that arrived with the first stamp). Also correct if the server
    sends several tokens per event. With several choices (n), the mean of a choice. The text of the first stamp is
    tokenized separately, so a token that spans its end may count twice. With server token counts, present only if every
    piece held one token or with --per-chunk-usage.
inter_chunk_latency | Inter Chunk Latency | ms | kind=list needs=output_tokens
    stamp[i] - stamp[i-1], pooled over all requests. Pieces that arrive together share a stamp and add no gap of 0.
output_token_throughput_per_user | Output Token Throughput Per User | tokens/sec/user | \
        order=500 larger needs=output_tokens streamed
    1 / inter_token_latency. Too high if the server sends several tokens per event.
e2e_output_token_throughput | E2E Output Token Throughput | tokens/sec/user | order=510 larger needs=output_tokens
    output_sequence_length / request_latency. Includes the tokens of all choices.
prefill_throughput_per_user | Prefill Throughput Per User | tokens/sec/user | larger needs=output_tokens streamed
    input_sequence_length / time_to_first_token. Includes queueing and network time; cached prefixes raise it.
""")


def _measure(batch: Batch, counts: CountColumns, table: MeasureTable) -> None:
    ok, put = batch.succeeded, table.put
    has_stamps = batch.has_stamps & ok
    several = has_stamps & (batch.stamp_counts > 1)
    first, delay, latency = batch.first, batch.start - batch.intended, batch.latency
    put("time_to_first_token", first / 1e6, has_stamps)
    put("effective_time_to_first_token", (delay + first) / 1e6, has_stamps)
    second = several & (batch.first_pieces == 1)
    put("time_to_second_token", (batch.at(1, second) - first) / 1e6, second)
    first_output = batch.get("first_output")
    with_output = has_stamps & ~np.isnan(first_output)
    put("time_to_first_output_token", batch.at(np.nan_to_num(first_output).astype(np.intp), with_output) / 1e6)
    put("request_latency", latency / 1e6, ok)
    gateway, upstream = batch.get("gateway_ms"), batch.get("upstream_ms")
    through_gateway = ok & ~np.isnan(gateway + upstream)
    put("gateway_time", gateway, through_gateway)
    put("upstream_time", upstream, through_gateway)
    put("effective_latency", (delay + latency) / 1e6, ok)
    put("credit_to_start_latency", delay / 1e6, ok)
    decode = batch.last - first
    put("decode_duration", decode / 1e6, several)
    length, choices = counts.total, batch.choices
    head = np.where(counts.by_server & ~np.isnan(counts.head), counts.head, choices)
    gaps = (length - head) / choices
    spread = several & (gaps > 0)
    put("inter_token_latency", decode / 1e6 / gaps, spread)
    remaining = length - _first_stamp_tokens(batch, counts)
    put("time_per_output_token", decode / 1e6 / (remaining / choices), several & (remaining > 0))
    put("output_token_throughput_per_user", gaps * 1e9 / decode, spread)
    put("e2e_output_token_throughput", length * 1e9 / latency, ok & (latency > 0))
    put("prefill_throughput_per_user", counts.input * 1e9 / first, has_stamps & (first > 0))
    gap_counts, gap_values = batch.gap_counts, batch.gaps
    if not ok.all():
        gap_values = gap_values[np.repeat(ok, gap_counts)]
        gap_counts = np.where(ok, gap_counts, 0)
    table.put_lists("inter_chunk_latency", gap_values, gap_counts)


def _first_stamp_tokens(batch: Batch, counts: CountColumns) -> Values:
    """Return the number of tokens that arrived with the first stamp of each reply.

    If they were not counted, they are known only if every piece held one token. Otherwise return the length, which leaves
    no tokens to divide by.
    """
    assumed = np.where(batch.pieces == counts.total, batch.first_pieces, counts.total)
    return np.where(np.isnan(counts.head), assumed, counts.head)


GROUP = MetricGroup(METRICS, measure_batch=_measure)
