"""The server for each session when a run compares several servers.

Every conversation is sent to each server once, in a random order that is drawn for that conversation. A change during the run
(a machine that warms up, other load on the host) therefore affects all servers alike. The order is a pure function of the
seed, so workers agree on it without communicating.
"""

from __future__ import annotations

from random import Random

__all__ = ["assign_server"]


def assign_server(number: int, servers: int, seed: int) -> int:
    """Return the server for session `number`. The sessions of one conversation are `servers` consecutive numbers."""
    conversation, position = divmod(number, servers)
    draw = Random(f"{seed}/arms/{conversation}").random
    order = list(range(servers))
    for last in range(servers - 1, 0, -1):
        other = int(draw() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order[position]
