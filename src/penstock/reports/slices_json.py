"""Write `profile_export_aiperf_timeslices.json`: the metrics of each slice of the profiling phase."""

from __future__ import annotations

from typing import Any

from penstock.metrics.slices import Slice
from penstock.metrics.summary import Summary
from penstock.reports.artifacts import write_json
from penstock.reports.sink import Sink
from penstock.settings.input_config import input_config


class SlicesJson(Sink):
    def finish(self, summary: Summary) -> None:
        header = self.context.header
        slices = [_fields(part, header.epoch_wall_ns) for part in summary.slices]
        document = {"timeslices": slices, "input_config": input_config(header.settings, header.conversations)}
        write_json(self.path, document)


def _fields(part: Slice, epoch: int) -> dict[str, Any]:
    incomplete = {} if part.is_complete else {"is_complete": False}
    return {"start_ns": epoch + part.start_ns, "end_ns": epoch + part.end_ns, **incomplete, **part.metrics}
