"""Logs the results of a run to Weights & Biases (`--wandb-project`): parameters, a table of the metrics, and the files.

`WANDB_MODE=offline` writes the run into the artifact folder, from where `wandb sync` uploads it.
"""

from __future__ import annotations

import os
from typing import Any

from penstock.errors import RunError
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.metric import label
from penstock.plural import counted
from penstock.records.header import RunHeader
from penstock.runs.exported_runs import ExportedRun, environment, first_line, read_runs, result_files
from penstock.settings.schema import Settings

_TIMEOUT_S = 5.0
_STATISTICS = ("avg", "min", "max", "p99", "p90", "p50", "std")
_NOT_SENT: dict[str, Any] = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""Settings that keep the client from printing, from asking for an API key, and from sending the command line with its
credentials, the code, and loads of this machine."""


def log_to_wandb(settings: Settings) -> str:
    """Log the results; return a sentence about it. Raise RunError if that fails."""
    folder = settings.output.folder
    try:
        with environment({"WANDB_ERROR_REPORTING": "false"}):
            return _log(settings, folder)
    except Exception as error:  # the client has exceptions of its own, and shows those of its service
        raise RunError(f"The results were not logged to W&B: {first_line(error)} They are in {folder}.") from None


def _log(settings: Settings, folder: str) -> str:
    import wandb

    exports = settings.exports
    header, runs = read_runs(folder)
    run = wandb.init(
        project=exports.wandb_project,
        entity=exports.wandb_entity,
        name=exports.wandb_run_name or os.path.basename(os.path.abspath(folder)),
        tags=[*exports.wandb_tags, f"benchmark-{header.benchmark_id}"],
        config=_config(runs),
        dir=os.path.abspath(folder),
        reinit="create_new",
        settings=wandb.Settings(init_timeout=_TIMEOUT_S, **_NOT_SENT),
    )
    files = result_files(folder)
    is_good = False
    try:
        for each in runs:
            run.log({**each.swept, **each.metrics})
        run.log({"summary_metrics": wandb.Table(columns=["Run", "Metric", *_STATISTICS], data=_rows(runs))})
        run.log_artifact(_artifact(wandb, header, folder, files))
        is_good = all(each.status == "FINISHED" for each in runs)
    finally:
        run.finish(exit_code=0 if is_good else 1)
    if run.offline:
        path = os.path.relpath(os.path.dirname(run.dir))
        return f"Wrote the W&B run with {counted(len(files), 'file')}; `wandb sync {path}` uploads it"
    return f"Logged {counted(len(files), 'file')} to W&B at {run.url}"


def _config(runs: list[ExportedRun]) -> dict[str, str]:
    """Return the parameters that all runs share."""
    first, *others = [set(run.parameters.items()) for run in runs] or [set()]
    return dict(sorted(first.intersection(*others)))


def _rows(runs: list[ExportedRun]) -> list[list[Any]]:
    return [
        [run.name, label(CATALOGUE[tag]), *map(statistics.get, _STATISTICS)]
        for run in runs
        for tag, statistics in run.figures.items()
    ]


def _artifact(wandb: Any, header: RunHeader, folder: str, files: list[str]) -> Any:
    artifact = wandb.Artifact(f"penstock-{header.benchmark_id}", type="benchmark")
    for path in files:
        # Without a copy in the cache of the client, which would double the space of large files.
        artifact.add_file(os.path.abspath(os.path.join(folder, path)), path, skip_cache=True, policy="immutable")
    return artifact
