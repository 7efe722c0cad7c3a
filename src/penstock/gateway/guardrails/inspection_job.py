"""Inspections that a process for large bodies runs (see `body_process`)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.gateway.guardrails import Guards
from penstock.gateway.guardrails.inspection import Inspection
from penstock.gateway.guardrails.json_input import DuplicateKeyError
from penstock.gateway.guardrails.offload import Guardrails, InspectionResult
from penstock.gateway.guardrails.search_budget import SearchBudgets

__all__ = ["inspect_reply", "inspect_request"]

_MAX_CACHED = 16
_compiled: dict[bytes, tuple[Guards, float]] = {}
"""Guardrails and their time in seconds, by the message that they were compiled from."""


def inspect_request(guardrails: bytes, body: bytes) -> tuple[bytes, bytes]:
    guards, seconds = _guards(guardrails)
    return _inspect(guards.inspect_request, body, seconds)


def inspect_reply(guardrails: bytes, body: bytes) -> tuple[bytes, bytes]:
    guards, seconds = _guards(guardrails)
    return _inspect(guards.inspect_reply, body, seconds)


def _guards(message: bytes) -> tuple[Guards, float]:
    if message not in _compiled:
        if len(_compiled) >= _MAX_CACHED:
            _compiled.clear()
        source = msgspec.msgpack.decode(message, type=Guardrails)
        _compiled[message] = Guards(source.specs, source.mode), source.mode.max_inspection_ms / 1000
    return _compiled[message]


def _inspect(inspect: Callable[[bytes, SearchBudgets], Inspection], body: bytes, seconds: float) -> tuple[bytes, bytes]:
    changed = b""
    try:
        inspection = inspect(body, SearchBudgets(seconds))
    except DuplicateKeyError:
        result = InspectionResult(error="duplicate_key")
    except ValueError:
        result = InspectionResult(error="invalid")
    else:
        result = InspectionResult(inspection.hits, inspection.blocked_by, inspection.timed_out)
        changed = b"" if inspection.body is body else inspection.body
    return msgspec.msgpack.encode(result), changed
