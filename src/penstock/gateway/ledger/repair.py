"""Repair of entries that cannot be stored: invalid values are replaced so that the request is still counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.gateway.ledger.entry import Entry

_LIMIT = 2**63 - 1
_FIELDS = {field.name: field for field in msgspec.structs.fields(Entry)}


def repair_entry(entry: Entry) -> Entry:
    """Return the entry with valid text (no NUL, no lone surrogates), 64-bit numbers, and defaults for other values."""
    return repair_fields(msgspec.structs.asdict(entry))


def repair_fields(fields: Mapping[str, Any]) -> Entry:
    """Build an entry from decoded fields. Raise ValueError if the request id or the time is missing or invalid."""
    valid: dict[str, Any] = {}
    for name, value in fields.items():
        if (field := _FIELDS.get(name)) is None:
            continue
        try:
            valid[name] = msgspec.convert(_clean(value), field.type, strict=False)
        except msgspec.ValidationError:
            if field.required and name != "route":
                raise ValueError(f"invalid {name}") from None
    if not valid.get("request_id") or "at" not in valid:
        raise ValueError("request_id or time is missing")
    valid.setdefault("route", "unknown")
    return Entry(**valid)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode().replace("\0", "�")
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return max(-_LIMIT, min(value, _LIMIT))
    if isinstance(value, msgspec.Struct):
        return _clean(msgspec.structs.asdict(value))
    if isinstance(value, Mapping):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value if isinstance(value, float) and math.isfinite(value) else None
