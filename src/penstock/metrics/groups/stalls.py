"""Stalls of a stream: its longest gap, and what a reader of a given speed notices (`--reader-tokens-per-second`).

A stamp that covers several segments is inexact: some of its content may have arrived earlier. Gaps before and after it are left
out and counted. For the reader, its content counts with the next exact stamp.
"""

from __future__ import annotations

import numpy as np

from penstock.metrics.batch import Batch, CountColumns, MeasureTable
from penstock.metrics.metric import Measures, MetricGroup, TokenCounts, read_metrics
from penstock.records.record import Record

_METRICS = read_metrics("""\
longest_gap | Longest Gap | ms | order=420 needs=output_tokens streamed
    The largest stamp[i] - stamp[i-1] of the request. Gaps with an inexact stamp are left out; inexact_gap_count counts
    them.
inexact_gap_count | Inexact Gap Count | gaps | needs=output_tokens streamed
    Gaps of the request that begin or end with a stamp that covers several network segments.
fluidity_index | Fluidity Index | ratio | order=430 larger needs=output_tokens streamed
    Share of the deadlines that the tokens after the first one met (Etalon). A token is due one reading interval after
    the one before it; time that a token comes early is added to the time of the next ones. A late token misses as many
    deadlines as intervals have passed, and the next one is due an interval after it. Only with
    --reader-tokens-per-second.
reader_wait_share | Reader Wait Share | ratio | order=440 needs=output_tokens streamed
    Share of the time from first to last in which a reader who starts with the first token and reads
    --reader-tokens-per-second has nothing to read.
""")


def _measure(batch: Batch, counts: CountColumns, table: MeasureTable) -> None:
    del counts
    has_gaps = batch.gap_counts > 0
    if not has_gaps.any():
        return
    gaps, inexact = batch.gaps, batch.inexact_gaps
    begins = (np.cumsum(batch.gap_counts) - batch.gap_counts)[has_gaps]
    longest, left_out = np.full(batch.size, np.nan), np.zeros(batch.size)
    exact = gaps if inexact is None else np.where(inexact, -np.inf, gaps)
    longest[has_gaps] = np.maximum.reduceat(exact, begins)
    if inexact is not None:
        left_out[has_gaps] = np.add.reduceat(inexact, begins, dtype=np.float64)
    measured = has_gaps & batch.succeeded
    table.put("longest_gap", longest, measured & (longest > -np.inf))
    table.put("inexact_gap_count", left_out, measured, whole=True)


def measure_reader(record: Record, counts: TokenCounts, measures: Measures, tokens_per_second: float) -> None:
    """Add the metrics of a reader of this speed to those of a streamed request."""
    stamps = record.stamps if record.streamed else []
    if len(stamps) < 2 or stamps[-1] <= stamps[0] or record.failure is not None or record.cancelled:
        return
    pieces = sum(record.pieces)
    choices = max(1, len(record.outputs), len(record.reasonings))  # a server generates them in parallel
    tokens_per_piece = (counts.total or pieces) / choices / pieces
    interval = 1e9 / tokens_per_second
    inexact = set(record.coalesced)
    met = total = 0.0
    slack = waited = 0.0
    read = tokens_per_piece * record.pieces[0]
    last, held = stamps[0], 0.0
    for i in range(1, len(stamps)):
        tokens = tokens_per_piece * record.pieces[i]
        if i in inexact:
            held += tokens
            continue
        waited = max(waited, stamps[i] - stamps[0] - interval * read)
        tokens, held = tokens + held, 0.0
        read += tokens
        gap = stamps[i] - last
        last = stamps[i]
        if gap <= interval + slack:
            slack += interval - gap
            met += 1
            total += 1
        else:
            total += (gap - slack) // interval
            slack = 0.0
        met += tokens - 1
        total += tokens - 1
        slack += (tokens - 1) * interval
    if total > 0:
        measures.values["fluidity_index"] = min(1.0, max(0.0, met / total))
        measures.values["reader_wait_share"] = waited / (stamps[-1] - stamps[0])


GROUP = MetricGroup(_METRICS, measure_batch=_measure)
