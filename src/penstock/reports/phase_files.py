"""Write `phase_manifest.json` and a summary of each phase in `phases/NAME/`, if a run had more than one phase."""

from __future__ import annotations

import os
from typing import Any

from penstock.metrics.summary import PhaseSummary, Summary
from penstock.reports.artifacts import replacing, write_json
from penstock.reports.sink import Sink
from penstock.reports.summary_csv import csv_text
from penstock.reports.summary_json import cancelled_by_settings, error_summary, phase_document

_FOLDER = "phases"
_NAME = "profile_export_aiperf"


class PhaseFiles(Sink):
    def finish(self, summary: Summary) -> None:
        if len(summary.phases) < 2:
            return
        for phase in summary.phases:
            base = os.path.join(os.path.dirname(self.path), _base(phase))
            document = phase_document(summary, phase, self.context.header, self.context.log)
            write_json(f"{base}.json", document)
            with replacing(f"{base}.csv") as file:
                file.write(csv_text(phase.metrics).encode())
        cancelled = cancelled_by_settings(summary, self.context.header)
        manifest = {"phases": [_entry(summary, phase, cancelled) for phase in summary.phases], "schema_version": 1}
        write_json(self.path, manifest)


def _base(phase: PhaseSummary) -> str:
    return f"{_FOLDER}/{phase.kind}/{_NAME}"


def _entry(summary: Summary, phase: PhaseSummary, cancelled: int) -> dict[str, Any]:
    profiling = phase.kind == "profiling"
    return {
        "end_ns": phase.end_ns,
        "error_request_count": phase.failed,
        "error_summary": error_summary(phase.errors, cancelled if profiling else 0),
        "metrics_csv": f"{_base(phase)}.csv",
        "metrics_json": f"{_base(phase)}.json",
        "phase_index": phase.index,
        "phase_kind": phase.kind,
        "phase_name": phase.name,
        "profiling_index": 0 if profiling else None,
        "start_ns": phase.start_ns,
        "successful_request_count": phase.succeeded,
        "total_request_count": phase.succeeded + phase.failed,
        "was_cancelled": profiling and summary.was_cancelled,
    }
