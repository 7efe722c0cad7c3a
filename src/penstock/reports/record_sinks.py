"""Gives the records of a run with their metrics to the sinks of its artifacts."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.measure import measure_batch, unfit_metrics
from penstock.metrics.summary import Summary
from penstock.metrics.token_counting import Counter
from penstock.records.header import RunHeader
from penstock.records.log import RunLog
from penstock.records.read_sections import Advance
from penstock.records.section import Damage, Section
from penstock.reports.sink import Sink

__all__ = ["RecordSinks", "measure_batches"]


def measure_batches(
    header: RunHeader, section: Section, counter: Counter, advance: Advance, damage: Damage
) -> Iterator[tuple[Batch, MeasureTable]]:
    """Yield the records of a section with their metrics."""
    unfit = unfit_metrics(header)
    reader = header.settings.reader_rate
    with _without_collector():
        for records in section.batches(damage):
            batch = Batch(records)
            yield batch, measure_batch(batch, counter.count(records), unfit, reader)
            advance(batch.size)


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


class RecordSinks:
    def __init__(self, log: RunLog, sinks: Mapping[str, Sink]) -> None:
        """`sinks` are those of a report or of a section, by their names."""
        self._log = log
        self._sinks = sinks
        for phase in log.covered_phases:
            for sink in sinks.values():
                sink.begin(phase)

    def add(self, batch: Batch, table: MeasureTable) -> None:
        for sink in self._sinks.values():
            sink.add_batch(batch, table)

    def section_parts(self) -> dict[str, Any]:
        """Return what the sinks made of the records of a section, by the names of the sinks."""
        return {name: sink.section_part() for name, sink in self._sinks.items()}

    def add_section(self, parts: Mapping[str, Any]) -> None:
        for name, part in parts.items():
            self._sinks[name].add_part(part)

    def finish(self, summary: Summary) -> None:
        for sample in self._log.samples():
            for sink in self._sinks.values():
                sink.add_sample(sample)
        for sink in self._sinks.values():
            sink.finish(summary)

    def close(self) -> None:
        for sink in self._sinks.values():
            sink.close()
