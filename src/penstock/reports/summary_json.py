"""Write `profile_export_aiperf.json`: AIPerf's keys in AIPerf's order, then Penstock's own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.metrics.intervals import CONFIDENCE
from penstock.metrics.phase_stats import ErrorGroup, count_by_owner
from penstock.metrics.statistics import Stats
from penstock.metrics.steady_state import OVERLOADED
from penstock.metrics.summary import PhaseSummary, Summary
from penstock.records.header import RunHeader
from penstock.records.log import LoggedPoint, RunLog, variation_label
from penstock.reports.artifacts import write_json
from penstock.reports.record_metadata import CANCELLATION
from penstock.reports.sink import Sink
from penstock.settings.input_config import input_config

SCHEMA_VERSION = "1.4"
_FIRST = (
    "request_throughput",
    "request_latency",
    "request_count",
    "time_to_first_token",
    "time_to_second_token",
    "inter_token_latency",
    "output_token_throughput",
    "output_token_throughput_per_user",
    "output_sequence_length",
    "input_sequence_length",
    "output_token_count",
    "reasoning_token_count",
    "inter_chunk_latency",
    "total_output_tokens",
    "total_reasoning_tokens",
    "benchmark_duration",
    "total_isl",
    "total_osl",
    "error_request_count",
    "error_isl",
    "total_error_isl",
)


class SummaryJson(Sink):
    def finish(self, summary: Summary) -> None:
        write_json(self.path, _document(summary, self.context.header, self.context.log))


def _document(summary: Summary, header: RunHeader, log: RunLog) -> dict[str, Any]:
    return {
        **_beginning(summary.metrics, header, log, _telemetry_data(summary)),
        **_outcome(summary, header),
        **({} if summary.warmup_metrics is None else {"warmup_metrics": summary.warmup_metrics}),
        **_others(summary.metrics),
        **_penstock_fields(summary, header),
    }


def phase_document(summary: Summary, phase: PhaseSummary, header: RunHeader, log: RunLog) -> dict[str, Any]:
    """Return the document of one phase, without the fields that describe the whole run."""
    outcome: dict[str, Any] = {"was_cancelled": False, "is_complete": True}
    cancelled = 0
    if phase.kind == "profiling":
        outcome, cancelled = _completeness(summary), cancelled_by_settings(summary, header)
    return {
        **_beginning(phase.metrics, header, log),
        **outcome,
        "error_summary": error_summary(phase.errors, cancelled),
        "start_time": local_time(phase.start_ns),
        "end_time": local_time(phase.end_ns),
        **_others(phase.metrics),
        "penstock_version": header.penstock_version,
    }


def _beginning(
    metrics: dict[str, Stats], header: RunHeader, log: RunLog, telemetry_data: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "aiperf_version": f"penstock-{header.penstock_version}",
        "benchmark_id": header.benchmark_id,
        **_ordered(metrics),
        **telemetry_data,
        "input_config": input_config(header.settings, header.conversations),
        "run_info": _run_info(header, log),
    }


def _others(metrics: dict[str, Stats]) -> dict[str, Stats]:
    return {tag: stats for tag, stats in metrics.items() if tag not in _FIRST}


def _ordered(metrics: dict[str, Stats]) -> dict[str, Stats]:
    return {tag: metrics[tag] for tag in _FIRST if tag in metrics}


def _telemetry_data(summary: Summary) -> dict[str, Any]:
    telemetry = summary.gpu_telemetry
    if telemetry is None:
        return {}
    data = {
        "summary": {
            "endpoints_configured": telemetry.configured,
            "endpoints_successful": telemetry.successful,
            "start_time": local_time(summary.start_ns),
            "end_time": local_time(summary.end_ns),
        },
        "endpoints": {_host(url): {"gpus": gpus} for url, gpus in telemetry.gpus.items()},
        "error_summary": [
            {"error_details": {"type": "TelemetryError", "message": f"{url}: {message}"}, "count": 1}
            for url, message in telemetry.errors.items()
        ],
    }
    return {"telemetry_data": data}


def _host(url: str) -> str:
    return urlsplit(url).netloc or url


def _run_info(header: RunHeader, log: RunLog) -> dict[str, Any]:
    seed, point = header.settings.input.seed, log.point
    return {
        "benchmark_id": header.benchmark_id,
        **({} if point is None else {"sweep_id": log.experiment_id}),
        **({} if seed is None else {"random_seed": seed}),
        "trial": 0 if point is None else point.trial,
        **({} if point is None else _point_info(point)),
        "cli_command": header.settings.command,
    }


def _point_info(point: LoggedPoint) -> dict[str, Any]:
    return {
        "run_label": point.label,
        "variation_label": variation_label(point.parameters),
        "variation_index": point.variation,
        "variation_values": point.parameters,
    }


def _outcome(summary: Summary, header: RunHeader) -> dict[str, Any]:
    return {
        **_completeness(summary),
        "error_summary": error_summary(summary.errors, cancelled_by_settings(summary, header)),
        "start_time": local_time(summary.start_ns),
        "end_time": local_time(summary.end_ns),
    }


def _completeness(summary: Summary) -> dict[str, Any]:
    reason = {} if summary.incomplete_reason is None else {"incomplete_reason": summary.incomplete_reason}
    return {"was_cancelled": summary.was_cancelled, "is_complete": summary.is_complete, **reason}


def _penstock_fields(summary: Summary, header: RunHeader) -> dict[str, Any]:
    fields: dict[str, Any] = {"penstock_version": header.penstock_version}
    if summary.certificate is not None:
        certificate = msgspec.structs.asdict(summary.certificate)
        optional = ("nodes", "load", "metrics")
        fields["certificate"] = {name: value for name, value in certificate.items() if value or name not in optional}
    fields |= _certainty(summary)
    if summary.gaps:
        fields["gaps"] = [
            {
                "start_time": local_time(gap.start_ns),
                "end_time": local_time(gap.end_ns),
                "seconds": gap.seconds,
                "restarted_conversations": gap.restarted_conversations,
            }
            for gap in summary.gaps
        ]
    fields["context_mode"] = header.context_mode
    if summary.proof is not None:
        fields["proof"] = {"algorithm": "sha256", "requests": summary.proof.requests, "root": summary.proof.root}
    fields["tokenizer"] = summary.tokenizer
    if summary.token_agreement is not None:
        fields["token_agreement"] = summary.token_agreement
    fields["finish_reasons"] = summary.finish_reasons
    if summary.broken_conversations:
        fields["broken_conversations"] = summary.broken_conversations
    if summary.branch_stats:
        fields["branch_stats"] = summary.branch_stats
    if summary.warnings:
        fields["warnings"] = summary.warnings
    if summary.prompt_reuse is not None:
        fields["prompt_reuse"] = summary.prompt_reuse
    if summary.reply_notes:
        fields["reply_notes"] = summary.reply_notes
    fields["failures"] = count_by_owner(summary.errors)
    if summary.warmup_errors:
        fields["warmup_error_summary"] = error_summary(summary.warmup_errors)
    if summary.damage.torn_bytes:
        fields["torn_bytes"] = summary.damage.torn_bytes
    if summary.damage.skipped_bytes:
        fields["skipped_bytes"] = summary.damage.skipped_bytes
    fields["machine"] = header.machine
    return fields


def _certainty(summary: Summary) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if summary.intervals:
        fields["confidence_intervals"] = {"level": CONFIDENCE, "metrics": summary.intervals}
    if summary.steady_state is not None:
        fields["steady_state"] = summary.steady_state
    if summary.overload is not None:
        fields["overloaded"] = OVERLOADED
        fields["overload"] = {**msgspec.structs.asdict(summary.overload), "ended_run": summary.ended_by_overload}
    if summary.gap_profile is not None:
        fields["gaps_by_position"] = summary.gap_profile
    if summary.until is not None:
        fields["until"] = summary.until
    if summary.censored is not None:
        fields["censored_requests"] = summary.censored
    return fields


def cancelled_by_settings(summary: Summary, header: RunHeader) -> int:
    """Return how many requests --request-cancellation-rate cancelled. Those that the end of a run cuts off are no errors."""
    return summary.cancelled if header.settings.load.cancellation_percent else 0


def error_summary(groups: list[ErrorGroup], cancelled: int = 0) -> list[dict[str, Any]]:
    errors = [{"error_details": _details(group), "count": group.count} for group in groups]
    if cancelled:
        errors.append({"error_details": {**CANCELLATION, "message": "Cancelled by the client."}, "count": cancelled})
    return errors


def _details(group: ErrorGroup) -> dict[str, Any]:
    code = {} if group.code is None else {"code": group.code}
    return {**code, "type": group.type, "message": group.message, "fault": group.owner}


def local_time(unix_ns: int) -> str:
    """Format as local time without a zone, as AIPerf does."""
    seconds, rest = divmod(unix_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds).replace(microsecond=rest // 1000).isoformat(timespec="microseconds")
