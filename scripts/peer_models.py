"""Load artifact files with AIPerf's own models, and print a JSON array with an error, or null, for each file.

`peer-check.py` runs this with the Python of a virtual environment in which AIPerf is installed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from aiperf.common.models.dataset_models import InputsFile  # type: ignore[import-not-found]
from aiperf.common.models.export_models import JsonExportData  # type: ignore[import-not-found]
from aiperf.common.models.record_models import MetricRecordInfo, RawRecordInfo  # type: ignore[import-not-found]
from aiperf.common.models.server_metrics_models import (  # type: ignore[import-not-found]
    ServerMetricsExportData,
    SlimRecord,
)
from aiperf.common.models.telemetry_models import TelemetryRecord  # type: ignore[import-not-found]

MODELS = {
    "profile_export_aiperf.json": JsonExportData,
    "profile_export.jsonl": MetricRecordInfo,
    "profile_export_raw.jsonl": RawRecordInfo,
    "inputs.json": InputsFile,
    "server_metrics_export.json": ServerMetricsExportData,
    "server_metrics_export.jsonl": SlimRecord,
    "gpu_telemetry_export.jsonl": TelemetryRecord,
}


def error_of(path: str, model: Any) -> str | None:
    with open(path, "rb") as file:
        documents = file.read().splitlines() if path.endswith(".jsonl") else [file.read()]
    try:
        for document in documents:
            model.model_validate_json(document)
    except ValueError as error:
        return str(error)
    return None


print(json.dumps([error_of(path, MODELS[os.path.basename(path)]) for path in sys.argv[1:]]))
