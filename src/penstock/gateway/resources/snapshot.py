"""What the gateway serves, as an immutable snapshot: one is read at the start of a request and kept to its end.

The YAML form is read and checked in `resources.file`; nothing here knows about files.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.secrets import Secret

__all__ = [
    "CallerKey",
    "Cooldown",
    "GuardrailSpec",
    "Model",
    "Pattern",
    "Policy",
    "ProviderKey",
    "RateLimit",
    "Routing",
    "Snapshot",
]


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Requests per second, minute, hour, day; tokens per minute, day; concurrent requests. None is unlimited."""

    rps: int | None = None
    rpm: int | None = None
    rph: int | None = None
    rpd: int | None = None
    tpm: int | None = None
    tpd: int | None = None
    concurrency: int | None = None


class ProviderKey(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    secret: Secret
    api_base: str | None = None
    provider: str = ""
    adapter: str = "openai"
    default_headers: tuple[tuple[str, Secret], ...] = ()
    """Any header may carry a credential, so every value is a secret."""
    default_body_fields: dict[str, Any] = {}
    param_renames: dict[str, str] = {}
    verify_tls: bool = True


class Cooldown(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    default_seconds: int = 30
    max_seconds: int = 600
    honor_retry_after: bool = True
    statuses: frozenset[int] = frozenset({401, 408, 429, 500, 502, 503, 504})
    on_timeout: bool = True
    on_transport: bool = True


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    strategy: Literal["failover", "round_robin"] = "failover"
    targets: tuple[str, ...]
    """Names of direct models, in order of priority."""
    retries: int | None = None
    max_fallbacks: int | None = None
    retry_on_429: bool = False
    fallback_on_statuses: frozenset[int] = frozenset()
    when_all_unavailable: Literal["fail", "try_anyway"] = "fail"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """An alias: direct (provider, upstream id, provider key) or routing (a list of direct models)."""

    id: str
    name: str
    provider: str = ""
    upstream: str = ""
    provider_key: str | None = None
    """Name of the provider key."""
    timeout_s: float | None = None
    """For the whole of a reply that is not streamed; 0 is no timeout, None the group's, then the deployment's."""
    stream_timeout_s: float | None = None
    """The longest silence of a stream; None is the group's, then `timeout_s`, then the deployment's."""
    retries: int | None = None
    rate_limit: RateLimit = RateLimit()
    allowed_cidrs: tuple[str, ...] = ()
    cooldown: Cooldown = Cooldown()
    routing: Routing | None = None


class CallerKey(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    hash: str
    """SHA-256 of the key, lower-case hex."""
    allowed_models: tuple[str, ...]
    """Names, `*`, or patterns with one `*`."""
    rate_limit: RateLimit = RateLimit()
    expires_at: float | None = None
    """Unix time."""
    disabled: bool = False
    team_id: str | None = None
    user_id: str | None = None


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["literal", "regex"]
    value: str
    name: str = ""
    replacement: str | None = None
    action: Literal["mask", "block"] | None = None


class GuardrailSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Literal["keyword", "pii"]
    enabled: bool = True
    hook: Literal["input", "output", "both"] = "both"
    enforcement: Literal["block", "monitor"] = "block"
    patterns: tuple[Pattern, ...] = ()
    """Of a keyword guardrail; of a pii guardrail the custom ones."""
    detectors: tuple[tuple[str, Literal["mask", "block"]], ...] = ()
    """Of a pii guardrail: (detector, what to do)."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A limit over a scope: one bucket for each distinct thing in it.

    `scope_ref` narrows it to one key or model (by id), team or member; for `team_member` it is the team, and each of its
    members has a bucket. None is every one of the scope, each with a bucket of its own.
    """

    id: str
    name: str
    scope: Literal["api_key", "model", "team", "member", "team_member"]
    scope_ref: str | None = None
    window: Literal["second", "minute", "hour", "day"]
    max_requests: int | None = None
    max_tokens: int | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    models: dict[str, Model] = {}
    provider_keys: dict[str, ProviderKey] = {}
    caller_keys: dict[str, CallerKey] = {}
    """By the key's hash."""
    guardrails: tuple[GuardrailSpec, ...] = ()
    policies: tuple[Policy, ...] = ()
    hash: str = ""
    """SHA-256 of the file."""
    loaded_at: float = 0.0
    source: str = ""
