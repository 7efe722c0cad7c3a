"""The settings in gateway.yaml, which the AISIX resource format does not cover."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Duration = Annotated[float, msgspec.Meta(ge=0)]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A mapping in the file."""


class ListenConfig(Section, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: Port = 3000
    status_host: str = "127.0.0.1"
    status_port: Port = 9090
    tls_cert: str | None = None
    tls_key: str | None = None
    workers: Positive = 1
    max_body_bytes: Positive = 64 << 20
    max_held_bytes: Positive = 256 << 20
    """Bytes of bodies and replies that a worker holds at a time. A single one may be larger."""
    drain_s: Duration = 30.0
    """How long requests in progress may continue after SIGTERM."""
    drain_notice_s: Duration = 5.0
    """How long new connections are accepted after SIGTERM while /readyz returns 503. The drain begins afterwards. SIGINT
    skips it."""
    worker_timeout_s: Annotated[float, msgspec.Meta(ge=1)] = 10.0
    """A worker whose event loop does not run for this time is killed and replaced."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks whose X-Forwarded-For header is trusted."""
    keep_alive_s: Duration = 30.0
    """How long a connection without a request is kept open."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call the gateway, or `*`. Empty sends no CORS headers."""


class UpstreamConfig(Section, frozen=True, kw_only=True):
    timeout_s: Duration = 600.0
    stream_timeout_s: Duration = 120.0
    """The longest pause between two reads of a stream."""
    max_stream_s: Duration = 3600.0
    """The longest duration of a stream."""
    connect_timeout_s: Duration = 5.0
    max_abandoned_streams: Count = 64
    """Streams of a worker that are read to their end at a time although their callers have left."""
    retries: Count = 2


class LimitsConfig(Section, frozen=True, kw_only=True):
    redis_url: str | None = None
    default_output_tokens: Count = 1024
    """Output tokens reserved for a request without an output limit."""
    image_tokens: Count = 1500
    audio_tokens: Count = 1500
    file_tokens: Count = 10_000
    """Input tokens reserved for each image, audio clip and file of a request."""


class LedgerConfig(Section, frozen=True, kw_only=True):
    url: str = "sqlite:///penstock-usage.db"
    """`sqlite:///file` or `postgresql://…`."""
    spool: str = "penstock-spool"
    """Folder to which workers append usage entries until they are in the ledger."""
    retention_days: Duration = 0.0
    """The gateway deletes older entries from the ledger. 0 keeps all of them."""


class ResponsesConfig(Section, frozen=True, kw_only=True):
    foreign_ids: Literal["refuse", "allow"] = "refuse"
    """Whether `previous_response_id` and `conversation` may name what this gateway has not seen being made."""
    id_ttl_s: Duration = 30 * 86400.0
    """How long the caller of a response is remembered."""
    id_url: str | None = None
    """`postgresql://…` for gateways on several machines. None: a SQLite file in the spool folder."""


class GuardrailMode(Section, frozen=True, kw_only=True):
    stream_mode: Literal["buffer", "window"] = "buffer"
    max_buffer_bytes: Positive = 262144
    """Bytes of text that are held of a stream at most."""
    max_lengths: dict[str, int] = {}
    """Guardrail name -> maximum match length of its regexes. Window mode needs it."""
    heartbeat_s: Duration = 15.0
    """In window mode, a comment is sent after this many seconds without an event. 0 sends none."""
    max_inspection_ms: Positive = 1000
    """Time for all searches in one request, reply or stream, in addition to what ordinary patterns need."""


class GatewayConfig(Section, frozen=True, kw_only=True):
    listen: ListenConfig = ListenConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    limits: LimitsConfig = LimitsConfig()
    ledger: LedgerConfig = LedgerConfig()
    guardrails: GuardrailMode = GuardrailMode()
    responses: ResponsesConfig = ResponsesConfig()
    watch: bool = True
    """Reload the resource file when it changes."""
    access_log: Literal["text", "json", "off"] = "text"
    access_log_file: str | None = None
    """None means standard error. If the file is renamed, a new one is created, so log rotation needs no signal."""
