"""Measure how long the summary of a million requests takes, with confidence intervals and the steady state.

python -m benchmarks.intervals              a million requests
python -m benchmarks.intervals 100000       fewer
"""

from __future__ import annotations

import sys
import tempfile
import time

import numpy as np

from benchmarks.far_end import line
from penstock.metrics.batch import Batch
from penstock.metrics.measure import measure_batch
from penstock.metrics.metric import TokenCounts
from penstock.metrics.phase_stats import PhaseStats
from penstock.metrics.request_series import intervals
from penstock.metrics.steady_state import steady_state, steady_window
from penstock.records.record import Record
from penstock.scratch import Scratch

_MS = 1_000_000
_LIMIT_S = 10.0
_BATCH = 1_024


def records_of(count: int) -> list[Record]:
    """Return requests with correlated latencies."""
    rng = np.random.default_rng(1)
    noise = rng.standard_normal(count) * 0.3
    found = []
    value = 0.0
    for i in range(count):
        value = 0.9 * value + noise[i]
        first = int(50 * _MS * 2**value)
        start = i * 100_000
        record = Record(
            phase=0,
            number=i,
            conversation=0,
            turn=0,
            payload=0,
            worker=0,
            url=0,
            request_id="",
            correlation_id="",
            intended=start,
            issued=start,
            start=start,
            end=start + first + 30 * _MS,
            sent=start,
            first_byte=start + first,
            status=200,
            streamed=True,
            stamps=[first, first + 10 * _MS, first + 20 * _MS],
            pieces=[1, 1, 1],
            first_output=0,
            outputs=[""],
        )
        found.append(record)
    return found


def main(count: int = 1_000_000) -> bool:
    part = min(count, 50_000)
    records = records_of(part)
    counts = TokenCounts(input=10, output=3)
    with Scratch(tempfile.gettempdir()) as scratch:
        stats = PhaseStats(scratch, with_series=True)
        begin = time.process_time()
        for round_ in range(count // part):
            shift = round_ * part * 100_000
            for record in records:
                record.start += shift and part * 100_000
                record.end += shift and part * 100_000
                record.intended = record.start
            for first in range(0, part, _BATCH):
                batch = Batch(records[first : first + _BATCH])
                stats.add_batch(batch, measure_batch(batch, [counts] * batch.size))
        added = time.process_time()
        metrics = stats.metrics()
        plain = time.process_time()
        table, span = stats.series(), stats.span
        assert table is not None
        assert span is not None
        intervals(table, span, whole=True)
        window = steady_window(table, open_loop=True)
        assert window is not None
        steady_state(table, window, {})
        end = time.process_time()
    passed = end - begin < _LIMIT_S * count / 1_000_000 and metrics["request_latency"].count == count
    line(
        f"summary of {count:,} requests",
        f"{end - begin:.1f} s of CPU",
        f"{end - plain:.1f} s of it for intervals",
        f"{1e6 * (added - begin) / count:.1f} µs to measure and add a request; at most {_LIMIT_S:.0f} s for a million",
        passed,
    )
    return passed


if __name__ == "__main__":
    raise SystemExit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
