"""Accumulate prefill, decode and tokens in flight over time, for the metrics of `groups.timeline`.

Numbers of requests are exact. Tokens are summed in bins of 10 ms (`step_grid`), so memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.concurrency import Overlaps, Window, count_overlaps
from penstock.metrics.statistics import Column, Stats, Values, weighted_statistics
from penstock.metrics.step_grid import StepGrid
from penstock.scratch import Scratch

_PER_SECOND = "tokens/sec"
_PER_USER = "tokens/sec/user"


class _Function(IntEnum):
    PREFILL_RATE = 0
    DECODE_RATE = 1
    PREFILLING = 2
    DECODING = 3
    TOKENS = 4


_FUNCTIONS = {
    "prefill": (_Function.PREFILL_RATE, _Function.PREFILLING),
    "decode": (_Function.DECODE_RATE, _Function.DECODING),
}


class Timeline:
    """The successful streamed requests of a phase. `over` may be called any number of times after the last `add`."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._starts, self._firsts, self._ends = Column(scratch), Column(scratch), Column(scratch)
        self._grid = StepGrid(len(_Function))
        self._inputs_known = self._outputs_known = self._has_gaps = False

    def add(self, batch: Batch, table: MeasureTable) -> None:
        """Add the streamed requests of a batch to the grid. A request of 100 chunks costs about 10 µs."""
        chosen = ~np.isnan(table.get("time_to_first_token"))
        if not chosen.any():
            return
        inputs, lengths = table.get("input_sequence_length")[chosen], table.get("output_sequence_length")[chosen]
        self._inputs_known |= not np.isnan(inputs).all()
        self._outputs_known |= not np.isnan(lengths).all()
        inputs, lengths = np.nan_to_num(inputs), np.nan_to_num(lengths)
        starts, ends = batch.start[chosen], batch.end[chosen]
        firsts = starts + batch.first[chosen]
        for column, times in ((self._starts, starts), (self._firsts, firsts), (self._ends, ends)):
            column.extend(times)
        self._add_requests(starts, firsts, ends, inputs, lengths)
        counts = batch.stamp_counts[chosen]
        self._has_gaps |= bool((counts > 1).any())
        # The first piece of content holds one token, and the others have equal shares of the rest.
        shares = np.maximum(lengths - 1, 0) / np.maximum(batch.pieces[chosen] - 1, 1)
        stamps, pieces = batch.stamps[:-1], batch.stamp_pieces
        if not chosen.all():
            own = np.repeat(chosen, batch.stamp_counts)
            stamps, pieces = stamps[own], None if pieces is None else pieces[own]
        self._add_chunks(np.repeat(starts, counts) + stamps, lengths, counts, shares, pieces)

    def merge(self, other: Timeline) -> None:
        self._starts.merge(other._starts)
        self._firsts.merge(other._firsts)
        self._ends.merge(other._ends)
        self._grid.merge(other._grid)
        self._inputs_known |= other._inputs_known
        self._outputs_known |= other._outputs_known
        self._has_gaps |= other._has_gaps

    def _add_requests(self, starts: Values, firsts: Values, ends: Values, inputs: Values, lengths: Values) -> None:
        ones = np.ones(len(starts))
        rates = inputs / np.maximum(firsts - starts, 1)
        add, of = self._grid.add, _Function
        add(starts, {of.PREFILL_RATE: rates, of.PREFILLING: ones, of.TOKENS: inputs})
        add(firsts, {of.PREFILL_RATE: -rates, of.PREFILLING: -ones, of.DECODING: ones})
        add(ends, {of.DECODING: -ones, of.TOKENS: -(inputs + lengths)})

    def _add_chunks(
        self, times: Values, lengths: Values, counts: NDArray[np.intp], shares: Values, pieces: Values | None
    ) -> None:
        """Lay the tokens on the times of the chunks: at a constant rate during each gap, and as steps at its end.

        `pieces` are those with each stamp; None stands for one each."""
        first = np.cumsum(counts) - counts
        """The index of each request's first stamp among all stamps."""
        gaps = np.diff(times, prepend=0.0)
        tokens = np.repeat(shares, counts)
        tokens[first] = 0
        if pieces is not None:
            tokens *= pieces
        gaps[first] = 1  # these hold no tokens
        rates = tokens / gaps
        changes = -rates
        changes[:-1] += rates[1:]
        tokens[first] = lengths - np.add.reduceat(tokens, first)
        self._grid.add(times, {_Function.DECODE_RATE: changes, _Function.TOKENS: tokens})

    def over(self, windows: Sequence[Window], whole: Window) -> list[dict[str, Stats]]:
        """Return the statistics over each of the windows. `whole` is the window of the phase, which contains them."""
        if not self._starts:
            return [{} for _ in windows]
        bins = [_Bins(self._grid.width, window, whole) for window in windows]
        found: list[dict[str, Stats | None]] = [{} for _ in windows]
        # One after the other, because each takes 16 bytes per request.
        prefill = self._count(
            found, "prefill", windows, whole, count_overlaps(self._starts, self._firsts, self._scratch)
        )
        decode = self._count(found, "decode", windows, whole, count_overlaps(self._firsts, self._ends, self._scratch))
        phases: dict[str, _Phase] = {}
        if self._inputs_known:
            phases["prefill"] = prefill
        if self._outputs_known and self._has_gaps:
            phases["decode"] = decode
        if len(phases) == 2:
            busy = self._busy(whole, count_overlaps(self._starts, self._ends, self._scratch))
            phases["total"] = _Phase(prefill.tokens + decode.tokens, busy, None)
        for name, phase in phases.items():
            for stats, part in zip(found, bins, strict=True):
                stats.update(part.throughput(name, phase))
        if self._inputs_known and self._outputs_known:
            tokens = self._integrals(whole, _Function.TOKENS)
            for stats, part in zip(found, bins, strict=True):
                stats["tokens_in_flight"] = weighted_statistics(part.of(tokens) / part.lengths, part.lengths, "tokens")
        return [{tag: value for tag, value in stats.items() if value is not None} for stats in found]

    def _count(
        self,
        found: list[dict[str, Stats | None]],
        name: str,
        windows: Sequence[Window],
        whole: Window,
        overlaps: Overlaps,
    ) -> _Phase:
        """Add the concurrency in prefill or decode to the statistics, and return what happened in each bin."""
        for stats, window in zip(found, windows, strict=True):
            stats[f"effective_{name}_concurrency"] = overlaps.statistics("requests", window)
        busy = self._busy(whole, overlaps)
        rate, users = _FUNCTIONS[name]
        return _Phase(self._integrals(whole, rate), busy, self._integrals(whole, users))

    def _integrals(self, window: Window, function: int) -> Values:
        # Sums of many rates leave rounding errors around 0.
        return np.maximum(self._grid.integrals(function, *_bin_range(self._grid.width, window)), 0)

    def _busy(self, window: Window, overlaps: Overlaps) -> Values:
        """Return the nanoseconds of each bin in which there was at least one interval."""
        grid = StepGrid(1, self._grid.width)
        begins, ends = overlaps.busy()
        grid.add(begins, {0: np.ones(len(begins))})
        grid.add(ends, {0: -np.ones(len(ends))})
        return grid.integrals(0, *_bin_range(grid.width, window))


