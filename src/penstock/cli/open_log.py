"""Opens the log of the run in a folder that the user names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from glob import escape, glob

from penstock.errors import UserError
from penstock.records.log import LoggedPoint, RunLog
from penstock.runs.point_folder import find_log
from penstock.runs.run_folder import LOG_FOLDER

_MAX_LISTED = 20


def open_log(folder: str) -> RunLog:
    """Open the log of a run, or of a point of an experiment."""
    if not os.path.isdir(folder):
        raise UserError(f"{folder} is not a folder." if os.path.exists(folder) else f"There is no folder {folder}.")
    found = find_log(folder)
    if found is not None:
        log, point = found
        points = [] if point is not None else RunLog.read_points(log)
        if points:
            raise _name_one(folder, "holds several runs; name one of them", [_path(folder, each) for each in points])
        return RunLog(log, point=point)
    if runs := _runs_in(folder):
        raise _name_one(folder, "is not the folder of a run, but contains these runs", runs)
    raise UserError(f"{folder} contains no run: {LOG_FOLDER}/run.json is missing.")


def is_experiment(folder: str) -> bool:
    """True if this is the folder of an experiment with several points."""
    return bool(RunLog.read_points(os.path.join(folder, LOG_FOLDER)))


def open_points(folder: str) -> Iterator[RunLog]:
    """Open the log of an experiment once for each of its points."""
    log = RunLog(os.path.join(folder, LOG_FOLDER))
    return (log.at_point(point.index) for point in log.points)


def _name_one(folder: str, what: str, runs: list[str]) -> UserError:
    more = [f"and {len(runs) - _MAX_LISTED} more"] if len(runs) > _MAX_LISTED else []
    return UserError("\n  ".join([f"{folder} {what}:", *runs[:_MAX_LISTED], *more]))


def _path(folder: str, point: LoggedPoint) -> str:
    return os.path.join(folder, point.folder)


def _runs_in(folder: str) -> list[str]:
    headers = glob(os.path.join(escape(folder), "*", LOG_FOLDER, "run.json"))
    return sorted(os.path.dirname(os.path.dirname(path)) for path in headers)
