"""The results of a run as tracking servers take them: parameters, metrics and files."""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase
from typing import Any, NamedTuple

import orjson

from penstock.metrics.catalogue import CATALOGUE
from penstock.records.header import RunHeader, decode_header
from penstock.records.log import RunLog
from penstock.reports.artifacts import DRAFT_SUFFIX, Artifacts
from penstock.reports.settings_rows import setting_rows
from penstock.runs.run_folder import LOG_FOLDER

WANDB_FOLDER = "wandb"
"""Folder of the W&B client, within the artifact folder."""
_LEFT_OUT = ("exports.", "output.")
_ALWAYS = ("models", "endpoint.type")
_MOST_CHARACTERS = 300


class ExportedRun(NamedTuple):
    """A single run, a point of an experiment, or one server of a comparison."""

    name: str
    """Empty for a single run."""
    parameters: dict[str, str]
    """Settings that are not the default, without credentials."""
    swept: dict[str, int | float | str]
    """The values of a sweep, by the names of the parameters."""
    figures: dict[str, dict[str, float]]
    """For each metric, its statistics; metrics of the whole run have only `avg`."""
    status: str
    """FINISHED, KILLED (interrupted) or FAILED (incomplete), as MLflow calls them."""

    @property
    def metrics(self) -> dict[str, float]:
        """All numbers: `request_throughput`, `time_to_first_token.p99`."""
        return {
            tag if len(statistics) == 1 else f"{tag}.{name}": value
            for tag, statistics in self.figures.items()
            for name, value in statistics.items()
        }


def read_runs(folder: str) -> tuple[RunHeader, list[ExportedRun]]:
    """Return the header of the log in an artifact folder, and the runs that have a report."""
    log = os.path.join(folder, LOG_FOLDER)
    header = RunLog.read_header(log)
    if points := RunLog.read_points(log):
        headers = [(point.folder, decode_header(point.header), point.parameters) for point in points]
    elif header.servers > 1:
        headers = [(letter, header, {}) for letter in ascii_lowercase[: header.servers]]
    else:
        headers = [("", header, {})]
    found = [_read_run(folder, *each) for each in headers]
    return header, [run for run in found if run is not None]


def _read_run(
    folder: str, name: str, header: RunHeader, parameters: dict[str, int | float | str]
) -> ExportedRun | None:
    try:
        with open(Artifacts.of(os.path.join(folder, name), header).summary_json, "rb") as file:
            summary: dict[str, Any] = orjson.loads(file.read())
    except FileNotFoundError:
        return None
    figures = {
        tag: {key: float(number) for key, number in value.items() if isinstance(number, int | float)}
        for tag, value in summary.items()
        if tag in CATALOGUE and isinstance(value, dict)
    }
    status = "KILLED" if summary.get("was_cancelled") else "FINISHED" if summary.get("is_complete", True) else "FAILED"
    swept = {key: f"{value:g}" for key, value in parameters.items()}
    return ExportedRun(name, _parameters(header) | swept, parameters, figures, status)


def _parameters(header: RunHeader) -> dict[str, str]:
    rows = setting_rows(header.settings)
    changed = {
        row.name: row.value
        for row in rows
        if (row.changed or row.name in _ALWAYS) and not row.name.startswith(_LEFT_OUT)
    }
    return changed | {"command": header.settings.command, "benchmark_id": header.benchmark_id}


def result_files(folder: str, patterns: Sequence[str] = ()) -> list[str]:
    """Return the paths of the results in a folder, relative to it: all but the log, or those that match a pattern."""
    found = []
    for parent, folders, names in os.walk(folder):
        if parent == folder:
            folders[:] = [name for name in folders if name != WANDB_FOLDER and name.partition(".")[0] != LOG_FOLDER]
        found += [os.path.relpath(os.path.join(parent, name), folder) for name in names]
    return sorted(
        path
        for path in found
        if not path.endswith(DRAFT_SUFFIX)
        and (not patterns or any(fnmatch.fnmatch(path, pattern) for pattern in patterns))
    )


def first_line(error: Exception) -> str:
    """Return the type and the first line of an exception's text, as a sentence."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return f"{text.rstrip('.')}." if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set the environment variables that the user has not set, in the body."""
    own = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)
