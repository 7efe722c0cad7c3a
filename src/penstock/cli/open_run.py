"""Opens the log of the run in a folder that the user names."""

from __future__ import annotations

import os
from glob import escape, glob

from penstock.errors import UserError
from penstock.records.log import RunLog
from penstock.runs.run_folder import LOG_FOLDER

__all__ = ["open_run"]

_MAX_LISTED = 20


def open_run(folder: str) -> RunLog:
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a folder." if os.path.exists(folder) else f"There is no folder {folder}.")
    log = os.path.join(folder, LOG_FOLDER)
    if os.path.exists(os.path.join(log, "run.json")):
        return RunLog(log)
    if runs := _runs_in(folder):
        more = [f"and {len(runs) - _MAX_LISTED} more"] if len(runs) > _MAX_LISTED else []
        listed = [f"{folder} is not the folder of a run, but contains these runs:", *runs[:_MAX_LISTED], *more]
        raise UserError("\n  ".join(listed))
    raise UserError(f"{folder} contains no run: {LOG_FOLDER}/run.json is missing.")


def _runs_in(folder: str) -> list[str]:
    headers = glob(os.path.join(escape(folder), "*", LOG_FOLDER, "run.json"))
    return sorted(os.path.dirname(os.path.dirname(path)) for path in headers)
