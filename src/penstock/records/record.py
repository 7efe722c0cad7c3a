"""What an exchange means: text with times, token counts, the error and whose fault it was.

All times are integer nanoseconds on the monotonic clock, counted from the run's epoch (`RunHeader.epoch_*` in
`records.log` pairs that epoch with the wall clock). `None` means that the thing did not happen.
"""

from __future__ import annotations

import msgspec

from penstock.endpoints.reply import ErrorOwner, Failure, Usage

__all__ = ["ErrorOwner", "Failure", "Record", "Usage"]


class Record(msgspec.Struct, array_like=True):
    phase: int
    """Index into the run's phases (warmup first when there is one)."""
    number: int
    """The place of its conversation in the plan of its phase, over all workers; its turns share it."""
    conversation: int
    """Index of the conversation in the dataset."""
    turn: int
    payload: int
    """Index of the body in the payload store."""
    worker: int
    url: int
    """Index into the settings' urls."""
    request_id: str
    correlation_id: str

    intended: int
    """When the plan wanted it sent."""
    issued: int
    """When a slot was free for it (never before `intended`)."""
    start: int = 0
    """Just before its first byte was handed to the socket: latencies count from here."""
    end: int = 0
    """The last byte of the reply (or the moment of failure)."""
    sent: int | None = None
    """When its last byte had been handed to the socket."""
    first_byte: int | None = None
    """Arrival of the reply's first byte."""
    dns_ns: int = 0
    """Always 0 in this version: names are resolved once, before the first request."""
    connect_ns: int = 0
    """TCP and TLS set-up that this request had to wait for."""
    reused: bool = True
    retries: int = 0

    status: int = 0
    streamed: bool = False
    """The reply was server-sent events, whatever was asked for."""
    bytes_sent: int = 0
    bytes_received: int = 0
    reads: int = 0
    """Network reads that the reply took."""

    stamps: list[int] = []
    """Arrival times of content, relative to `start`: one entry per distinct stamp, so no two are equal."""
    pieces: list[int] = []
    """How many content events share each stamp."""
    coalesced: int = 0
    """How many of the stamps cover more than one network segment: the true time is earlier or equal."""
    first_coalesced: bool = False
    """The first stamp is one of those, so TTFT is an upper bound."""
    first_output: int | None = None
    """Index into `stamps` of the first content that is not reasoning."""

    outputs: list[str] = []
    """Text of the reply, one string a choice; tool calls and refusals included."""
    reasonings: list[str] = []
    head_outputs: str = ""
    """The text, of any kind, that arrived with the first stamp."""
    finish: list[str] = []
    """One finish reason a choice."""
    usage: Usage | None = None
    requested_output: int | None = None
    model: str | None = None
    """The model name in the reply."""

    built: int | None = None
    """Number in the worker's own store when it built the body itself, knowing the replies before."""
    digest: bytes = b""
    """SHA-256 of the body that was handed to the socket."""
    response_id: str | None = None

    gateway_ms: float | None = None
    """What a gateway in front of the server says it took itself, up to the head of its reply."""
    upstream_ms: float | None = None
    """What it says it waited for the server behind it."""

    cancelled: bool = False
    """Ended by us (grace period over, second Ctrl-C): neither a success nor a failure."""
    failure: Failure | None = None
    warnings: dict[str, int] = {}
    """Oddities of the reply that failed nothing, with their counts."""
