"""Counts of durations, and statistics about the measurement itself, by which the certificate judges its accuracy."""

from __future__ import annotations

import msgspec

_BUCKETS = 64
_SUB = 4  # buckets of a LogHistogram per power of two: a quantile is at most 25 % too high
_SKETCH_BITS = 4
_SKETCH_SUB = 1 << _SKETCH_BITS


class _Durations(msgspec.Struct, kw_only=True):
    """Durations in ns."""

    total: int = 0
    largest: int = 0
    n: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.n if self.n else 0.0


class LogHistogram(_Durations):
    """A histogram of durations with four buckets per power of two. Adding costs 0.2 µs."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (_BUCKETS * _SUB))

    def add(self, ns: int) -> None:
        if ns <= 0:
            ns = 1
        if ns > self.largest:  # noqa: PLR1730 (max() would cost a call)
            self.largest = ns
        self.total += ns
        self.n += 1
        top = ns.bit_length() - 1
        self.counts[top * _SUB + ((ns << 2) >> top & 3)] += 1

    def merge(self, other: LogHistogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
        self.n += other.n
        self.largest = max(self.largest, other.largest)

    def quantile(self, q: float) -> float:
        """Return an upper bound of the quantile in ns, at most 25 % too high; 0 for an empty histogram."""
        if not self.n:
            return 0.0
        rank = q * self.n
        seen = 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                top, quarter = divmod(bucket, _SUB)
                return min(float(self.largest), (1 << top) * (1 + (quarter + 1) / _SUB))
        return float(self.largest)


class DurationSketch(_Durations):
    """Counts of durations for live figures, in buckets that are at most 6.25 % wide: each worker fills one, and the run
    merges them.

    Adding takes 1.3 times as long as to a `LogHistogram`. Only buckets with a count exist, so that a message with a sketch
    stays small."""

    counts: dict[int, int] = {}

    def add(self, ns: int) -> None:
        if ns < _SKETCH_SUB:  # noqa: PLR1730 (max() would cost a call)
            ns = _SKETCH_SUB
        if ns > self.largest:  # noqa: PLR1730
            self.largest = ns
        self.total += ns
        self.n += 1
        top = ns.bit_length() - 1
        bucket = (top << _SKETCH_BITS) + (ns >> (top - _SKETCH_BITS)) - _SKETCH_SUB
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def merge(self, other: DurationSketch) -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total += other.total
        self.n += other.n
        self.largest = max(self.largest, other.largest)

    def since(self, earlier: DurationSketch) -> DurationSketch:
        """Return the durations that were added after `earlier`, a copy of this sketch at that time."""
        grown = {
            bucket: growth
            for bucket, count in self.counts.items()
            if (growth := count - earlier.counts.get(bucket, 0)) > 0
        }
        return DurationSketch(
            counts=grown, total=self.total - earlier.total, largest=self.largest, n=self.n - earlier.n
        )

    def below(self, exponent: int) -> int:
        """Return the number of durations below 2 ** `exponent` ns."""
        return sum(count for bucket, count in self.counts.items() if bucket < exponent << _SKETCH_BITS)

    def quantile(self, q: float) -> float:
        """Return the quantile in ns, interpolated within its bucket; 0 for an empty sketch."""
        rank = q * self.n
        seen = 0
        for bucket, count in sorted(self.counts.items()):
            if seen + count >= rank:
                top, part = divmod(bucket, _SKETCH_SUB)
                low = (1 << top) * (1 + part / _SKETCH_SUB)
                width = (1 << top) / _SKETCH_SUB
                return min(float(self.largest), low + width * max(0.0, rank - seen) / count)
            seen += count
        return float(self.largest)


class WireStats(msgspec.Struct):
    reads: int = 0
    stamped: int = 0
    """Reads with a kernel stamp."""
    delay: LogHistogram = msgspec.field(default_factory=LogHistogram)
    """From the kernel's stamp to the read."""
    connects: int = 0
    connect: LogHistogram = msgspec.field(default_factory=LogHistogram)
    """TCP and TLS connect time of each connection."""
    stale: int = 0
    """Requests sent again: the server closed the connection before it received them."""

    def clear(self) -> None:
        """Reset all values for the next phase."""
        fresh = WireStats()
        for name in self.__struct_fields__:
            setattr(self, name, getattr(fresh, name))
