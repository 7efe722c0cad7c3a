"""The ledger's record of one request, successful or not, with its upstream attempts; and its repair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec


class Attempt(msgspec.Struct, kw_only=True):
    """One attempt to call an upstream, or the reason why the target was skipped."""

    model: str
    """The direct model's alias."""
    upstream: str
    """The provider's name of the model."""
    provider_key: str
    kind: Literal["initial", "retry", "fallback", "resend"]
    """`resend` follows an attempt whose reused connection was lost before the upstream received the request."""
    status: int | None = None
    error: str | None = None
    """`upstream_status`, `upstream_failed` (an error inside a reply with a success status), `timeout`, `transport`,
    `decode`, `aborted`, or `over_limit` if the target was skipped because of its own limit. None for a success."""
    started_ms: float = 0.0
    """Milliseconds after the arrival of the request."""
    connect_ms: float = 0.0
    first_byte_ms: float | None = None
    ended_ms: float = 0.0
    upstream_request_id: str | None = None
    """The id that the upstream gave to the request, in `x-request-id` or `request-id`."""


class GuardrailHit(msgspec.Struct, kw_only=True):
    """Matches of one guardrail in a request or reply."""

    guardrail: str
    hook: Literal["input", "output"]
    action: Literal["blocked", "masked", "would_block", "would_mask", "timed_out"]
    count: int = 1


class Entry(msgspec.Struct, kw_only=True):
    """One request, as the ledger stores it."""

    request_id: str
    """Primary key of the ledger: inserting an entry twice changes nothing."""
    at: float
    """Unix time of arrival."""
    route: str
    api_key_id: str = ""
    api_key_name: str = ""
    team_id: str | None = None
    model: str = ""
    """The alias in the request, even if no such model is configured."""
    upstream_model: str = ""
    provider: str = ""
    stream: bool = False
    status: int = 0
    """The status sent to the caller; 499 if the caller disconnected before the end."""
    error: str | None = None
    """The type of the error; None for a success. `upstream_failed` if the reply itself reports an error, whatever its
    status."""
    blocked: bool = False
    limited_by: str | None = None
    """The layer whose limit refused the request: `api_key`, `model` or `policy`."""
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    usage_source: Literal["upstream", "estimated", "reserved", "none"] = "none"
    upstream_id: str | None = None
    """The id that the provider gave to the response."""
    finish: str | None = None
    """completed, incomplete, failed, a finish reason, or the reason why the stream was cut off."""
    bytes_in: int = 0
    bytes_out: int = 0
    events: int = 0
    ttft_ms: float | None = None
    """From the arrival of the request to the first body byte sent to the caller; None if none was sent."""
    phases_ms: dict[str, float] = {}
    """auth, receive, guardrail_in, quota, connect, upstream, backoff, guardrail_out, serialise, total."""
    attempts: list[Attempt] = []
    guardrails: list[GuardrailHit] = []
    client: str = ""
    worker: int = 0


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
