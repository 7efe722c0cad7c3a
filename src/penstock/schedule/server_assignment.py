"""Which server gets which conversation when several are compared: a pure function, so workers agree without talking.

Each conversation is a block: it goes to every server once, in an order drawn for that block. So whatever drifts during the
run (a machine that warms up, a neighbour that wakes) meets all servers alike.
"""

from __future__ import annotations

from random import Random

__all__ = ["arm"]


def arm(number: int, arms: int, seed: int) -> int:
    """The server for the run's session `number`, which is one of block `number // arms`."""
    block, place = divmod(number, arms)
    draw = Random(f"{seed}/arms/{block}").random
    order = list(range(arms))
    for last in range(arms - 1, 0, -1):
        other = int(draw() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order[place]
