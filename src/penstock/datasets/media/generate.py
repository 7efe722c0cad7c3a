"""Generates media files in threads, within limits of time and memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, islice
from typing import TypeVar

from penstock.datasets.conversation import Media
from penstock.processes import cores

T = TypeVar("T")

MAX_FILES = 1024
"""Most different files. A run that needs more repeats them from the first."""
_MIN_FILES = 16
_MAX_BYTES = 256 << 20
_MAX_SECONDS = 5.0
"""CPU time, so that the first request does not wait for minutes of MP3 or hundreds of large images."""
_BATCH = 32


def generate(
    specs: Sequence[T],
    make: Callable[[T], Media],
    estimate: Callable[[T], float],
    progress: Callable[[int, int], None] | None = None,
) -> list[Media]:
    """Make one file for each spec, in order, until a limit is reached.

    `estimate` returns the seconds that a file takes. It is not measured, so that a seed gives the same files on every
    machine. Encoders release the interpreter lock, so that threads run in parallel.
    """
    costs = list(accumulate(map(estimate, specs[:MAX_FILES])))
    count = max(min(_MIN_FILES, len(specs)), bisect_right(costs, _MAX_SECONDS))
    files: list[Media] = []
    size = 0
    remaining = iter(specs[:count])
    with ThreadPoolExecutor(min(4, cores())) as threads:
        while batch := list(islice(remaining, _BATCH)):
            made = list(threads.map(make, batch))
            files += made
            size += sum(len(media.data) for media in made)
            if progress is not None:
                progress(len(files), count)
            if size >= _MAX_BYTES:
                break
    return files
