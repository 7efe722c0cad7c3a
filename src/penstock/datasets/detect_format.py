"""Which format a file is in, from its name and its first line.

A line with a list `messages` is a request body of `raw_payload`, unless the run follows recorded times and the line has one.
"""

from __future__ import annotations

import json
import os
from typing import Any

from penstock.datasets import inputs_json, raw_payload, trace
from penstock.datasets.format import Format
from penstock.datasets.jsonl import Problems, empty_file, explain, numbered_lines, open_failure
from penstock.datasets.registry import FORMATS, is_known, lookup, what_is_read
from penstock.errors import UserError

__all__ = ["detect"]

_WHOLE_FILE_LIMIT = 64 * 1024 * 1024


def detect(path: str, *, scheduled: bool = False) -> Format:
    """`scheduled`: the run sends at recorded times."""
    if os.path.isdir(path):
        return _of_folder(path)
    if inputs_json.is_inputs_json(path):
        return inputs_json.FORMAT
    return _of_object(path, _first_object(path, *_first_line(path)), scheduled)


def _first_line(path: str) -> tuple[int, bytes]:
    problems = Problems(path)
    number, line = next(numbered_lines(path, problems), (0, b""))
    problems.raise_any()
    if not line:
        raise empty_file(path)
    return number, line


def _of_folder(path: str) -> Format:
    """By the first line of its first .jsonl file."""
    first = raw_payload.payload_files(path)[0]
    found = _of_object(first, _first_object(first, *_first_line(first)), scheduled=False)
    if found is not raw_payload.FORMAT:
        raise UserError(
            f"The folder '{path}' is not known: {os.path.basename(first)} in it looks like {found.name}, and of folders "
            f"this version reads raw_payload ({raw_payload.FORMAT.needs})."
        )
    return found


def _of_object(path: str, first: dict[str, Any], scheduled: bool) -> Format:
    named = first.get("type")
    if isinstance(named, str) and is_known(named):
        return lookup(named)
    if scheduled and "timestamp" in first and isinstance(first.get("messages"), list):
        return trace.FORMAT
    for each in FORMATS:
        if each.matches(first):
            return each
    fields = ", ".join(f"'{field}'" for field in list(first)[:8]) or "nothing"
    raise UserError(f"The format of '{path}' is not known: its first line has {fields}. {what_is_read()}")


def _first_object(path: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        first = json.loads(line, parse_int=float)  # int() refuses more than 4,300 digits
    except (ValueError, RecursionError) as error:
        _refuse_whole_object(path)
        place = f"{os.path.basename(path)}:{number}"
        raise UserError(f"{place}: {explain(error, line)}. {what_is_read()}") from None
    if not isinstance(first, dict):
        raise UserError(f"{os.path.basename(path)}:{number}: the line should be an object. {what_is_read()}")
    return first


def _refuse_whole_object(path: str) -> None:
    """Raise an error of its own if the file is one JSON object over several lines."""
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
        raise UserError(f"'{path}' is one JSON object over several lines. {what_is_read()}")
