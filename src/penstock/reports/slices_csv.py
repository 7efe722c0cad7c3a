"""Write `profile_export_aiperf_timeslices.csv`: a row for each slice, metric and statistic."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.slices import Slice
from penstock.metrics.summary import Summary
from penstock.reports.artifacts import replacing
from penstock.reports.sink import Sink
from penstock.reports.summary_csv import STATISTICS, number


class SlicesCsv(Sink):
    def finish(self, summary: Summary) -> None:
        epoch = self.context.header.epoch_wall_ns
        with replacing(self.path) as file:
            file.write(_csv([("Timeslice", "Start_NS", "End_NS", "Metric", "Unit", "Stat", "Value")]))
            for index, part in enumerate(summary.slices):
                file.write(_csv(_rows((index, epoch + part.start_ns, epoch + part.end_ns), part)))


def _rows(slice_: tuple[int, int, int], part: Slice) -> Iterator[tuple[object, ...]]:
    for tag, stats in sorted(part.metrics.items()):
        for name in STATISTICS:
            if (value := getattr(stats, name)) is not None:
                yield *slice_, CATALOGUE[tag].header, stats.unit, name, number(value)


def _csv(rows: Iterator[tuple[object, ...]] | list[tuple[object, ...]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
