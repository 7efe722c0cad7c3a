"""One line of the ledger: one request, whatever became of it, with its attempts inside."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Attempt", "Entry", "GuardrailHit"]


class Attempt(msgspec.Struct, kw_only=True):
    """One call of an upstream, or why there was none."""

    model: str
    """The direct model's alias."""
    upstream: str
    """What the provider calls it."""
    provider_key: str
    kind: Literal["initial", "retry", "fallback"]
    status: int | None = None
    error: str | None = None
    """`upstream_status`, `upstream_failed` (in a reply with the status of a success), `timeout`, `transport`, `decode`,
    `aborted`; `over_limit` when the target was passed over because of its own limit; None when it succeeded."""
    started_ms: float = 0.0
    """After the request's arrival."""
    connect_ms: float = 0.0
    first_byte_ms: float | None = None
    ended_ms: float = 0.0


class GuardrailHit(msgspec.Struct, kw_only=True):
    guardrail: str
    hook: Literal["input", "output"]
    action: Literal["blocked", "masked", "would_block", "would_mask", "timed_out"]
    count: int = 1


class Entry(msgspec.Struct, kw_only=True):
    request_id: str
    """Key of the ledger: writing an entry twice changes nothing."""
    at: float
    """Unix time of arrival."""
    route: str
    api_key_id: str = ""
    api_key_name: str = ""
    team_id: str | None = None
    model: str = ""
    """The alias that was asked for, whether or not there is such a model."""
    upstream_model: str = ""
    provider: str = ""
    stream: bool = False
    status: int = 0
    """What the caller got, 499 when it was gone before the end."""
    error: str | None = None
    """The error's type; None for a success. `upstream_failed` where the caller got a reply that says so itself, with
    whatever status it came."""
    blocked: bool = False
    limited_by: str | None = None
    """The layer whose limit refused the request: `api_key`, `model` or `policy`."""
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    usage_source: Literal["upstream", "estimated", "none"] = "none"
    upstream_id: str | None = None
    """The provider's id of the response."""
    finish: str | None = None
    """completed, incomplete, failed, a finish reason, or how the stream was cut."""
    bytes_in: int = 0
    bytes_out: int = 0
    events: int = 0
    ttft_ms: float | None = None
    """From the arrival of the request to the first byte of the body that was sent to the caller; None when none was."""
    phases_ms: dict[str, float] = {}
    """auth, receive, guardrail_in, quota, connect, upstream, guardrail_out, serialise, total."""
    attempts: list[Attempt] = []
    guardrails: list[GuardrailHit] = []
    client: str = ""
    worker: int = 0
