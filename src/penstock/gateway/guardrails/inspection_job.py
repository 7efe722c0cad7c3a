"""Inspections that a process for large bodies runs (see `body_process`)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.gateway.dialects.base import Dialect
from penstock.gateway.guardrails import ContentPolicy
from penstock.gateway.guardrails.inspection import Inspection
from penstock.gateway.guardrails.json_input import DuplicateKeyError
from penstock.gateway.guardrails.offload import ContentPolicySource, InspectionResult
from penstock.gateway.guardrails.search_budget import SearchBudgets
from penstock.gateway.routes import BY_NAME

__all__ = ["inspect_reply", "inspect_request"]

_MAX_CACHED = 16
_compiled: dict[bytes, ContentPolicy] = {}
"""Guardrails by the message that they were compiled from."""


def inspect_request(settings: bytes, body: bytes) -> tuple[bytes, bytes]:
    dialect, policy, seconds = _read_settings(settings)
    return _inspect(lambda budgets: policy.inspect_request(dialect, body, budgets), body, seconds)


def inspect_reply(settings: bytes, body: bytes) -> tuple[bytes, bytes]:
    dialect, policy, seconds = _read_settings(settings)
    return _inspect(lambda budgets: policy.inspect_reply(dialect, body, budgets), body, seconds)


def _read_settings(settings: bytes) -> tuple[Dialect, ContentPolicy, float]:
    name, source = msgspec.msgpack.decode(settings, type=tuple[str, ContentPolicySource])
    message = msgspec.msgpack.encode(source)
    if message not in _compiled:
        if len(_compiled) >= _MAX_CACHED:
            _compiled.clear()
        _compiled[message] = ContentPolicy(source.specs, source.mode)
    return BY_NAME[name], _compiled[message], source.mode.max_inspection_ms / 1000


def _inspect(inspect: Callable[[SearchBudgets], Inspection], body: bytes, seconds: float) -> tuple[bytes, bytes]:
    changed = b""
    try:
        inspection = inspect(SearchBudgets(seconds))
    except DuplicateKeyError:
        result = InspectionResult(error="duplicate_key")
    except ValueError:
        result = InspectionResult(error="invalid")
    else:
        result = InspectionResult(inspection.hits, inspection.blocked_by, inspection.timed_out)
        changed = b"" if inspection.body is body else inspection.body
    return msgspec.msgpack.encode(result), changed
