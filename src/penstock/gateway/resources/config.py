"""gateway.yaml: what AISIX's resource format has no place for."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["GatewayConfig", "GuardrailMode", "LedgerConfig", "LimitsConfig", "ListenConfig", "UpstreamConfig"]


class ListenConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = 3000
    status_host: str = "127.0.0.1"
    status_port: int = 9090
    tls_cert: str | None = None
    tls_key: str | None = None
    workers: int = 1
    max_body_bytes: int = 64 << 20
    drain_s: float = 30.0
    """How long live requests may take after SIGTERM."""
    drain_notice_s: float = 0.0
    """How long before that new connections are still taken while /readyz already says 503."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks whose X-Forwarded-For is believed."""


class UpstreamConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout_s: float = 600.0
    stream_timeout_s: float = 120.0
    """The longest silence within a stream."""
    connect_timeout_s: float = 5.0
    retries: int = 2


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    redis_url: str | None = None
    default_output_tokens: int = 1024
    """Reserved for a request that names no limit of its own."""


class LedgerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str = "sqlite:///penstock-usage.db"
    """`sqlite:///file` or `postgresql://…`."""
    spool: str = "penstock-spool"
    """Folder in which each worker appends its entries until they are in the ledger."""


class GuardrailMode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stream_mode: Literal["buffer", "window"] = "buffer"
    max_buffer_bytes: int = 262144
    max_lengths: dict[str, int] = {}
    """Guardrail name -> the longest match of its regexes, which lets it run in a window."""
    max_inspection_ms: int = 1000
    """For all searches of one request, reply or stream together, beyond what honest patterns need."""


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    listen: ListenConfig = ListenConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    limits: LimitsConfig = LimitsConfig()
    ledger: LedgerConfig = LedgerConfig()
    guardrails: GuardrailMode = GuardrailMode()
    watch: bool = True
    """Take a changed resource file at once."""
    access_log: Literal["text", "json", "off"] = "text"
    access_log_file: str | None = None
    """None is standard error. A file that was moved away is begun anew, so that whoever rotates it need tell nobody."""
