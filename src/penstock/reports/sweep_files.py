"""Write `profile_export_aiperf_sweep.{json,csv}`: the figures of all points of a sweep, the best ones, and the Pareto front."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from typing import Any

from penstock.metrics.experiment import VariationFigures
from penstock.metrics.sweep import best_points, pareto_optimal, saturation
from penstock.reports.aggregate import INTERVAL_FIELDS, SCHEMA_VERSION, csv_cells, failed_runs
from penstock.reports.artifacts import replacing, write_json
from penstock.settings.schema import ExperimentSettings, Parameter


def sweep_paths(folder: str) -> tuple[str, str]:
    """Return the paths of both files in the folder of a sweep's figures."""
    base = os.path.join(folder, "profile_export_aiperf_sweep")
    return f"{base}.json", f"{base}.csv"


def write_sweep(
    folder: str, variations: Sequence[VariationFigures], settings: ExperimentSettings, version: str
) -> None:
    json_path, csv_path = sweep_paths(folder)
    document = {
        "schema_version": SCHEMA_VERSION,
        "aiperf_version": f"penstock-{version}",
        "metadata": _metadata(variations, settings),
        "per_combination_metrics": [
            {"parameters": each.parameters, "metrics": each.figures, "failed_runs": failed_runs(each)}
            for each in variations
        ],
        "best_configurations": {
            best.name: {
                "parameters": best.variation.parameters,
                "metric": best.variation.figures[best.figure].mean,
                "metric_name": best.figure,
                "unit": best.variation.figures[best.figure].unit,
            }
            for best in best_points(variations)
        },
        "pareto_optimal": [each.parameters for each in pareto_optimal(variations)],
        **_saturation(variations, settings),
    }
    with replacing(csv_path) as file:
        file.write(_csv_text(variations, settings).encode())
    write_json(json_path, document)


def _saturation(variations: Sequence[VariationFigures], settings: ExperimentSettings) -> dict[str, Any]:
    point = saturation(variations) if settings.sweep == "auto" else None
    return {} if point is None else {"saturation": point.parameters}


def _metadata(variations: Sequence[VariationFigures], settings: ExperimentSettings) -> dict[str, Any]:
    return {
        "aggregation_type": "sweep",
        "sweep_parameters": [
            {"name": name, "values": list(dict.fromkeys(each.parameters[name] for each in variations))}
            for name in settings.parameters
        ],
        "sweep_mode": settings.order,
        "num_combinations": len(variations),
        "num_trials_per_value": settings.runs,
        "num_profile_runs": sum(len(each.runs) for each in variations),
        "num_successful_runs": sum(len(each.usable) for each in variations),
        "confidence_level": settings.confidence,
    }


def _csv_text(variations: Sequence[VariationFigures], settings: ExperimentSettings) -> str:
    """Return one row for each figure of each point, then the best points and the Pareto front."""
    names = settings.parameters
    text = io.StringIO(newline="")
    write = csv.writer(text, lineterminator="\n").writerow
    write((*names, "metric", *INTERVAL_FIELDS))
    for each in variations:
        values = [_number(each.parameters[name]) for name in names]
        for figure, interval in each.figures.items():
            write((*values, figure, *csv_cells(interval)))
    text.write("\n")
    write(("Best Configurations",))
    write(("Configuration", *names, "Metric", "Value", "Unit"))
    for best in best_points(variations):
        value = best.variation.figures[best.figure]
        values = [_number(best.variation.parameters[name]) for name in names]
        write((best.name, *values, best.figure, f"{value.mean:.2f}", value.unit))
    text.write("\n")
    write(("Pareto Optimal Points",))
    write(names)
    for each in pareto_optimal(variations):
        write([_number(each.parameters[name]) for name in names])
    return text.getvalue()


def _number(value: Parameter) -> str:
    return value if isinstance(value, str) else f"{value:.15g}"
