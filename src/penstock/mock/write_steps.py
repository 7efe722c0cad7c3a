"""A reply as steps: what to write and when. Each function here takes steps and returns changed steps.

A step is (offset, data, tokens, act): `data` is written `offset` nanoseconds after the request arrived and carries
`tokens` tokens. Offsets never decrease. An act other than SEND ends the reply, and nothing is written.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from penstock.mock.http_format import LAST_CHUNK

__all__ = [
    "CUT",
    "HANG",
    "RESET",
    "SEND",
    "Step",
    "coalesce",
    "comment",
    "cut",
    "slow_head",
    "split",
    "stall",
    "strikes",
]

SEND, CUT, RESET, HANG = range(4)

Step = tuple[int, bytes, int, int]

LARGEST_WRITE = 1 << 18
"""Some 1,300 tokens; where they are not cached, rendering them holds up the other streams for 7 to 12 ms."""
HEAD_PIECES = 8
MASK = (1 << 64) - 1


def strikes(seed: int, number: int, fault: int, rate: float) -> bool:
    """Whether fault number `fault` strikes request `number`: the same answer every time."""
    x = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + fault * 0x94D049BB133111EB + 1) & MASK
    # the finisher of splitmix64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return (x ^ (x >> 31)) < rate * 2.0**64


def comment(steps: Iterable[Step], every: int, data: bytes) -> Iterator[Step]:
    """Put `data` before every `every`-th event, from the first on."""
    for i, step in enumerate(steps):
        if i % every == 0 and step[1] != LAST_CHUNK:
            yield step[0], data, 0, SEND
        yield step


def cut(steps: Iterable[Step], after: int, act: int) -> Iterator[Step]:
    """End with `act` once `after` tokens are sent."""
    sent = 0
    for step in steps:
        if sent >= after:
            yield step[0], b"", 0, act
            return
        yield step
        sent += step[2]


def stall(steps: Iterable[Step], after: int, pause: int | None) -> Iterator[Step]:
    """Pause, or hang for ever, once `after` tokens are sent; all that follows is as much later."""
    sent = 0
    for offset, data, tokens, act in steps:
        if sent < after:
            yield offset, data, tokens, act
        elif pause is None:
            yield offset, b"", 0, HANG
            return
        else:
            yield offset + pause, data, tokens, act
        sent += tokens


def coalesce(steps: Iterable[Step]) -> Iterator[Step]:
    """Merge steps that are due at the same time into one write."""
    steps = iter(steps)
    pending = next(steps, None)
    parts: list[bytes] = []
    tokens = size = 0
    for step in steps:
        assert pending is not None
        if step[0] == pending[0] and step[3] == SEND and size <= LARGEST_WRITE:
            if not parts:
                parts.append(pending[1])
                tokens = pending[2]
                size = len(pending[1])
            parts.append(step[1])
            tokens += step[2]
            size += len(step[1])
        elif parts:
            yield pending[0], b"".join(parts), tokens, SEND
            parts.clear()
            size = 0
            pending = step
        else:
            yield pending
            pending = step
    if pending is not None:
        yield (pending[0], b"".join(parts), tokens, SEND) if parts else pending


def slow_head(steps: Iterable[Step], pause: int) -> Iterator[Step]:
    """Dribble the head from the arrival of the request on, over `pause`; all that follows is as much later."""
    rest = iter(steps)
    for offset, data, tokens, act in rest:
        if act == SEND:
            end = data.find(b"\r\n\r\n") + 4
            width = -(-end // HEAD_PIECES)
            pieces = [data[i : min(i + width, end)] for i in range(0, end, width)]
            for i, piece in enumerate(pieces):
                yield pause * (i + 1) // len(pieces), piece, 0, SEND
            if end < len(data):
                yield offset + pause, data[end:], tokens, SEND
        else:
            yield offset + pause, data, tokens, act
        break
    for offset, data, tokens, act in rest:
        yield offset + pause, data, tokens, act


def split(steps: Iterable[Step], gap: int, draw: random.Random) -> Iterator[Step]:
    """Cut every write into two or three at arbitrary bytes. Its tokens count with the last piece."""
    late = 0
    for offset, data, tokens, act in steps:
        due = max(offset, late)
        cuts = sorted({draw.randrange(1, len(data)) for _ in range(draw.choice((1, 2)))}) if len(data) > 1 else []
        start = 0
        for end in cuts:
            yield due, data[start:end], 0, SEND
            due += gap
            start = end
        yield due, data[start:], tokens, act
        late = due
