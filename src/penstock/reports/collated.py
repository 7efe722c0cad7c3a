"""Write `profile_export_aiperf_collated.json`: the values of all requests of repeated runs, as one sample of each metric."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from penstock.metrics.experiment import VariationFigures
from penstock.reports.aggregate import SCHEMA_VERSION, failed_runs
from penstock.reports.artifacts import write_json
from penstock.settings.schema import ExperimentSettings


class _Metadata(msgspec.Struct):
    benchmark_phase: str


class _Value(msgspec.Struct):
    value: Any


class _Record(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Value] = {}
    error: Any = None


def collated_path(folder: str) -> str:
    """Return the path of the file in the folder of an aggregate."""
    return os.path.join(folder, "profile_export_aiperf_collated.json")


def write_collated(
    folder: str, cell: VariationFigures, records: Mapping[str, str], settings: ExperimentSettings, version: str
) -> None:
    """`records` are the paths of the records of the usable runs, by the label of the run."""
    runs: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for label, path in records.items():
        for metric, values in _read(path).items():
            runs.setdefault(metric, {})[label] = np.array(values)
    document = {
        "schema_version": f"{SCHEMA_VERSION}.0",
        "aiperf_version": f"penstock-{version}",
        "description": "The values of the successful requests of all usable runs, taken together.",
        "metadata": {
            "aggregation_type": "detailed",
            "num_profile_runs": len(cell.runs),
            "num_successful_runs": len(cell.usable),
            "failed_runs": failed_runs(cell),
            "run_labels": [run.label for run in cell.usable],
            "cooldown_seconds": settings.run_pause_s,
        },
        "metrics": {
            metric: {
                "combined": _combined(np.concatenate(list(by_run.values()))),
                "per_run": [
                    {"label": label, "mean": float(values.mean()), "count": len(values)}
                    for label, values in by_run.items()
                ],
            }
            for metric, by_run in runs.items()
        },
    }
    write_json(collated_path(folder), document)


def _read(path: str) -> dict[str, array[float]]:
    """Return the values of each metric in the records of a run's successful requests."""
    decoder = msgspec.json.Decoder(_Record)
    found: dict[str, array[float]] = {}
    with open(path, "rb") as file:
        for line in file:
            record = decoder.decode(line)
            if record.metadata.benchmark_phase == "profiling" and record.error is None:
                for metric, each in record.metrics.items():
                    if isinstance(each.value, int | float):
                        found.setdefault(metric, array("d")).append(each.value)
    return found


def _combined(values: np.ndarray[Any, Any]) -> dict[str, float]:
    percentiles = {f"p{p}": float(np.percentile(values, p)) for p in (50, 90, 95, 99)}
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "std": spread, **percentiles, "count": len(values)}
