"""The ledger's record of one request, successful or not, with its upstream attempts."""

from __future__ import annotations

from typing import Literal

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
