"""The runs below a folder, with their headline figures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec

from penstock.errors import UserError
from penstock.records.header import RunHeader, decode_header
from penstock.records.log import LoggedPoint, RunLog
from penstock.reports.artifacts import Artifacts
from penstock.runs.point_folder import POINT_FILE, find_log
from penstock.runs.run_folder import LOG_FOLDER

MOST_FOLDERS = 8
"""How many folders lie between the folder that is searched and a run, at most."""
_SKIPPED = frozenset((LOG_FOLDER, "node_modules", "__pycache__"))
_ENVIRONMENT_FILE = "pyvenv.cfg"
"""Is in every virtual environment of Python."""


class ListedRun(msgspec.Struct, frozen=True):
    folder: str
    started_ns: int
    """Unix time of the epoch of the run."""
    model: str
    load: str
    complete: bool | None
    """None if the run has no summary, as after a crash."""
    verdict: str | None
    figures: dict[str, float]
    """By names such as `time_to_first_token_p99`."""


class _Summary(msgspec.Struct):
    is_complete: bool = True
    certificate: dict[str, Any] | None = None


_FIGURES = (
    ("request_count", "avg"),
    ("error_request_count", "avg"),
    ("request_throughput", "avg"),
    ("output_token_throughput", "avg"),
    ("time_to_first_token", "p50"),
    ("time_to_first_token", "p99"),
    ("inter_token_latency", "p50"),
    ("request_latency", "p50"),
    ("request_latency", "p99"),
)


def list_runs(folder: str) -> list[ListedRun]:
    """Return the runs in `folder` and below it, in the order of time. Folders that cannot be read as runs are left out.

    The search does not go into runs that it finds, nor into hidden folders, environments of Python and Node, or deeper than
    `MOST_FOLDERS`, so that a large folder does not take long."""
    return sorted(_runs(folder), key=lambda run: (run.started_ns, run.folder))


def _runs(folder: str) -> Iterator[ListedRun]:
    read_points = cache(RunLog.read_points)  # the points of an experiment share a log
    top = folder.rstrip(os.sep).count(os.sep)
    for path, folders, files in os.walk(folder):
        depth = path.rstrip(os.sep).count(os.sep) - top
        header = None
        if POINT_FILE in files or (
            LOG_FOLDER in folders and os.path.exists(os.path.join(path, LOG_FOLDER, "run.json"))
        ):
            with contextlib.suppress(UserError):
                header = _header(path, read_points)
        if header is not None:
            yield _read(path, header)
        if depth >= MOST_FOLDERS or (depth and header is not None) or _ENVIRONMENT_FILE in files:
            folders.clear()
        folders[:] = sorted(name for name in folders if not _is_skipped(name))


def _is_skipped(folder: str) -> bool:
    return folder in _SKIPPED or folder.startswith((".", f"{LOG_FOLDER}."))


def _header(folder: str, read_points: Callable[[str], list[LoggedPoint]]) -> RunHeader | None:
    """Return the header of the run or the point in a folder; None if it is an experiment."""
    found = find_log(folder, read_points)
    if found is None:
        return None
    log, number = found
    points = {point.index: point for point in read_points(log)}
    if number is None:
        return None if points else RunLog.read_header(log)
    return decode_header(points[number].header)


def _read(folder: str, header: RunHeader) -> ListedRun:
    document, summary = _summary(Artifacts.of(folder, header).summary_json)
    figures = {}
    for tag, statistic in _FIGURES:
        value = (document.get(tag) or {}).get(statistic)
        if value is not None:
            figures[f"{tag}_{statistic}"] = value
    certificate = None if summary is None else summary.certificate
    return ListedRun(
        folder,
        header.epoch_wall_ns,
        ", ".join(header.settings.models),
        _load(header),
        None if summary is None else summary.is_complete,
        None if certificate is None else certificate.get("verdict"),
        figures,
    )


def _summary(path: str) -> tuple[dict[str, Any], _Summary | None]:
    try:
        with open(path, "rb") as file:
            data = file.read()
        return msgspec.json.decode(data, type=dict[str, Any]), msgspec.json.decode(data, type=_Summary)
    except (OSError, msgspec.MsgspecError):
        return {}, None


def _load(header: RunHeader) -> str:
    load = header.settings.load
    if load.recorded is not None:
        return "recorded"
    if load.arrival_rate is not None:
        return f"{load.arrival_rate:g}/s"
    return f"c={header.concurrency or load.concurrency or 1}"
