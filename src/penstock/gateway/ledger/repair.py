"""An entry that cannot be written as it is: what is wrong in it is replaced, so that the request is still counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.gateway.ledger.entry import Entry

__all__ = ["repair", "repaired"]

_LIMIT = 2**63 - 1
_FIELDS = {field.name: field for field in msgspec.structs.fields(Entry)}


def repaired(entry: Entry) -> Entry:
    """Text without NUL and lone surrogates, numbers that fit 64 bits, and the field's default where nothing helps."""
    return repair(msgspec.structs.asdict(entry))


def repair(fields: Mapping[str, Any]) -> Entry:
    """Raises ValueError when there is no request id or time in it: then it is no entry."""
    good: dict[str, Any] = {}
    for name, value in fields.items():
        if (field := _FIELDS.get(name)) is None:
            continue
        try:
            good[name] = msgspec.convert(_clean(value), field.type, strict=False)
        except msgspec.ValidationError:
            if field.required and name != "route":
                raise ValueError(f"its {name} is not readable") from None
    if not good.get("request_id") or "at" not in good:
        raise ValueError("it has no request_id or no time")
    good.setdefault("route", "unknown")
    return Entry(**good)


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
