"""One HTTP exchange as it happened on the network: times and bytes, not yet interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple


class WireError(NamedTuple):
    """Why an exchange has no complete reply."""

    type: str
    message: str
    owner: Literal["server", "network", "penstock"]


class FollowedRedirect(NamedTuple):
    """The redirect that an exchange follows, and the first exchange of the chain."""

    first: Exchange
    hops: int
    """Redirects since the first exchange, including this one."""
    url: str


class Exchange:
    """One request and its reply. Times are monotonic ns; -1 means that the event did not happen.

    `pieces` are the reply's body, in order. `times` and `counts` have one entry for each network read: `times[i]` is the
    arrival time of read i, and `counts[i]` the number of pieces that had arrived after it. `coalesced` holds the indexes
    of reads that may have covered more than one network segment; the time of such a read is the newest segment's, and the
    first segment arrived no earlier than the entry in `earliest`.

    A caller that relays the reply sets `on_data`. It is called after each read, with the status and headers (status 0
    until they have arrived) and the new pieces, which the callback removes from `pieces`.
    """

    def __init__(self, data: bytes, on_end: Callable[[Exchange], None], tag: Any = None) -> None:
        self.data = data
        """The request: head and body as sent."""
        self.on_end = on_end
        self.on_data: Callable[[Exchange], None] | None = None
        self.on_content: Callable[[Exchange, int], None] | None = None
        """Called once, with the arrival time, after the first read that has a part of the reply's body."""
        self.tag = tag
        """Any object of the caller's."""
        self.start = self.sent = self.first_byte = self.end = -1
        self.connect_ns = 0
        self.reused = True
        self.retries = 0
        self.lost_ns = 0
        """How long the first attempt took, if the request was sent a second time; `start` is the second attempt's."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """The reply's headers, names in lower case."""
        self.pieces: list[bytes] = []
        self.times: list[int] = []
        self.counts: list[int] = []
        self.coalesced: list[int] = []
        self.earliest: list[int] = []
        self.bytes_received = 0
        self.rtt_us: int | None = None
        """Smoothed round trip at the end, if the system tells it."""
        self.retransmits = 0
        """Segments that were sent again during the exchange."""
        self.redirect: FollowedRedirect | None = None
        self.cancelled = False
        self.error: WireError | None = None

    def header(self, name: bytes) -> bytes | None:
        """Return the first header with this name, which is in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None
