"""What happened on the wire: times and bytes, nothing about what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

__all__ = ["Exchange", "WireError"]


class WireError(NamedTuple):
    """Why an exchange has no whole reply."""

    type: str
    message: str
    owner: Literal["server", "network", "penstock"]


class Exchange:
    """One request and its reply. Times are monotonic ns; -1 means that it did not happen.

    The reply's body is `pieces`, in order. Reads are parallel lists: `times[i]` is the arrival time of read i, after
    which `counts[i]` pieces were complete; `coarse` holds the reads that covered more than one network segment, so
    that only the newest one's arrival is known.

    A caller that relays while it reads sets `on_data`: it is called after each read with the status and headers (once
    they are there; status 0 before) and the pieces that are new since the last call, which it takes out of `pieces`.
    """

    __slots__ = (
        "bytes_received",
        "cancelled",
        "coarse",
        "connect_ns",
        "counts",
        "data",
        "end",
        "error",
        "first_byte",
        "headers",
        "lost_ns",
        "on_data",
        "on_end",
        "pieces",
        "retries",
        "reused",
        "sent",
        "start",
        "status",
        "tag",
        "times",
    )

    def __init__(self, data: bytes, on_end: Callable[[Exchange], None], tag: Any = None) -> None:
        self.data = data
        """Head and body as they go to the socket."""
        self.on_end = on_end
        self.on_data: Callable[[Exchange], None] | None = None
        self.tag = tag
        """Whatever the caller wants to find again."""
        self.start = self.sent = self.first_byte = self.end = -1
        self.connect_ns = 0
        self.reused = True
        self.retries = 0
        self.lost_ns = 0
        """What the first try took, when it was lost and sent again; `start` is that of the second."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """Of the reply, names in lower case."""
        self.pieces: list[bytes] = []
        self.times: list[int] = []
        self.counts: list[int] = []
        self.coarse: list[int] = []
        self.bytes_received = 0
        self.cancelled = False
        self.error: WireError | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first header of that lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None
