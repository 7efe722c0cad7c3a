"""Write `gpu_telemetry_export.jsonl`: one line per reading of a GPU."""

from __future__ import annotations

import msgspec

from penstock.metrics.summary import Summary
from penstock.records.log import Sample
from penstock.reports.artifacts import Draft
from penstock.reports.sink import ReportContext, Sink
from penstock.telemetry.gpu import GpuReader

__all__ = ["GpuTelemetryJsonl"]


class GpuTelemetryJsonl(Sink):
    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        self._reader = GpuReader()
        self._draft: Draft | None = None

    def add_sample(self, sample: Sample) -> None:
        for reading in self._reader.read(sample) or ():
            if self._draft is None:
                self._draft = Draft(self.path)
            line = {
                "timestamp_ns": self.context.header.epoch_wall_ns + sample.at,
                "dcgm_url": reading.endpoint,
                "gpu_index": reading.number,
                "gpu_uuid": reading.uuid,
                "gpu_model_name": reading.model,
                "hostname": reading.hostname,
                "telemetry_data": reading.values,
            }
            self._draft.file.write(msgspec.json.encode(line) + b"\n")

    def finish(self, summary: Summary) -> None:
        del summary
        if self._draft is not None:
            self._draft.commit()

    def close(self) -> None:
        if self._draft is not None:
            self._draft.discard()
