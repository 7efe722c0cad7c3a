"""The resources of the gateway as an immutable snapshot. A request uses one snapshot from its start to its end.

`resources.file` reads and checks the YAML file.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec

from penstock.gateway.resources.config import Count, Positive
from penstock.secrets import Secret

Text = Annotated[str, msgspec.Meta(min_length=1)]
Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Statuses = frozenset[Annotated[int, msgspec.Meta(ge=100, le=599)]]
ErrorStatuses = frozenset[Annotated[int, msgspec.Meta(ge=400, le=599)]]
Action = Literal["mask", "block"]
AttachmentScope = Literal["api_key", "team", "model", "env"]
"""From the most to the least specific."""
PolicyScope = Literal["api_key", "model", "team", "member", "team_member"]
Detector = Literal[
    "email",
    "china_mobile",
    "china_id_card",
    "bank_card",
    "us_ssn",
    "ip_address",
    "api_key",
    "jwt",
    "private_key",
]
"""The keys of `guardrails.detectors.DETECTORS`."""


@lru_cache(maxsize=8192)
def allows(allowed: tuple[str, ...], name: str) -> bool:
    """Return whether a name matches the allow list: exact names, `*`, or patterns with one `*`. An empty list allows none."""
    if name in allowed or "*" in allowed:
        return True
    for pattern in allowed:
        head, star, tail = pattern.partition("*")
        if star and len(name) >= len(head) + len(tail) and name.startswith(head) and name.endswith(tail):
            return True
    return False


def reveal_secret(value: Any) -> Any:
    """Encode a secret as its value. For an encoder whose output stays on this machine."""
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on requests per second, minute, hour and day, tokens per minute and day, and concurrent requests. None means
    unlimited."""

    rps: Count | None = None
    rpm: Count | None = None
    rph: Count | None = None
    rpd: Count | None = None
    tpm: Count | None = None
    tpd: Count | None = None
    concurrency: Count | None = None


class ProviderKey(msgspec.Struct, frozen=True, kw_only=True):
    """The credential and the settings for an upstream."""

    id: str
    name: str
    secret: Secret
    api_base: str | None = None
    provider: str = ""
    adapter: Literal["openai", "anthropic"] = "openai"
    default_headers: tuple[tuple[str, Secret], ...] = ()
    """All values are secrets, because any header may contain a credential."""
    default_body_fields: dict[str, Any] = {}
    param_renames: dict[str, str] = {}
    forward_client_headers: tuple[str, ...] = ()
    """Lower-case names of the caller's headers that go upstream, unless `default_headers` sets them."""
    verify_tls: bool = True
    stream_done_marker: Literal["required", "optional", "none"] = "required"
    """Whether a stream of chat completions that ends without `[DONE]` is incomplete."""


class Cooldown(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    min_failures: Positive = 3
    """Consecutive requests that must fail before a cooldown begins. One with Retry-After begins at once."""
    default_seconds: Count = 30
    max_seconds: Positive = 600
    honor_retry_after: bool = True
    statuses: Statuses = frozenset({401, 408, 429, 500, 502, 503, 504})
    on_timeout: bool = True
    on_transport: bool = True


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    strategy: Literal["failover", "round_robin"] = "failover"
    targets: tuple[str, ...]
    """Names of direct models, in order of priority."""
    retries: Count | None = None
    max_fallbacks: Count | None = None
    retry_on_429: bool = False
    fallback_on_statuses: ErrorStatuses = frozenset()
    when_all_unavailable: Literal["fail", "try_anyway"] = "fail"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model alias: direct (provider, upstream model, provider key) or routing (a list of direct models)."""

    id: str
    name: str
    provider: str = ""
    upstream: str = ""
    provider_key: str | None = None
    """Name of the provider key."""
    timeout_s: float | None = None
    """Limit for a complete reply without streaming. 0 means no timeout; None means the routing model's, then the default."""
    stream_timeout_s: float | None = None
    """The longest pause within a stream. None means the routing model's, then `timeout_s`, then the default."""
    retries: Count | None = None
    on_disconnect: Literal["read", "cancel"] | None = None
    """What happens to a stream that its caller leaves. None means `read` for the providers that bill it anyway."""
    rate_limit: RateLimit = RateLimit()
    allowed_cidrs: tuple[str, ...] = ()
    cooldown: Cooldown = Cooldown()
    routing: Routing | None = None

    @property
    def reads_on(self) -> bool:
        """True if a stream that its caller leaves is read to its end."""
        if self.on_disconnect is not None:
            return self.on_disconnect == "read"
        return self.provider in ("openai", "anthropic")


class CallerKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a caller, with its permissions and limits."""

    id: str
    name: str
    hash: str
    """SHA-256 of the key, lower-case hex."""
    allowed_models: tuple[str, ...]
    """Model names, `*`, or patterns with one `*`."""
    rate_limit: RateLimit = RateLimit()
    expires_at: float | None = None
    """Unix time."""
    disabled: bool = False
    team_id: Text | None = None
    user_id: Text | None = None


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["literal", "regex"]
    value: Text
    name: str = ""
    replacement: str | None = None
    action: Action | None = None


class GuardrailSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Literal["keyword", "pii"]
    enabled: bool = True
    hook: Literal["input", "output", "both"] = "both"
    enforcement: Literal["block", "monitor"] = "block"
    patterns: tuple[Pattern, ...] = ()
    """The patterns of a keyword guardrail, or the custom patterns of a pii guardrail."""
    detectors: tuple[tuple[Detector, Action], ...] = ()
    """(detector, action) pairs of a pii guardrail."""
    attached_to: tuple[tuple[AttachmentScope, str | None], ...] | None = None
    """What the guardrail applies to: keys and models by id, teams, or everything (`env`). None is everything, too."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A limit with one counter for each member of its scope.

    `scope_ref` restricts the policy to one key or model (by id), team or member. For `team_member` it names the team, and
    each member of the team has a counter. None applies the policy to every member of the scope.
    """

    id: str
    name: str
    scope: PolicyScope
    scope_ref: Text | None = None
    window: Literal["second", "minute", "hour", "day"]
    max_requests: Positive | None = None
    max_tokens: Positive | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All resources of one resource file."""

    models: dict[str, Model] = {}
    provider_keys: dict[str, ProviderKey] = {}
    caller_keys: dict[str, CallerKey] = {}
    """Hash of the key -> key."""
    guardrails: tuple[GuardrailSpec, ...] = ()
    policies: tuple[Policy, ...] = ()
    hash: str = ""
    """SHA-256 of the resource file."""
    loaded_at: float = 0.0
    source: str = ""
    key_files: tuple[str, ...] = ()
    """The files that contain keys."""
