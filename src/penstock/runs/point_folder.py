"""The folder of a point: its artifacts, and a small file that names the shared log and the point in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from penstock.errors import UserError
from penstock.records.header import decode_header
from penstock.records.log import LoggedPoint, RunLog
from penstock.reports.artifacts import Artifacts, replacing
from penstock.runs.run_folder import LOG_FOLDER

POINT_FILE = "point.json"


class PointReference(msgspec.Struct, frozen=True):
    log: str
    """Folder of the log, relative to that of the point."""
    point: int
    benchmark_id: str
    """Id of the point's run, which shows whether a later run has replaced the log."""


def write_reference(folder: str, point: LoggedPoint) -> None:
    """Write the reference of a point of the experiment in `folder`."""
    path = os.path.join(folder, point.folder)
    log = os.path.relpath(os.path.join(folder, LOG_FOLDER), path)
    reference = PointReference(log, point.index, decode_header(point.header).benchmark_id)
    with replacing(os.path.join(path, POINT_FILE)) as file:
        file.write(msgspec.json.format(msgspec.json.encode(reference), indent=2) + b"\n")


def read_reference(folder: str) -> PointReference | None:
    """Return the reference in a folder; None if it is not that of a point."""
    path = os.path.join(folder, POINT_FILE)
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=PointReference)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise UserError(f"{path} does not name the log of a point: {error}.") from None


def find_log(
    folder: str, read_points: Callable[[str], list[LoggedPoint]] = RunLog.read_points
) -> tuple[str, int | None] | None:
    """Return the folder of the log of a run or point, and the number of the point; None if there is no log."""
    log = os.path.join(folder, LOG_FOLDER)
    if os.path.exists(os.path.join(log, "run.json")):
        return log, None
    reference = read_reference(folder)
    if reference is None:
        return None
    log = os.path.normpath(os.path.join(folder, reference.log))
    points = {point.index: point for point in read_points(log)}
    point = points.get(reference.point)
    if point is None or decode_header(point.header).benchmark_id != reference.benchmark_id:
        raise UserError(f"The log of {folder} is gone: a later run replaced {log}.")
    return log, point.index


def artifacts_of_points(folder: str, points: Sequence[LoggedPoint]) -> list[str]:
    """Return the paths of all files that the points of the experiment in `folder` may have written."""
    paths = []
    for point in points:
        path = os.path.join(folder, point.folder)
        paths += [*Artifacts.of(path, decode_header(point.header)).every, os.path.join(path, POINT_FILE)]
    return paths
