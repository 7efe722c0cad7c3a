"""Accumulate prefill, decode and tokens in flight over time, for the metrics of `groups.timeline`.

Numbers of requests are exact. Tokens are summed in bins of 10 ms (`step_grid`), so memory does not grow with their number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.concurrency import Levels, Window, count_levels
from penstock.metrics.metric import Measures
from penstock.metrics.statistics import Column, Stats, Values, weighted_statistics
from penstock.metrics.step_grid import StepGrid
from penstock.records.record import Record

__all__ = ["Timeline"]

_BATCH_STAMPS = 16_384
_ROW = 7
_NO_GAP = np.zeros(1)
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
    """Takes the successful streamed requests of a phase. Add all of them, then call `over` once."""

    def __init__(self, prefix: str) -> None:
        """`prefix` starts the paths of the files for large columns."""
        self._starts = Column(f"{prefix}-timeline-starts.f64")
        self._firsts = Column(f"{prefix}-timeline-firsts.f64")
        self._ends = Column(f"{prefix}-timeline-ends.f64")
        self._grid = StepGrid(len(_Function))
        self._inputs_known = self._outputs_known = self._has_gaps = False
        self._rows = array("d")
        self._gaps: list[Values] = []
        """For each request, one gap of 0 for its first stamp, and the gaps after it, in ms."""
        self._pieces: dict[int, list[int]] = {}
        """By the row of a request, its pieces of content with each stamp, if stamps have different numbers of them."""
        self._buffered = 0

    def add(self, record: Record, measures: Measures) -> None:
        values = measures.values
        if "time_to_first_token" not in values:
            return
        gaps = measures.lists.get("inter_chunk_latency")
        count = 0
        self._gaps.append(_NO_GAP)
        if gaps is not None:
            self._gaps.append(gaps)
            count = len(gaps)
        pieces = sum(record.pieces)
        if pieces > count + 1:
            self._pieces[len(self._rows) // _ROW] = record.pieces
        length, inputs = values.get("output_sequence_length", nan), values.get("input_sequence_length", nan)
        self._rows.extend((record.start, record.stamps[0], record.end, inputs, length, count, pieces))
        self._buffered += 1 + count
        if self._buffered >= _BATCH_STAMPS:
            self._flush()

    def _flush(self) -> None:
        """Add the buffered requests to the grid. In batches, a request of 100 chunks costs about 10 µs."""
        if not self._buffered:
            return
        starts, prefills, ends, inputs, lengths, counts, pieces = np.frombuffer(self._rows).reshape(-1, _ROW).T
        self._inputs_known |= not np.isnan(inputs).all()
        self._outputs_known |= not np.isnan(lengths).all()
        inputs, lengths = np.nan_to_num(inputs), np.nan_to_num(lengths)
        firsts = starts + prefills
        for column, times in ((self._starts, starts), (self._firsts, firsts), (self._ends, ends)):
            column.extend(times)
        self._add_requests(starts, firsts, ends, inputs, lengths)
        self._has_gaps |= bool(counts.any())
        # The first piece of content holds one token, and the others have equal shares of the rest.
        shares = np.maximum(lengths - 1, 0) / np.maximum(pieces - 1, 1)
        self._add_chunks(firsts, lengths, counts.astype(np.intp), shares)
        self._rows, self._gaps, self._pieces, self._buffered = array("d"), [], {}, 0

    def _add_requests(self, starts: Values, firsts: Values, ends: Values, inputs: Values, lengths: Values) -> None:
        ones = np.ones(len(starts))
        rates = inputs / np.maximum(firsts - starts, 1)
        add, of = self._grid.add, _Function
        add(starts, {of.PREFILL_RATE: rates, of.PREFILLING: ones, of.TOKENS: inputs})
        add(firsts, {of.PREFILL_RATE: -rates, of.PREFILLING: -ones, of.DECODING: ones})
        add(ends, {of.DECODING: -ones, of.TOKENS: -(inputs + lengths)})

    def _add_chunks(self, firsts: Values, lengths: Values, counts: NDArray[np.intp], shares: Values) -> None:
        """Lay the tokens on the times of the chunks: at a constant rate during each gap, and as steps at its end."""
        first = np.cumsum(counts) - counts + np.arange(len(counts))
        """The index of each request's first stamp among all stamps."""
        gaps = np.concatenate(self._gaps)
        gaps *= 1e6
        times = np.cumsum(gaps)
        times += np.repeat(firsts - times[first], counts + 1)
        tokens = np.repeat(shares, counts + 1)
        tokens[first] = 0
        for row, pieces in self._pieces.items():
            tokens[first[row] : first[row] + len(pieces)] *= pieces
        gaps[first] = 1  # these hold no tokens
        rates = tokens / gaps
        changes = -rates
        changes[:-1] += rates[1:]
        tokens[first] = lengths - np.add.reduceat(tokens, first)
        self._grid.add(times, {_Function.DECODE_RATE: changes, _Function.TOKENS: tokens})

    def over(self, windows: Sequence[Window], whole: Window) -> list[dict[str, Stats]]:
        """Return the statistics over each of the windows. `whole` is the window of the phase, which contains them."""
        self._flush()
        if not self._starts:
            return [{} for _ in windows]
        bins = [_Bins(self._grid.width, window, whole) for window in windows]
        found: list[dict[str, Stats | None]] = [{} for _ in windows]
        # One after the other, because each takes 16 bytes per request.
        prefill = self._count(found, "prefill", windows, whole, count_levels(self._starts, self._firsts))
        decode = self._count(found, "decode", windows, whole, count_levels(self._firsts, self._ends))
        phases: dict[str, _Phase] = {}
        if self._inputs_known:
            phases["prefill"] = prefill
        if self._outputs_known and self._has_gaps:
            phases["decode"] = decode
        if len(phases) == 2:
            levels = count_levels(self._starts, self._ends)
            busy = self._busy(whole, levels)
            levels.close()
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
        levels: Levels,
    ) -> _Phase:
        """Add the concurrency in prefill or decode to the statistics, and return what happened in each bin."""
        for stats, window in zip(found, windows, strict=True):
            stats[f"effective_{name}_concurrency"] = levels.statistics("requests", window)
        busy = self._busy(whole, levels)
        levels.close()
        rate, users = _FUNCTIONS[name]
        return _Phase(self._integrals(whole, rate), busy, self._integrals(whole, users))

    def _integrals(self, window: Window, function: int) -> Values:
        # Sums of many rates leave rounding errors around 0.
        return np.maximum(self._grid.integrals(function, *_bin_range(self._grid.width, window)), 0)

    def _busy(self, window: Window, levels: Levels) -> Values:
        """Return the nanoseconds of each bin in which there was at least one interval."""
        grid = StepGrid(1, self._grid.width)
        begins, ends = levels.busy()
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