class _Phase(NamedTuple):
    """What happened in each bin in prefill, in decode, or in both."""

    tokens: Values
    busy: Values
    """Nanoseconds with at least one request."""
    users: Values | None
    """Request-nanoseconds; None if throughput per user is not defined."""


class _Bins:
    """The bins of a window."""

    def __init__(self, width: int, window: Window, whole: Window) -> None:
        first, last = _bin_range(width, window)
        origin, _ = _bin_range(width, whole)
        self._covered = slice(first - origin, last - origin)
        edges = np.arange(first, last + 1, dtype=np.float64) * width
        self.lengths: Values = np.diff(np.clip(edges, *window))
        """How much of each bin the window covers, in ns."""
        self._shares: Values = self.lengths / np.diff(np.clip(edges, *whole))
        """A bin at an edge of the window counts by the share of the phase's time in it that is in the window."""

    def of(self, values: Values) -> Values:
        """Return the part of a quantity of the whole phase that is in the window, by bin."""
        part: Values = values[self._covered] * self._shares
        return part

    def throughput(self, name: str, phase: _Phase) -> Iterator[tuple[str, Stats | None]]:
        """Yield the throughput over all the time, and over the time in which there was a request."""
        lengths, busy = self.lengths, self.of(phase.busy)
        active = busy > 0
        tokens = np.where(active, self.of(phase.tokens), 0) * 1e9
        yield f"effective_{name}_throughput", weighted_statistics(tokens / lengths, lengths, _PER_SECOND)
        tokens, busy = tokens[active], busy[active]
        yield f"active_{name}_throughput", weighted_statistics(tokens / busy, busy, _PER_SECOND)
        if phase.users is not None:
            per_user = tokens / self.of(phase.users)[active]
            yield f"active_{name}_throughput_per_user", weighted_statistics(per_user, busy, _PER_USER)
            idle = max(lengths.sum() - busy.sum(), 0.0)
            per_user, busy = np.append(per_user, 0.0), np.append(busy, idle)
            yield f"effective_{name}_throughput_per_user", weighted_statistics(per_user, busy, _PER_USER)


def _bin_range(width: int, window: Window) -> tuple[int, int]:
    return window[0] // width, -(-window[1] // width)
