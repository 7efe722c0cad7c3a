"""Write `profile_export_network_latency.jsonl`: one line per probe of the round trip to a server."""

from __future__ import annotations

from typing import Any

from penstock.records.log import Sample
from penstock.reports.sample_lines import SampleLines
from penstock.telemetry.network import NETWORK


class NetworkLatencyJsonl(SampleLines):
    def add_sample(self, sample: Sample) -> None:
        if sample.source != NETWORK:
            return
        values = sample.values
        fields: dict[str, Any] = {
            "timestamp_ns": self.context.header.epoch_wall_ns + sample.at,
            "target_url": values["url"],
            "target_host": values["host"],
            "target_port": values["port"],
            "probe_type": "tcp_connect",
            "success": "rtt_ns" in values,
            "rtt_ns": values.get("rtt_ns"),
        }
        if "error" in values:
            fields["error"] = {"type": "ConnectionError", "message": values["error"]}
        self.write_line(fields)
