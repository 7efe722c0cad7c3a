"""Times in which requests were in flight and no reply ended: the network was cut, or the server stood still."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from penstock.metrics.request_series import SeriesTable
from penstock.metrics.statistics import Values
from penstock.plural import counted

_MIN_REQUESTS = 3
_MIN_NS = 2_000_000_000
_MIN_LATENCIES = 5
"""A silence is at least this many times as long as a request takes on average: replies of a slow server are far apart, too."""
_MAX_LISTED = 3


class _Silence(NamedTuple):
    begin_s: float
    """End of the last successful request before it, or start of the first one that waited."""
    end_s: float
    requests: int
    """Requests that were in flight for at least half of the time without an end."""


def silence_notes(table: SeriesTable, start: int) -> list[str]:
    """Return a sentence for each silence of a phase; `start` is that of the phase."""
    ends = table.ends[table.succeeded]
    ends.sort()
    if not len(ends) or np.diff(ends).max(initial=0) < _MIN_NS:
        return []  # without the memory for the starts and the order of millions of requests
    del ends
    found = list(_silences(table.starts[table.succeeded], table.ends[table.succeeded]))
    notes = [_sentence(silence, start / 1e9) for silence in found[:_MAX_LISTED]]
    if (more := len(found) - _MAX_LISTED) > 0:
        notes.append(f"There were {counted(more, 'other time')} without a reply.")
    return notes


def _silences(starts: Values, ends: Values) -> Iterator[_Silence]:
    """Yield the silences, from the starts and ends of the successful requests."""
    order = np.argsort(ends, kind="stable")
    starts, ends = starts[order], ends[order]
    wide = np.flatnonzero(np.diff(ends) >= _MIN_NS)
    if not len(wide):
        return
    means = np.cumsum(ends - starts)[wide] / (wide + 1)
    for last, mean in zip(wide, means, strict=True):
        begin, end = ends[last], ends[last + 1]
        shortest = max(_MIN_NS, _MIN_LATENCIES * mean)
        if end - begin < shortest:
            continue
        later = starts[last + 1 :]
        waiting = later[later <= (begin + end) // 2]
        if len(waiting) >= _MIN_REQUESTS and end - max(begin, waiting.min()) >= shortest:
            yield _Silence(max(begin, waiting.min()) / 1e9, end / 1e9, len(waiting))


def _sentence(silence: _Silence, start_s: float) -> str:
    return (
        f"No reply ended from {silence.begin_s - start_s:.1f} s after the start to {silence.end_s - start_s:.1f} s, while "
        f"{counted(silence.requests, 'request')} waited: the network was cut, or the server stood still. Their latencies "
        "contain this time, and throughput is lower by it."
    )
