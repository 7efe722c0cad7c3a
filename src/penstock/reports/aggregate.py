"""Write `profile_export_aiperf_aggregate.{json,csv}`: the figures of repeated runs with confidence intervals."""

from __future__ import annotations

import csv
import io
import os
from typing import Any

from penstock.metrics.confidence import Interval
from penstock.metrics.experiment import VariationFigures
from penstock.reports.artifacts import replacing, write_json
from penstock.settings.schema import ExperimentSettings

SCHEMA_VERSION = "1.0"
INTERVAL_FIELDS = tuple(field for field in Interval.__struct_fields__)


def aggregate_paths(folder: str) -> tuple[str, str]:
    """Return the paths of both files in the folder of an aggregate."""
    base = os.path.join(folder, "profile_export_aiperf_aggregate")
    return f"{base}.json", f"{base}.csv"


def write_aggregate(folder: str, cell: VariationFigures, settings: ExperimentSettings, version: str) -> None:
    json_path, csv_path = aggregate_paths(folder)
    document = {
        "schema_version": SCHEMA_VERSION,
        "aiperf_version": f"penstock-{version}",
        "metadata": _metadata(cell, settings),
        "metrics": cell.figures,
    }
    with replacing(csv_path) as file:
        file.write(_csv_text(cell, settings).encode())
    write_json(json_path, document)


def _metadata(cell: VariationFigures, settings: ExperimentSettings) -> dict[str, Any]:
    return {
        "aggregation_type": "confidence",
        "num_profile_runs": len(cell.runs),
        "num_successful_runs": len(cell.usable),
        "failed_runs": failed_runs(cell),
        "confidence_level": settings.confidence,
        "run_labels": [run.label for run in cell.usable],
        "cooldown_seconds": settings.run_pause_s,
        **_variation(cell, settings),
    }


def _variation(cell: VariationFigures, settings: ExperimentSettings) -> dict[str, Any]:
    if not cell.parameters:
        return {}
    return {"variation_label": cell.label, "variation_values": cell.parameters, "sweep_mode": settings.order}


def failed_runs(cell: VariationFigures) -> list[dict[str, Any]]:
    return [{"label": run.label, "error": run.error} for run in cell.failed]


def csv_cells(figure: Interval) -> list[str]:
    """Return a figure as cells, with AIPerf's numbers of digits."""
    cells = []
    for name in INTERVAL_FIELDS[:-1]:
        value = getattr(figure, name)
        if value is None:
            cells.append("inf" if name == "cv" and figure.std is not None else "")
        else:
            cells.append(f"{value:.4f}" if name in ("cv", "se", "t_critical") else f"{value:.2f}")
    return [*cells, figure.unit]


def _csv_text(cell: VariationFigures, settings: ExperimentSettings) -> str:
    text = io.StringIO(newline="")
    write = csv.writer(text, lineterminator="\n").writerow  # as AIPerf, whose other CSV files have CRLF
    write(("metric", *INTERVAL_FIELDS))
    for name, figure in cell.figures.items():
        write((name, *csv_cells(figure)))
    text.write("\n")
    write(("Aggregation Type", "confidence"))
    write(("Total Runs", len(cell.runs)))
    write(("Successful Runs", len(cell.usable)))
    write(("Confidence Level", settings.confidence))
    write(("Run Labels", [run.label for run in cell.usable]))
    write(("Cooldown Seconds", settings.run_pause_s))
    return text.getvalue()
