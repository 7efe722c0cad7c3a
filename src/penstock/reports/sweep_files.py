"""Write `profile_export_aiperf_sweep.{json,csv}`: the figures of all points of a sweep, the best ones, and the Pareto front."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.metrics.experiment import VariationFigures
from penstock.metrics.sweep import best_points, pareto_optimal, saturation
from penstock.reports.aggregate import SCHEMA_VERSION, failed_runs
from penstock.reports.artifacts import replacing, write_json
from penstock.settings.schema import ExperimentSettings, Parameter

_FIELDS = ("mean", "std", "min", "max", "cv")
"""The columns of each metric."""


def sweep_paths(folder: str) -> tuple[str, str]:
    """Return the paths of both files in the folder of a sweep's figures."""
    base = os.path.join(folder, "profile_export_aiperf_sweep")
    return f"{base}.json", f"{base}.csv"


def write_sweep(
    folder: str, variations: Sequence[VariationFigures], settings: ExperimentSettings, version: str
) -> None:
    json_path, csv_path = sweep_paths(folder)
    runs = [run for each in variations for run in each.runs]
    document = {
        "schema_version": SCHEMA_VERSION,
        "aiperf_version": f"penstock-{version}",
        "aggregation_type": "sweep",
        "num_profile_runs": len(runs),
        "num_successful_runs": sum(run.error is None for run in runs),
        "failed_runs": [failed for each in variations for failed in failed_runs(each)],
        "metadata": _metadata(variations, settings),
        "per_combination_metrics": [
            {
                "parameters": each.parameters,
                "metrics": {**_single_run(each), **each.figures},
                "failed_runs": failed_runs(each),
            }
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


def _single_run(each: VariationFigures) -> dict[str, dict[str, Any]]:
    """Return the metrics of a point that was run once, under the names that AIPerf gives them then."""
    if len(each.runs) > 1:
        return {}
    return {
        tag: {"mean": stats.avg, **msgspec.to_builtins(stats)}
        for run in each.usable
        for tag, stats in run.metrics.items()
    }


def _columns(each: VariationFigures) -> dict[str, dict[str, Any]]:
    """Return the figures of a point for the table, by AIPerf's names. A single run has no spread."""
    if len(each.runs) > 1:
        return {name: msgspec.to_builtins(interval) for name, interval in each.figures.items()}
    return {tag: {**stats, "std": None} for tag, stats in _single_run(each).items()}


def _csv_text(variations: Sequence[VariationFigures], settings: ExperimentSettings) -> str:
    """Return one row for each point, then the best points, the Pareto front and the counts of runs."""
    names = settings.parameters
    text = io.StringIO(newline="")
    write = csv.writer(text, lineterminator="\n").writerow
    points = [_columns(each) for each in variations]
    metrics = sorted({name for point in points for name in point})
    write((*names, *(f"{name}_{field}" for name in metrics for field in _FIELDS)))
    for each, point in zip(variations, points, strict=True):
        values = [_number(each.parameters[name]) for name in names]
        write((*values, *(_cell(point.get(name, {}).get(field), field) for name in metrics for field in _FIELDS)))
    text.write("\n")
    write(("Best Configurations",))
    write(("Configuration", *names, "Metric", "Unit"))
    for best in best_points(variations):
        value = best.variation.figures[best.figure]
        values = [_number(best.variation.parameters[name]) for name in names]
        write((best.name.replace("_", " ").title(), *values, f"{value.mean:.2f}", value.unit))
    text.write("\n")
    write(("Pareto Optimal Points",))
    write(names)
    for each in pareto_optimal(variations):
        write([_number(each.parameters[name]) for name in names])
    text.write("\n")
    write(("Metadata",))
    write(("Field", "Value"))
    write(("Aggregation Type", "sweep"))
    write(("Sweep Parameters", ", ".join(names)))
    write(("Number of Combinations", len(variations)))
    write(("Number of Profile Runs", sum(len(each.runs) for each in variations)))
    write(("Number of Successful Runs", sum(len(each.usable) for each in variations)))
    return text.getvalue()


def _cell(value: float | None, field: str) -> str:
    return "" if value is None else f"{value:.{4 if field == 'cv' else 2}f}"


def _number(value: Parameter) -> str:
    return value if isinstance(value, str) else f"{value:.15g}"
