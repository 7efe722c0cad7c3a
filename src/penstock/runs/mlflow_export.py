"""Logs the results of a run to MLflow (`--mlflow-tracking-uri`). An experiment is a run with a child for each of its points."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import RunError
from penstock.plural import counted
from penstock.reports.artifacts import write_json
from penstock.reports.sink_table import MLFLOW_FILE
from penstock.runs.exported_runs import ExportedRun, environment, first_line, read_runs, result_files
from penstock.secrets import REDACTED, redact_url
from penstock.settings.schema import ExportSettings, Settings

_PARENT = "mlflow.parentRunId"
_BATCH = 500
"""Metrics in a request; the API takes 1,000."""
_FIRST_CALL = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
_LATER_CALLS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""The client's own defaults are 120 s and 7 retries, which would keep a run waiting for a server that does not answer."""
_QUIET = {"MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""The client prints the URL of each run, which can contain a password, and reports its own use to its makers."""


def log_to_mlflow(settings: Settings) -> str:
    """Log parameters, metrics and files; return a sentence about it. Raise RunError if that fails."""
    exports, folder = settings.exports, settings.output.folder
    uri = str(exports.mlflow_uri)
    try:
        with environment(_QUIET):
            run = _log(exports, uri, folder)
    except Exception as error:  # the client and each of its stores have exceptions of their own
        reason = _without_credentials(first_line(error), uri)
        raise RunError(
            f"The results were not logged to MLflow at {redact_url(uri)}: {reason} They are in {folder}."
        ) from None
    return f"Logged {run} to MLflow at {redact_url(uri)}"


def _log(exports: ExportSettings, uri: str, folder: str) -> str:
    from mlflow import MlflowClient

    header, runs = read_runs(folder)
    client = MlflowClient(tracking_uri=uri)
    with environment(_FIRST_CALL):
        experiment = client.get_experiment_by_name(exports.mlflow_experiment)
        number = client.create_experiment(exports.mlflow_experiment) if experiment is None else experiment.experiment_id
    with environment(_LATER_CALLS):
        parent = {} if exports.mlflow_parent is None else {_PARENT: exports.mlflow_parent}
        tags = {"mlflow.source.name": "penstock", "benchmark_id": header.benchmark_id, **dict(exports.mlflow_tags)}
        name = exports.mlflow_run_name or os.path.basename(os.path.abspath(folder))
        top = client.create_run(number, tags=tags | parent, run_name=name).info.run_id
        ended = "FAILED"
        try:
            for run in runs:
                _log_run(client, number, run, top, tags)
            write_json(
                os.path.join(folder, MLFLOW_FILE),
                {
                    "tracking_uri": redact_url(uri),
                    "experiment_name": exports.mlflow_experiment,
                    "run_id": top,
                    "reused_live_run": False,
                },
            )
            files = result_files(folder, exports.mlflow_globs)
            for path in files:
                client.log_artifact(top, os.path.join(folder, path), os.path.dirname(path) or None)
            ended = next((run.status for run in runs if run.status != "FINISHED"), "FINISHED")
        finally:
            client.set_terminated(top, ended)
    return f"run {top} with {counted(len(files), 'file')}"


def _log_run(client: Any, experiment: str, run: ExportedRun, top: str, tags: Mapping[str, str]) -> None:
    """Log the figures of a run: to the run `top` if there is only this one, or else to a child of it."""
    from mlflow.entities import Metric, Param

    own = top
    if run.name:
        own = client.create_run(experiment, tags={**tags, _PARENT: top}, run_name=run.name).info.run_id
    client.log_batch(own, params=[Param(name, value) for name, value in run.parameters.items()])
    now = round(time.time() * 1000)
    metrics = [Metric(name, value, now, 0) for name, value in run.metrics.items()]
    for start in range(0, len(metrics), _BATCH):
        client.log_batch(own, metrics=metrics[start : start + _BATCH])
    if run.name:
        client.set_terminated(own, run.status)


def _without_credentials(text: str, uri: str) -> str:
    user = urlsplit(uri).netloc.rpartition("@")[0]
    text = text.replace(uri, redact_url(uri))
    for secret in (user, user.partition(":")[2]):
        if secret:
            text = text.replace(secret, REDACTED)
    return text
