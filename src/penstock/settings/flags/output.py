"""Flags for the output: artifact files, terminal output, exit status."""

from __future__ import annotations

from penstock.settings.flags.flag import Flag, Group

__all__ = ["OUTPUT", "TELEMETRY", "VERDICT"]

OUTPUT = Group(
    "Output",
    (
        Flag(
            "--output-artifact-dir",
            "path",
            "Write the files into this folder.",
            aliases=("--artifact-dir",),
            target="output.folder",
            metavar="FOLDER",
            default="artifacts/MODEL-TYPE-LOAD",
        ),
        Flag(
            "--profile-export-prefix",
            "str",
            "Prefix of the exported file names, instead of profile_export.",
            aliases=("--profile-export-file",),
            target="output.prefix",
            metavar="NAME",
        ),
        Flag(
            "--export-level",
            "enum",
            "Write the summary only, or also one record per request.",
            aliases=("--profile-export-level",),
            target="output.level",
            choices=("summary", "records"),
            unsupported_choices=("raw",),
            default="records",
        ),
        Flag(
            "--export",
            "list",
            "Also write the record of each request in this format: parquet.",
            target="output.exports",
            metavar="FORMAT",
            comma_separated=True,
            penstock_only=True,
        ),
        Flag(
            "--export-http-trace",
            "bool",
            "Add the HTTP phases of each request to its record.",
            target="output.http_trace",
        ),
        Flag(
            "--export-outputs-json",
            "bool",
            "Write the text of each successful reply, with its main metrics, to outputs.json.",
            target="output.outputs_json",
        ),
        Flag(
            "--slice-duration",
            "float",
            "Also write the metrics of each slice of the run, this many seconds long.",
            target="output.slice_s",
            metavar="SECONDS",
            ge=0.01,
        ),
        Flag(
            "--no-html",
            "bool",
            "Do not write report.html, the page with the charts of the run.",
            target="output.html",
            stored_value=False,
            penstock_only=True,
        ),
        Flag("--show-trace-timing", "bool", "Print the table of HTTP phases.", target="output.show_http"),
        Flag(
            "--ui-type",
            "enum",
            "Show progress during the run (simple), or only the results (none).",
            aliases=("--ui",),
            target="output.ui",
            choices=("simple", "none"),
            unsupported_choices=("dashboard",),
            default="simple",
        ),
        Flag(
            "--quiet",
            "bool",
            "Print only errors, and a certificate that is not VALID.",
            aliases=("-q",),
            target="output.quiet",
            penstock_only=True,
        ),
        Flag(
            "--log-level",
            "enum",
            "TRACE and DEBUG have the effect of --verbose; other levels have no effect in this version.",
            target="log_level",
            choices=("TRACE", "DEBUG", "INFO", "NOTICE", "WARNING", "SUCCESS", "ERROR", "CRITICAL"),
            default="INFO",
        ),
        Flag(
            "--verbose",
            "bool",
            "Also print what Penstock chose (addresses, processes, connections, seed, tokenizer), and the tables of requests "
            "and tokens over time.",
            aliases=("-v",),
            target="output.verbose",
        ),
        Flag(
            "--extra-verbose",
            "bool",
            "The same as --verbose in this version.",
            aliases=("-vv",),
            target="output.verbose",
        ),
    ),
)

VERDICT = Group(
    "Validity and exit status",
    (
        Flag(
            "--require-valid",
            "bool",
            "Exit with status 1 unless the certificate of the run is VALID.",
            target="require_valid",
            penstock_only=True,
        ),
        Flag(
            "--max-error-rate",
            "float",
            "Share of requests that may fail without exit status 1.",
            target="max_error_rate",
            metavar="SHARE",
            default="0",
            ge=0,
            le=1,
            penstock_only=True,
        ),
        Flag(
            "--goodput",
            "str",
            "Count the requests that meet all these objectives, in one argument: 'time_to_first_token:200 "
            "inter_token_latency:10'. Limits are in the units of the report; ttft, itl, tpot and e2el are accepted too.",
            target="goodput",
            metavar="OBJECTIVES",
        ),
        Flag(
            "--assert",
            "list",
            "Exit with status 1 unless this holds, for example 'p99 time_to_first_token<300'. Repeat it for more.",
            target="assertions",
            metavar="CONDITION",
            comma_separated=True,
            penstock_only=True,
        ),
    ),
)

TELEMETRY = Group(
    "Telemetry",
    (
        Flag(
            "--server-metrics",
            "list",
            "Scrape Prometheus metrics during the run: /metrics of each --url, and of the URLs given here.",
            target="telemetry.server_metrics",
            metavar="[URL...]",
            url=True,
            implied="",
            default="not scraped",
        ),
        Flag(
            "--server-metrics-formats",
            "list",
            "Files to write server metrics to: json, csv, jsonl (one line per scrape).",
            target="telemetry.server_metrics_formats",
            metavar="FORMAT...",
            unsupported_choices=("parquet",),
            default="json csv",
        ),
        Flag(
            "--telemetry-interval",
            "float",
            "Time between two scrapes of --server-metrics and of --gpu-telemetry.",
            target="telemetry.interval_s",
            metavar="SECONDS",
            default="0.333",
            gt=0,
            hard_min=0.05,
            penstock_only=True,
        ),
        Flag(
            "--gpu-telemetry",
            "list",
            "Collect power, utilization, memory, clocks and temperature of GPUs: from DCGM exporters (URLs; localhost:9400 and "
            "9401 without one), or of this machine (pynvml).",
            target="telemetry.gpu",
            metavar="[URL...|pynvml]",
            url=True,
            implied="",
            default="not collected",
        ),
        Flag(
            "--no-server-metrics",
            "bool",
            "Accepted for compatibility: server metrics are scraped only with --server-metrics.",
            target="telemetry.no_server_metrics",
            always_on=True,
        ),
        Flag(
            "--no-gpu-telemetry",
            "bool",
            "Accepted for compatibility: GPU telemetry is collected only with --gpu-telemetry.",
            target="telemetry.no_gpu_telemetry",
            always_on=True,
        ),
    ),
)
