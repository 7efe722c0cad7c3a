"""The sinks of a report. To add an artifact, define a `Sink` in a module of its own and list it in `SINKS`.

A command that only needs the paths must start quickly, so the modules of the sinks are imported when a report is written.
"""

from __future__ import annotations

from typing import NamedTuple


class SinkEntry(NamedTuple):
    name: str
    path: str
    """Path of the file. `{folder}` is the artifact folder with its slash; the other names are the
    artifact folder and the start of a file name, which a prefix of the user replaces."""
    sink: str
    """Module and class."""


SINKS: tuple[SinkEntry, ...] = (
    SinkEntry("records", "{export}.jsonl", "penstock.reports.records_jsonl:RecordsJsonl"),
    SinkEntry("raw", "{export}_raw.jsonl", "penstock.reports.raw_jsonl:RawJsonl"),
    SinkEntry("parquet", "{export}.parquet", "penstock.reports.records_parquet:RecordsParquet"),
    SinkEntry("inputs", "{folder}inputs.json", "penstock.reports.inputs_json:InputsJson"),
    SinkEntry("outputs", "{folder}outputs.json", "penstock.reports.outputs_json:OutputsJson"),
    SinkEntry("slices_csv", "{summary}_timeslices.csv", "penstock.reports.slices_csv:SlicesCsv"),
    SinkEntry("slices_json", "{summary}_timeslices.json", "penstock.reports.slices_json:SlicesJson"),
    SinkEntry("phases", "{folder}phase_manifest.json", "penstock.reports.phase_files:PhaseFiles"),
    SinkEntry("summary_csv", "{summary}.csv", "penstock.reports.summary_csv:SummaryCsv"),
    SinkEntry("console", "{export}_console.txt", "penstock.reports.console:ConsoleText"),
    SinkEntry("server_metrics_json", "{server_metrics}.json", "penstock.reports.server_metrics_json:ServerMetricsJson"),
    SinkEntry("server_metrics_csv", "{server_metrics}.csv", "penstock.reports.server_metrics_csv:ServerMetricsCsv"),
    SinkEntry(
        "server_metrics_jsonl", "{server_metrics}.jsonl", "penstock.reports.server_metrics_jsonl:ServerMetricsJsonl"
    ),
    SinkEntry(
        "server_metrics_parquet",
        "{server_metrics}.parquet",
        "penstock.reports.server_metrics_parquet:ServerMetricsParquet",
    ),
    SinkEntry("gpu_telemetry", "{gpu_telemetry}.jsonl", "penstock.reports.gpu_telemetry_jsonl:GpuTelemetryJsonl"),
    SinkEntry(
        "network_latency",
        "{export}_network_latency.jsonl",
        "penstock.reports.network_latency_jsonl:NetworkLatencyJsonl",
    ),
    SinkEntry("html", "{folder}report.html", "penstock.reports.report_html:ReportHtml"),
    SinkEntry("summary_json", "{summary}.json", "penstock.reports.summary_json:SummaryJson"),
)
"""Sinks are finished in this order. The JSON summary is the last: a program that waits for it expects the other files to be
complete."""

PHASE_FILES = tuple(
    f"phases/{kind}/profile_export_aiperf.{suffix}" for kind in ("warmup", "profiling") for suffix in ("json", "csv")
)
"""Files that the manifest of the phases names."""

AIPERF_LOG = "logs/aiperf.log"
"""Written while a run lasts that was started under the name aiperf."""
MLFLOW_FILE = "mlflow_export.json"
"""Names the run of MLflow to which the results were logged."""
