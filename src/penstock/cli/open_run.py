"""The run that the user names by its folder."""

from __future__ import annotations

import os
from glob import escape, glob

from penstock.errors import UserError
from penstock.records.log import RunLog
from penstock.workers.run_folder import LOG_FOLDER

__all__ = ["open_run"]

_LISTED = 20


def open_run(folder: str) -> RunLog:
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a folder." if os.path.exists(folder) else f"There is no folder {folder}.")
    log = os.path.join(folder, LOG_FOLDER)
    if os.path.exists(os.path.join(log, "run.json")):
        return RunLog(log)
    if inside := _runs_in(folder):
        more = [f"and {len(inside) - _LISTED} more"] if len(inside) > _LISTED else []
        listed = [f"{folder} is not the folder of a run; it has these in it:", *inside[:_LISTED], *more]
        raise UserError("\n  ".join(listed))
    raise UserError(f"{folder} holds no run: there is no {LOG_FOLDER}/run.json in it.")


def _runs_in(folder: str) -> list[str]:
    found = glob(os.path.join(escape(folder), "*", LOG_FOLDER, "run.json"))
    return sorted(os.path.dirname(os.path.dirname(path)) for path in found)
