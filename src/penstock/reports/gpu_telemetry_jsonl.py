"""Write `gpu_telemetry_export.jsonl`: one line per reading of a GPU."""

from __future__ import annotations

from penstock.records.log import Sample
from penstock.reports.sample_lines import SampleLines
from penstock.reports.sink import ReportContext
from penstock.telemetry.gpu import GpuReader


class GpuTelemetryJsonl(SampleLines):
    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        self._reader = GpuReader()

    def add_sample(self, sample: Sample) -> None:
        for reading in self._reader.read(sample) or ():
            fields = {
                "timestamp_ns": self.context.header.epoch_wall_ns + sample.at,
                "telemetry_source_url": reading.endpoint,
                "gpu_index": reading.number,
                "gpu_uuid": reading.uuid,
                "gpu_model_name": reading.model,
                "hostname": reading.hostname,
                "telemetry_data": reading.values,
            }
            self.write_line(fields)
