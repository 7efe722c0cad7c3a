"""Times in which the server or the network was down: every request that ended then lost its connection or got none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from penstock.metrics.request_series import SeriesTable
from penstock.metrics.statistics import Values
from penstock.plural import counted

_MIN_REQUESTS = 3
_MIN_NS = 1_000_000_000
_MAX_LISTED = 3


class Outage(NamedTuple):
    start: float
    """End of the last successful request before it."""
    end: float | None
    """End of the first successful request after it; None if there is none."""
    requests: int


def outage_notes(table: SeriesTable, start: int) -> list[str]:
    """Return a sentence for each outage of a phase; `start` is that of the phase."""
    found = find_outages(table)
    notes = [_sentence(outage, start) for outage in found[:_MAX_LISTED]]
    if (more := len(found) - _MAX_LISTED) > 0:
        notes.append(f"There were {counted(more, 'other time')} without an answer.")
    return notes


def find_outages(table: SeriesTable) -> list[Outage]:
    """Return the outages of a phase, in order."""
    if not table.without_server.any():
        return []
    ends = table.ends
    return list(_outages(np.sort(ends[table.succeeded]), np.sort(ends[table.without_server])))


def _outages(successes: Values, failures: Values) -> Iterator[Outage]:
    """Yield the outages, from the ends of the successful requests and of those without a server, in order."""
    after = np.searchsorted(successes, failures, side="right")
    """For each failure, how many successful requests ended before it."""
    for number, count in zip(*np.unique(after, return_counts=True), strict=True):
        if not number or count < _MIN_REQUESTS:
            continue
        begin = float(successes[number - 1])
        end = float(successes[number]) if number < len(successes) else None
        if (float(failures[-1]) if end is None else end) - begin >= _MIN_NS:
            yield Outage(begin, end, int(count))


def _sentence(outage: Outage, start: int) -> str:
    begin = f"{(outage.start - start) / 1e9:.1f} s after the start"
    until = "to the end" if outage.end is None else f"to {(outage.end - start) / 1e9:.1f} s"
    return (
        f"No server answered from {begin} {until}: {counted(outage.requests, 'request')} lost the connection or got none. This "
        "time is part of the duration, so throughput is lower by it; latencies cover only the requests that succeeded."
    )
