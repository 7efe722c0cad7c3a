"""A reply as steps, and functions that change the steps.

A step is (offset, data, tokens, action). `data` carries `tokens` tokens and is written `offset` nanoseconds after the
request arrived. Offsets never decrease. An action other than SEND ends the reply, and its data is not written.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from penstock.mock_server.http_format import LAST_CHUNK

SEND, CUT, RESET, HANG = range(4)

Step = tuple[int, bytes, int, int]

LARGEST_WRITE = 1 << 18
"""About 1,300 tokens. Rendering them without the cache delays the other streams by 7 to 12 ms."""
HEAD_PARTS = 8
MASK = (1 << 64) - 1


def fault_applies(seed: int, number: int, fault: int, rate: float) -> bool:
    """Tell whether fault number `fault` applies to request `number`: the same answer every time."""
    x = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + fault * 0x94D049BB133111EB + 1) & MASK
    # the finalizer of splitmix64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return (x ^ (x >> 31)) < rate * 2.0**64


def comment(steps: Iterable[Step], every: int, data: bytes) -> Iterator[Step]:
    """Insert `data` before the first event and before every `every`-th event after it."""
    for i, step in enumerate(steps):
        if i % every == 0 and step[1] != LAST_CHUNK:
            yield step[0], data, 0, SEND
        yield step


def cut(steps: Iterable[Step], after: int, action: int) -> Iterator[Step]:
    """End with `action` once `after` tokens are sent."""
    sent = 0
    for step in steps:
        if sent >= after:
            yield step[0], b"", 0, action
            return
        yield step
        sent += step[2]


def stall(steps: Iterable[Step], after: int, pause: int | None) -> Iterator[Step]:
    """Delay everything after the first `after` tokens by `pause`, or hang forever if it is None."""
    sent = 0
    for offset, data, tokens, action in steps:
        if sent < after:
            yield offset, data, tokens, action
        elif pause is None:
            yield offset, b"", 0, HANG
            return
        else:
            yield offset + pause, data, tokens, action
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
    """Write the head in several parts during the first `pause` nanoseconds, and delay the rest by `pause`."""
    remaining = iter(steps)
    for offset, data, tokens, action in remaining:
        if action == SEND:
            end = data.find(b"\r\n\r\n") + 4
            width = -(-end // HEAD_PARTS)
            parts = [data[i : min(i + width, end)] for i in range(0, end, width)]
            for i, part in enumerate(parts):
                yield pause * (i + 1) // len(parts), part, 0, SEND
            if end < len(data):
                yield offset + pause, data[end:], tokens, SEND
        else:
            yield offset + pause, data, tokens, action
        break
    for offset, data, tokens, action in remaining:
        yield offset + pause, data, tokens, action


def split(steps: Iterable[Step], gap: int, draw: random.Random) -> Iterator[Step]:
    """Split every write into two or three at random bytes. Its tokens count with the last part."""
    earliest = 0
    for offset, data, tokens, action in steps:
        due = max(offset, earliest)
        cuts = sorted({draw.randrange(1, len(data)) for _ in range(draw.choice((1, 2)))}) if len(data) > 1 else []
        start = 0
        for end in cuts:
            yield due, data[start:end], 0, SEND
            due += gap
            start = end
        yield due, data[start:], tokens, action
        earliest = due
