"""Measure what report.html adds to the end of a run, and how large it is.

python -m benchmarks.report
"""

from __future__ import annotations

import os
import tempfile
import time

from benchmarks.far_end import far_end, line, profile
from penstock.metrics.batch import Batch
from penstock.metrics.measure import measure_batch
from penstock.metrics.metric import TokenCounts
from penstock.records.log import RunLog
from penstock.reports.artifacts import Artifacts
from penstock.reports.report_html import ReportHtml
from penstock.reports.sink import ReportContext
from penstock.runs.summarise import summarise

_CHUNKS = 100
_LIMITS_S = {1_000: 0.3, 100_000: 3.0}
_LIMIT_BYTES = 5_000_000


def _report(folder: str, copies: int) -> tuple[float, int]:
    """Write the page of a run whose requests happen `copies` times, and return the CPU seconds and the bytes."""
    summary = summarise(folder).summary
    log = RunLog(os.path.join(folder, "log"))
    counts = TokenCounts(input=10, output=_CHUNKS, head=1)
    records = list(log.records())
    length = max(record.end for record in records) - min(record.start for record in records)
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "report.html")
        sink = ReportHtml(ReportContext(log, log.header, Artifacts.of(folder, log.header), scratch), path)
        for phase in log.covered_phases:
            sink.begin(phase)
        seconds = 0.0
        for _ in range(copies):
            batch = Batch(records)
            table = measure_batch(batch, [counts] * len(records))
            began = time.process_time()
            sink.add_batch(batch, table)
            seconds += time.process_time() - began
            for record in records:
                record.intended += length
                record.issued += length
                record.start += length
                record.end += length
        began = time.process_time()
        sink.finish(summary)
        seconds += time.process_time() - began
        size = os.path.getsize(path)
    log.close()
    return seconds, size


def main() -> bool:
    passed = True
    requests = min(_LIMITS_S)
    with far_end(_CHUNKS, ttft_us=2000, itl_us=100) as server:
        flags = ("--streaming", "--osl", str(_CHUNKS), "--request-count", str(requests), "--concurrency", "32")
        with profile(server.url, *flags) as run:
            for count, limit in _LIMITS_S.items():
                seconds, size = _report(run.folder, count // requests)
                good = seconds < limit and size < _LIMIT_BYTES
                figure = f"{seconds:.2f} s, {size / 1000:,.0f} kB"
                reference = f"at most {limit:g} s CPU, {_LIMIT_BYTES / 1000:,.0f} kB"
                line(
                    f"report.html of {count:,} requests", figure, reference, f"{seconds / limit:.2f} of the limit", good
                )
                passed &= good
    return passed


if __name__ == "__main__":
    raise SystemExit(not main())
