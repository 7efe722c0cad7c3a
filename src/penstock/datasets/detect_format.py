"""Detects the format of a file from its first line, or from the file if the format is not one object per line."""

from __future__ import annotations

import json
import os
from typing import Any

from penstock.datasets.format import Format
from penstock.datasets.formats import formats, is_known, lookup, supported_formats
from penstock.datasets.jsonl import FileErrors, empty_file, explain, jsonl_files, open_failure, read_lines
from penstock.errors import UserError

_WHOLE_FILE_LIMIT = 64 * 1024 * 1024


def detect(path: str, *, scheduled: bool = False) -> Format:
    """Return the format of a file or folder. `scheduled` is True if the run replays recorded times."""
    if os.path.isdir(path):
        return _folder_format(path)
    for format_ in formats():
        if format_.matches_file is not None and format_.matches_file(path):
            return format_
    return _match(path, _first_object(path), scheduled)


def _folder_format(path: str) -> Format:
    """Detect the format from the first line of the first .jsonl file."""
    first = jsonl_files(path)[0]
    format_ = _match(first, _first_object(first), scheduled=False)
    if not format_.reads_folders:
        others = " or ".join(each.name for each in formats() if each.reads_folders)
        raise UserError(
            f"The folder '{path}' cannot be read: {os.path.basename(first)} in it looks like {format_.name}, and only {others} "
            "may be a folder; name its format with --custom-dataset-type."
        )
    return format_


def _match(path: str, first: dict[str, Any], scheduled: bool) -> Format:
    name = first.get("type")
    if isinstance(name, str) and is_known(name):
        return lookup(name)
    for format_ in formats() if scheduled else ():
        if format_.matches_scheduled is not None and format_.matches_scheduled(first):
            return format_
    for format_ in formats():
        if format_.matches(first):
            return format_
    fields = ", ".join(f"'{field}'" for field in list(first)[:8]) or "nothing"
    raise UserError(f"The format of '{path}' is not known: its first line has {fields}. {supported_formats()}")


def _first_object(path: str) -> dict[str, Any]:
    errors = FileErrors(path)
    number, _, line = next(read_lines(path, errors), (0, 0, b""))
    errors.raise_any()
    if not line:
        raise empty_file(path)
    try:
        first = json.loads(line, parse_int=float)  # int() refuses more than 4,300 digits
    except (ValueError, RecursionError) as error:
        _refuse_whole_object(path)
        place = f"{os.path.basename(path)}:{number}"
        raise UserError(f"{place}: {explain(error, line)}. {supported_formats()}") from None
    if not isinstance(first, dict):
        raise UserError(f"{os.path.basename(path)}:{number}: the line should be an object. {supported_formats()}")
    return first


def _refuse_whole_object(path: str) -> None:
    """Raise an error if the file is one JSON object over several lines."""
    try:
        if os.path.getsize(path) > _WHOLE_FILE_LIMIT:
            return
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except OSError as error:
        raise open_failure(path, error) from None
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        raise UserError(f"'{path}' is one JSON object over several lines. {supported_formats()}")
