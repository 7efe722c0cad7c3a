"""The record of one request: text with times, token counts, and the error with its owner.

All times are integer nanoseconds on the monotonic clock, counted from the run's epoch (`RunHeader.epoch_wall_ns` in
`records.header` is the wall clock at that epoch). `None` means that the event did not happen.
"""

from __future__ import annotations

import msgspec

from penstock.endpoints.reply import ErrorOwner, Failure, Usage

__all__ = ["ErrorOwner", "Failure", "Record", "Usage"]


class Record(msgspec.Struct, array_like=True):
    """One request. The log stores the fields by position: add new ones at the end only."""

    phase: int
    """Index into the run's phases (warmup first when there is one)."""
    number: int
    """Position of the conversation in the schedule of its phase, over all workers; all its turns have this number."""
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
    """When the schedule wanted the request sent."""
    issued: int
    """When a slot was free for the request (never before `intended`)."""
    start: int = 0
    """Just before the first byte was written to the socket; latencies count from here."""
    end: int = 0
    """Arrival of the reply's last byte, or the time of the failure."""
    sent: int | None = None
    """When the last byte had been written to the socket."""
    first_byte: int | None = None
    """Arrival of the reply's first byte."""
    dns_ns: int = 0
    """Always 0: names are resolved once, before the first request."""
    connect_ns: int = 0
    """TCP and TLS connect time that this request had to wait for."""
    reused: bool = True
    retries: int = 0

    status: int = 0
    streamed: bool = False
    """Whether the reply was server-sent events, whatever the request asked for."""
    bytes_sent: int = 0
    bytes_received: int = 0
    reads: int = 0
    """Network reads of the reply."""

    stamps: list[int] = []
    """Distinct arrival times of content, relative to `start`."""
    pieces: list[int] = []
    """Number of content events with each stamp."""
    coalesced: list[int] = []
    """Indexes of the stamps that may cover several network segments: some of their content may have arrived earlier."""
    earliest: list[int] = []
    """For each of those, when the socket was last known to be empty, relative to `start`."""
    first_output: int | None = None
    """Index into `stamps` of the first content that is not reasoning."""

    outputs: list[str] = []
    """Text of each choice, with its tool calls and refusals."""
    reasonings: list[str] = []
    head_outputs: str = ""
    """The text, including reasoning, that arrived with the first stamp."""
    finish: list[str] = []
    """Finish reason of each choice."""
    usage: Usage | None = None
    requested_output: int | None = None
    model: str | None = None
    """The model name in the reply."""

    built: int | None = None
    """Index of the body in the worker's own payload store, if the worker built it from earlier replies."""
    digest: bytes = b""
    """SHA-256 of the body, if it was written to the socket in full."""
    response_id: str | None = None
    """The id in the reply."""

    gateway_ms: float | None = None
    """Own time of a gateway before the server, up to the head of its reply, from its Server-Timing header."""
    upstream_ms: float | None = None
    """Time that this gateway waited for the server."""

    cancelled: bool = False
    """Ended by Penstock (grace period over, second Ctrl-C): neither a success nor a failure."""
    failure: Failure | None = None
    warnings: dict[str, int] = {}
    """Unusual properties of the reply that are no failure, with their counts."""
    head_tokens: int | None = None
    """Completion tokens that arrived with the first stamp, if the server sends usage in every chunk."""
    redirects: int = 0
    """Redirects that were followed. `start` is that of the first request, the reply is that of the last one."""
    rtt_us: int | None = None
    """Smoothed round trip of the connection at the end of the reply, from TCP_INFO. Delayed acknowledgements are part of it."""
    retransmits: int = 0
    """Segments of the request that were sent again."""
    images: int = 0
    """Images in the request, or in the reply if the endpoint generates images."""
    audio_seconds: float = 0.0
    """Length of the audio in the request; 0 if there is none or its length is not known."""
    raw_reply: int | None = None
    """Position of the reply in the worker's file of replies, if replies are kept."""

    root_id: str | None = None
    """The correlation id of the root of its tree of conversations; None without a tree."""
    parent_id: str | None = None
    """The correlation id of the conversation that has started its conversation."""

    @property
    def latency_ns(self) -> int:
        """The time from the start to the last content of a stream, or to the last byte of any other reply."""
        return self.stamps[-1] if self.streamed and self.stamps else self.end - self.start
