"""Measure what report.html adds to the end of a run, how large it is, and how fast a browser opens it.

python -m benchmarks.report
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from typing import NamedTuple

from benchmarks.far_end import far_end, line, memory_of, profile
from penstock.metrics.batch import Batch
from penstock.metrics.measure import measure_batch
from penstock.metrics.metric import TokenCounts
from penstock.records.bodies import BodyReader
from penstock.records.log import RunLog
from penstock.reports.artifacts import Artifacts
from penstock.reports.report_html import ReportHtml
from penstock.reports.sink import ReportContext
from penstock.runs.report_point import report_point
from penstock.scratch import Scratch

_CHUNKS = 100
_LIMITS_S = {1_000: 0.3, 100_000: 3.0, 1_000_000: 30.0}
_LIMIT_BYTES = 5_000_000
_LIMIT_MEMORY = 300_000_000
"""That the page of a million requests may add to the memory of the process."""
_LIMIT_OPEN_S = 5.0


class _Page(NamedTuple):
    seconds: float
    """CPU time."""
    size: int
    memory: int
    """Growth of the resident memory up to its peak, in bytes, with the pages of temporary files."""
    open_s: float | None
    """Until a browser has drawn all charts; None without Chromium."""


def _report(folder: str, copies: int) -> _Page:
    """Write the page of a run whose requests happen `copies` times."""
    log = RunLog(os.path.join(folder, "log"))
    summary = report_point(log, folder).summary
    counts = TokenCounts(input=10, output=_CHUNKS, head=1)
    records = list(log.records())
    length = max(record.end for record in records) - min(record.start for record in records)
    with tempfile.TemporaryDirectory() as output, Scratch(output) as scratch, BodyReader(log) as bodies:
        path = os.path.join(output, "report.html")
        sink = ReportHtml(ReportContext(log, bodies, log.header, Artifacts.of(folder, log.header), scratch), path)
        for phase in log.covered_phases:
            sink.begin(phase)
        seconds, before = 0.0, _reset_peak()
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
        return _Page(seconds, os.path.getsize(path), memory_of("self")["VmHWM"] - before, _open(path))


def _reset_peak() -> int:
    """Forget the peak of the resident memory, and return the memory of now."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return memory_of("self")["VmRSS"]


def _open(path: str) -> float | None:
    """Return the seconds in which Chromium opens a page and draws its charts, without a network; None without Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        began = time.perf_counter()
        page.goto(f"file://{path}")
        drawn = page.evaluate("plots.forEach((plot) => plot.u || drawPlot(plot)) || plots.every((plot) => plot.u)")
        seconds = time.perf_counter() - began
        browser.close()
    if errors or not drawn:
        raise SystemExit(f"The page cannot be shown: {errors}")
    return seconds


def main() -> bool:
    passed = True
    requests = min(_LIMITS_S)
    with far_end(_CHUNKS, ttft_us=2000, itl_us=100) as server:
        flags = ("--streaming", "--osl", str(_CHUNKS), "--request-count", str(requests), "--concurrency", "32")
        with profile(server.url, *flags) as run:
            for count, limit in _LIMITS_S.items():
                page = _report(run.folder, count // requests)
                good = page.seconds < limit and page.size < _LIMIT_BYTES and page.memory < _LIMIT_MEMORY
                figure = f"{page.seconds:.2f} s, {page.size / 1000:,.0f} kB, {page.memory / 1e6:,.0f} MB of memory"
                reference = f"at most {limit:g} s CPU, {_LIMIT_BYTES / 1000:,.0f} kB, {_LIMIT_MEMORY / 1e6:,.0f} MB"
                share = f"{page.seconds / limit:.2f} of the limit"
                line(f"report.html of {count:,} requests", figure, reference, share, good)
                passed &= good
                if page.open_s is not None:
                    good = page.open_s < _LIMIT_OPEN_S
                    share = f"{page.open_s / _LIMIT_OPEN_S:.2f} of the limit"
                    line("opened by Chromium", f"{page.open_s:.2f} s", f"at most {_LIMIT_OPEN_S:g} s", share, good)
                    passed &= good
    return passed


if __name__ == "__main__":
    raise SystemExit(not main())
