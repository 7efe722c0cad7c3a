"""Which format a file is in, from its name and its first line."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec

from penstock.datasets.format import Format
from penstock.datasets.jsonl import Problems, explain, numbered_lines, open_failure
from penstock.datasets.registry import FORMATS, PLANNED, lookup, planned_name, what_is_read
from penstock.errors import UserError

__all__ = ["detect"]

_WHOLE_FILE_LIMIT = 64 * 1024 * 1024


def detect(path: str) -> Format:
    if os.path.isdir(path):
        raise UserError(f"The input '{path}' is a folder, and formats made of folders are not built yet; {_reads()}.")
    if path.lower().endswith((".parquet", ".arrow", ".ipc")):
        raise _not_built(path, "baseten_trace")
    problems = Problems(path)
    number, line = next(numbered_lines(path, problems), (0, b""))
    problems.raise_any()
    if not line:
        raise UserError(f"The input file '{path}' is empty; {_reads()}.")
    return _of_object(path, _first_object(path, number, line))


def _of_object(path: str, first: dict[str, Any]) -> Format:
    named = first.get("type")
    if isinstance(named, str):
        if planned := planned_name(named):
            raise _not_built(path, planned)
        try:
            return lookup(named)
        except UserError:
            pass  # a field of the user's own that happens to be called type
    for each in FORMATS:
        if each.matches(first):
            return each
    for name, looks_like_it in PLANNED.items():
        if looks_like_it(first):
            raise _not_built(path, name)
    fields = ", ".join(f"'{field}'" for field in list(first)[:8]) or "nothing"
    raise UserError(f"The format of '{path}' is not known: its first line has {fields}; {_reads()}.")


def _first_object(path: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        first = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if b"Request tokens" in line and b"," in line:
            raise _not_built(path, "burst_gpt_trace") from None
        first = _whole(path)
        if first is None:
            place = f"{os.path.basename(path)}:{number}"
            raise UserError(f"{place}: {explain(error, line)}; {_reads()}.") from None
    if not isinstance(first, dict):
        raise UserError(f"{os.path.basename(path)}:{number}: the line should be an object; {_reads()}.")
    return first


def _whole(path: str) -> dict[str, Any] | None:
    """The object that a file of several lines is as a whole, if it is one."""
    try:
        if os.path.getsize(path) > _WHOLE_FILE_LIMIT:
            return None
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except OSError as error:
        raise open_failure(path, error) from None
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and not any(looks_like_it(value) for looks_like_it in PLANNED.values()):
        raise UserError(f"'{path}' is one JSON object over several lines; {_reads()}.")
    return value if isinstance(value, dict) else None


def _not_built(path: str, name: str) -> UserError:
    return UserError(f"'{path}' looks like {name}, a format that is not built yet; {_reads()}.")


def _reads() -> str:
    return what_is_read()
