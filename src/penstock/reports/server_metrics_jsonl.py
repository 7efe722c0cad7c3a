"""Write `server_metrics_export.jsonl`: one line per scrape of an endpoint, with all values of its page."""

from __future__ import annotations

from typing import Any

from penstock.records.log import Sample
from penstock.reports.sample_lines import SampleLines
from penstock.reports.sink import ReportContext
from penstock.telemetry.scrape import PageHistory
from penstock.telemetry.server_metrics import READINGS, SOURCE


class ServerMetricsJsonl(SampleLines):
    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        self._history = PageHistory()
        self._epoch = context.header.epoch_wall_ns

    def add_sample(self, sample: Sample) -> None:
        if sample.source not in (SOURCE, READINGS) or self._history.read(sample) is None:
            return
        url = sample.values["url"]
        fields = {
            "endpoint_url": url,
            "timestamp_ns": self._epoch + sample.at,
            "endpoint_latency_ns": sample.values["latency_ns"],
            "metrics": self._metrics(url),
        }
        self.write_line(fields)

    def _metrics(self, url: str) -> dict[str, list[dict[str, Any]]]:
        """Return the values by family. The parts of a histogram with the same labels are one entry. Summaries are left out, as
        in AIPerf, whose model of a line has no quantiles."""
        metrics: dict[str, dict[tuple[tuple[str, str], ...], dict[str, Any]]] = {}
        for series, value in self._history.pages[url].values():
            if series.family.type == "summary":
                continue
            labels = {key: text for key, text in series.labels.items() if key != "le"}
            entries = metrics.setdefault(series.family.name, {})
            entry = entries.setdefault(tuple(labels.items()), {"labels": labels} if labels else {})
            if series.family.type != "histogram":
                entry["value"] = value
            elif "le" in series.labels:
                entry.setdefault("buckets", {})[series.labels["le"]] = value
            elif series.name.endswith(("_sum", "_count")):
                entry[series.name.rpartition("_")[2]] = value
        return {name: list(entries.values()) for name, entries in metrics.items()}
