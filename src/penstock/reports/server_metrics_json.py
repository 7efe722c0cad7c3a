"""Write `server_metrics_export.json`: AIPerf's keys, then the quantities that all servers have under one name."""

from __future__ import annotations

from penstock.metrics.summary import Summary
from penstock.reports.artifacts import write_json
from penstock.reports.sink import Sink
from penstock.reports.summary_json import local_time
from penstock.settings.input_config import input_config

SCHEMA_VERSION = "1.1"


class ServerMetricsJson(Sink):
    def finish(self, summary: Summary) -> None:
        metrics = summary.server_metrics or summary.server_readings
        if metrics is None or not metrics.successful:
            return
        document = {
            "schema_version": SCHEMA_VERSION,
            "summary": {
                "endpoints_configured": metrics.configured,
                "endpoints_successful": metrics.successful,
                "start_time": local_time(summary.start_ns),
                "end_time": local_time(summary.end_ns),
                "endpoint_info": metrics.endpoint_info,
                "phase_time_ranges": {"profiling": {"start_ns": summary.start_ns, "end_ns": summary.end_ns}},
            },
            "metrics_phase": "profiling",
            "metrics": metrics.metrics,
            "input_config": input_config(self.context.header.settings, self.context.header.conversations),
            "concepts": metrics.concepts,
        }
        write_json(self.path, document)
