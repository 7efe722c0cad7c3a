"""Everything the user decided: typed, frozen, resolved. No AIPerf flag names in here (they are in `settings.flags`)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.secrets import Secret

__all__ = [
    "AudioSettings",
    "ConversationSettings",
    "EndpointSettings",
    "ImageSettings",
    "InputSettings",
    "LoadSettings",
    "OutputSettings",
    "ScheduleSettings",
    "Settings",
    "TokenizerSettings",
    "WarmupSettings",
]


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "chat"
    urls: tuple[str, ...] = ("http://localhost:8000",)
    path: str | None = None
    """Replaces the endpoint type's own path."""
    streaming: bool = False
    api_key: Secret | None = None
    headers: tuple[tuple[str, Secret], ...] = ()
    """Any header may carry a credential, so every value is a secret."""
    extra: dict[str, Any] = {}
    legacy_max_tokens: bool = False
    server_token_count: bool = False
    timeout_s: float = 21600.0
    connections: Literal["pooled", "never"] = "pooled"
    verify_tls: bool = True


class ConversationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Synthetic conversations of several turns; the ratio also counts for those of a file."""

    turns_mean: float = 1
    turns_stddev: float = 0
    delay_mean_ms: float = 0
    """From a reply to the next turn."""
    delay_stddev_ms: float = 0
    delay_ratio: float = 1
    system_tokens: int | None = None
    """Length of one system prompt that all conversations share."""
    context_tokens: int | None = None
    """Length of a user message that each conversation begins with, none like another."""


class ImageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Synthetic images beside the text of each turn; without a size there are none."""

    width_mean: float = 0
    height_mean: float = 0
    width_stddev: float = 0
    height_stddev: float = 0
    format: Literal["png", "jpeg", "random"] = "jpeg"
    batch: int = 1
    """Images in each turn."""

    @property
    def wanted(self) -> int:
        return self.batch if self.width_mean > 0 and self.height_mean > 0 else 0


class AudioSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Synthetic sound beside the text of each turn; without a length there is none."""

    seconds_mean: float = 0
    seconds_stddev: float = 0
    format: Literal["wav", "mp3"] = "wav"
    rates: tuple[int, ...] = (16000,)
    """Samples a second to draw from."""
    depths: tuple[int, ...] = (16,)
    """Bits a sample to draw from."""
    channels: int = 1
    batch: int = 1

    @property
    def wanted(self) -> int:
        return self.batch if self.seconds_mean > 0 else 0


class InputSettings(msgspec.Struct, frozen=True, kw_only=True):
    file: str | None = None
    format: str | None = None
    """The dataset format's name; None asks for detection."""
    sampling: Literal["sequential", "shuffle", "random"] = "sequential"
    seed: int | None = None
    entries: int | None = None
    """How many distinct synthetic prompts; None derives it from the load."""
    input_tokens_mean: float = 550
    input_tokens_stddev: float = 0
    output_tokens_mean: float | None = None
    """None sends no length limit."""
    output_tokens_stddev: float = 0
    batch: int = 1
    """Texts per request."""
    conversation: ConversationSettings = ConversationSettings()
    images: ImageSettings = ImageSettings()
    audio: AudioSettings = AudioSettings()
    sessions: tuple[str, ...] = ()
    """Only these conversations of the file; none named means all."""


class TokenizerSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    """A folder, a tokenizer.json, a hub id, `tekken` or `builtin`; None tries the model's own, then `builtin`."""
    revision: str = "main"


class ScheduleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Follow the times of a recording."""

    on: bool = False
    start_ms: float | None = None
    """Leave out what was recorded before; this moment is the start."""
    end_ms: float | None = None
    """Leave out what was recorded after."""
    auto_offset: bool = True
    """The first request is the start; otherwise the recording's zero is."""
    speedup: float = 1.0


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int | None = None
    rate: float | None = None
    """Requests per second; None is closed loop."""
    arrivals: Literal["poisson", "constant"] = "poisson"
    requests: int | None = None
    conversations: int | None = None
    """Stop when so many have been started; those under way are finished."""
    duration_s: float | None = None
    grace_s: float = 30.0
    schedule: ScheduleSettings = ScheduleSettings()

    @property
    def recorded(self) -> ScheduleSettings | None:
        """The schedule, when the run follows one."""
        return self.schedule if self.schedule.on else None


class WarmupSettings(msgspec.Struct, frozen=True, kw_only=True):
    requests: int = 0


class OutputSettings(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    prefix: str | None = None
    level: Literal["summary", "records"] = "records"
    ui: Literal["simple", "none"] = "simple"
    verbose: bool = False
    http_trace: bool = False
    """Add the HTTP phases of each request to the per-request file."""
    show_http: bool = False
    """Print the table of HTTP phases."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    models: tuple[str, ...]
    endpoint: EndpointSettings
    input: InputSettings
    tokenizer: TokenizerSettings
    load: LoadSettings
    warmup: WarmupSettings
    output: OutputSettings
    workers_max: int | None = None
    require_valid: bool = False
    max_error_rate: float = 0.0
    """Share of failed requests, 0 to 1, above which the exit status is 1."""
    command: str = ""
    """The command line with every secret replaced, for the artifacts."""
