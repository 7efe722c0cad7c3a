"""Writes the artifacts that are made from all records: in this process, or in a child at the same time as the summary."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import Pipe

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.measure import measure_batch, unfit_metrics
from penstock.metrics.summary import Summary
from penstock.metrics.token_counting import Counter
from penstock.processes import cores, end_with_parent, fork
from penstock.records.log import RunLog
from penstock.reports.sink import Sink

__all__ = ["ProgressCallback", "RecordSinks", "SinkProcess", "is_worth_a_process", "measure_batches"]

_LEAST_BYTES = 32 << 20
"""The log of about 70,000 requests, whose report takes seconds."""

ProgressCallback = Callable[[int, int], None]
"""Called with the number of records done and the number expected; 0 if that is unknown."""


def measure_batches(
    log: RunLog, counter: Counter, progress: ProgressCallback | None = None, expected: int = 0
) -> Iterator[tuple[Batch, MeasureTable]]:
    """Yield the records of a log with their metrics."""
    done = 0
    unfit = unfit_metrics(log.header)
    reader = log.header.settings.reader_rate
    with _without_collector():
        for records in log.batches():
            batch = Batch(records)
            yield batch, measure_batch(batch, counter.count(records), unfit, reader)
            done += batch.size
            if progress is not None:
                # The header's request count excludes the warmup, so more records than expected may arrive.
                progress(done, max(done, expected) if expected else 0)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Stop the collector of cycles, which finds none in records and takes a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def is_worth_a_process(log: RunLog) -> bool:
    """Return whether another process should write the artifacts that take records. It is forked, so there must be no threads,
    and Ray has its own threads."""
    size = sum(map(os.path.getsize, log.worker_files()))
    safe = sys.platform == "linux" and threading.active_count() == 1 and "ray" not in sys.modules
    return size >= _LEAST_BYTES and safe and cores() > 1


class RecordSinks:
    """Sinks, in this process."""

    def __init__(self, log: RunLog, sinks: list[Sink]) -> None:
        self._log = log
        self._sinks = sinks
        for phase in log.covered_phases:
            for sink in sinks:
                sink.begin(phase)

    def add(self, batch: Batch, table: MeasureTable) -> None:
        for sink in self._sinks:
            sink.add_batch(batch, table)

    def finish(self, summary: Summary) -> None:
        for sample in self._log.samples():
            for sink in self._sinks:
                sink.add_sample(sample)
        for sink in self._sinks:
            sink.finish(summary)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


class SinkProcess:
    """Sinks in a child process, which reads the log itself."""

    def __init__(self, log: RunLog, counter: Counter, make_sinks: Callable[[], list[Sink]]) -> None:
        self._log = log
        self._counter = counter
        self._make_sinks = make_sinks
        self._connection, other = Pipe()
        parent = os.getpid()
        self._child = fork()
        if self._child:
            other.close()
            return
        try:
            self._connection.close()
            if end_with_parent(parent, signal.SIGKILL):
                os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads were not forked
                other.send(self._write(other.recv))
        except BaseException as error:
            with contextlib.suppress(Exception):
                other.send(error)
        finally:
            os._exit(0)

    def _write(self, receive: Callable[[], Summary]) -> str | None:
        """Write the artifacts, and return the note of the summary. `receive` returns the summary."""
        with contextlib.closing(RecordSinks(self._log, self._make_sinks())) as sinks:
            for batch, table in measure_batches(self._log, self._counter):
                sinks.add(batch, table)
            summary = receive()
            sinks.finish(summary)
        return summary.note

    def finish(self, summary: Summary) -> None:
        try:
            self._connection.send(summary)
            answer = self._connection.recv()
        except (EOFError, OSError):  # it was killed
            answer = self._write(lambda: summary)
        if isinstance(answer, BaseException):
            raise answer
        summary.note = answer

    def close(self) -> None:
        self._connection.close()
        os.waitpid(self._child, 0)
