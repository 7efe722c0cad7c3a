"""The server for each session of a run with several servers."""

from __future__ import annotations

from random import Random
from typing import Protocol

import msgspec


class ServerAssignment(Protocol):
    @property
    def copies(self) -> int:
        """How often each conversation is sent. Its sessions have consecutive numbers."""
        ...

    def server(self, number: int, servers: int, seed: int) -> int:
        """Return the server for session `number`; `servers` is how many there are."""
        ...


class RoundRobin(msgspec.Struct, frozen=True, tag="round_robin"):
    """Sessions take the servers in turn, beginning with number `first`."""

    first: int = 0

    @property
    def copies(self) -> int:
        return 1

    def server(self, number: int, servers: int, seed: int) -> int:
        del seed
        return (self.first + number) % servers


class EachServer(msgspec.Struct, frozen=True, tag="each_server"):
    """Every conversation is sent to each server once, in a random order that is drawn for that conversation.

    A change during the run (a machine that warms up, other load on the host) therefore affects all servers alike. The order
    is a pure function of the seed, so workers agree on it without communicating.
    """

    copies: int

    def server(self, number: int, servers: int, seed: int) -> int:
        conversation, position = divmod(number, self.copies)
        draw = Random(f"{seed}/arms/{conversation}").random
        order = list(range(servers))
        for last in range(servers - 1, 0, -1):
            other = int(draw() * (last + 1))
            order[last], order[other] = order[other], order[last]
        return order[position]
