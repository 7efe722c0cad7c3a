"""The runs below a folder, with their headline figures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.errors import UserError
from penstock.records.header import RunHeader
from penstock.records.log import RunLog
from penstock.reports.artifacts import Artifacts
from penstock.runs.point_folder import POINT_FILE, find_log
from penstock.runs.run_folder import LOG_FOLDER

__all__ = ["ListedRun", "list_runs"]


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
    """Return the runs in `folder` and below it, in the order of time. Folders that cannot be read as runs are left out."""
    return sorted(_runs(folder), key=lambda run: (run.started_ns, run.folder))


def _runs(folder: str) -> Iterator[ListedRun]:
    for path, folders, files in os.walk(folder):
        is_run = LOG_FOLDER in folders and os.path.exists(os.path.join(path, LOG_FOLDER, "run.json"))
        folders[:] = sorted(set(folders) - {LOG_FOLDER, f"{LOG_FOLDER}.old", f"{LOG_FOLDER}.gone"})
        if is_run or POINT_FILE in files:
            try:
                found = find_log(path)
                if found is not None and not (found[1] is None and RunLog.read_points(found[0])):
                    yield _read(path, *found)
            except UserError:
                continue


def _read(folder: str, log: str, point: int | None) -> ListedRun:
    if point is None:
        header = RunLog.read_header(log)
    else:
        opened = RunLog(log, point=point)
        header = opened.header
        opened.close()
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
