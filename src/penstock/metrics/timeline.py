"""Accumulate prefill, decode and tokens in flight over time, for the metrics of `groups.timeline`.

Numbers of requests are exact. Tokens are summed in bins of 10 ms (`step_grid`), so memory does not grow with their number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import IntEnum
from math import nan

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.concurrency import Levels, count_levels
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


class Timeline:
    """Takes the successful streamed requests of a phase. Add all of them, then call `metrics` once."""

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

    def metrics(self, span: tuple[int, int]) -> dict[str, Stats]:
        """Return the statistics over `span`, the first start and the last end of all requests of the phase."""
        self._flush()
        if not self._starts or span[0] >= span[1]:
            return {}
        return {tag: stats for tag, stats in self._statistics(span) if stats is not None}

    def _statistics(self, span: tuple[int, int]) -> Iterator[tuple[str, Stats | None]]:
        window = span[1] - span[0]
        prefill = count_levels(self._starts, self._firsts)
        decode = count_levels(self._firsts, self._ends)
        yield "effective_prefill_concurrency", prefill.statistics("requests", window)
        yield "effective_decode_concurrency", decode.statistics("requests", window)
        bins = _Bins(self._grid, span)
        of = _Function
        if self._inputs_known:
            tokens, users = bins.integrals(of.PREFILL_RATE), bins.integrals(of.PREFILLING)
            yield from bins.throughput("prefill", tokens, bins.busy(prefill), users)
        decoded = self._outputs_known and self._has_gaps
        if decoded:
            tokens, users = bins.integrals(of.DECODE_RATE), bins.integrals(of.DECODING)
            yield from bins.throughput("decode", tokens, bins.busy(decode), users)
        if self._inputs_known and decoded:
            tokens = bins.integrals(of.PREFILL_RATE) + bins.integrals(of.DECODE_RATE)
            yield from bins.throughput("total", tokens, bins.busy(count_levels(self._starts, self._ends)))
        if self._inputs_known and self._outputs_known:
            in_flight = np.maximum(bins.integrals(of.TOKENS), 0) / bins.lengths
            yield "tokens_in_flight", weighted_statistics(in_flight, bins.lengths, "tokens")


class _Bins:
    """The bins of a grid that a span of time covers."""

    def __init__(self, grid: StepGrid, span: tuple[int, int]) -> None:
        width = grid.width
        self._grid = grid
        self._first, self._last = span[0] // width, -(-span[1] // width)
        edges = np.arange(self._first, self._last + 1, dtype=np.float64) * width
        self.lengths: Values = np.diff(np.clip(edges, *span))
        """How much of each bin the span covers, in ns."""

    def integrals(self, function: int) -> Values:
        return self._grid.integrals(function, self._first, self._last)

    def busy(self, levels: Levels) -> Values:
        """Return the nanoseconds of each bin in which there was at least one interval."""
        grid = StepGrid(1, self._grid.width)
        grid.add(levels.begins, {0: np.ones(len(levels.begins))})
        grid.add(levels.ends, {0: -np.ones(len(levels.ends))})
        return grid.integrals(0, self._first, self._last)

    def throughput(
        self, name: str, tokens: Values, busy: Values, users: Values | None = None
    ) -> Iterator[tuple[str, Stats | None]]:
        """Yield the metrics of tokens per bin: over all the time, and over the time in which there was a request.

        `users` are the request-nanoseconds of each bin.
        """
        active = busy > 0
        # Rates are sums of many terms, so a bin without a request can hold a rounding error.
        tokens = np.where(active, np.maximum(tokens, 0), 0) * 1e9
        yield f"effective_{name}_throughput", weighted_statistics(tokens / self.lengths, self.lengths, _PER_SECOND)
        tokens, busy = tokens[active], busy[active]
        yield f"active_{name}_throughput", weighted_statistics(tokens / busy, busy, _PER_SECOND)
        if users is not None:
            per_user = tokens / users[active]
            yield f"active_{name}_throughput_per_user", weighted_statistics(per_user, busy, _PER_USER)
            per_user, busy = np.append(per_user, 0.0), np.append(busy, self.lengths.sum() - busy.sum())
            yield f"effective_{name}_throughput_per_user", weighted_statistics(per_user, busy, _PER_USER)
