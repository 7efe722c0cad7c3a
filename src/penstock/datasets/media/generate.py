"""Making many files at once, and not more of them than are worth their memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, islice
from typing import TypeVar

from penstock.datasets.conversation import Media
from penstock.processes import cores

__all__ = ["MOST", "make"]

T = TypeVar("T")

MOST = 1024
"""Different files; a run that needs more begins again with the first."""
_LEAST = 16
_MOST_BYTES = 256 << 20
_MOST_SECONDS = 5.0
"""Of one core's time, so that the first request does not wait for minutes of MP3 or hundreds of large pictures."""
_BATCH = 32


def make(
    plans: Sequence[T],
    one: Callable[[T], Media],
    seconds: Callable[[T], float],
    progress: Callable[[int, int], None] | None = None,
) -> list[Media]:
    """One file a plan, in their order, as far as it is worth it. `seconds` estimates how long a file takes: an estimate
    and not a clock, so that a seed gives the same files everywhere. Encoders let go of the interpreter, so threads share
    the work."""
    cost = list(accumulate(map(seconds, plans[:MOST])))
    wanted = max(min(_LEAST, len(plans)), bisect_right(cost, _MOST_SECONDS))
    found: list[Media] = []
    size = 0
    left = iter(plans[:wanted])
    with ThreadPoolExecutor(min(4, cores())) as threads:
        while batch := list(islice(left, _BATCH)):
            made = list(threads.map(one, batch))
            found += made
            size += sum(len(media.data) for media in made)
            if progress is not None:
                progress(len(found), wanted)
            if size >= _MOST_BYTES:
                break
    return found
