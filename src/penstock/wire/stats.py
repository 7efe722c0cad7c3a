"""Statistics about the measurement itself: the certificate judges from them how accurate a run was."""

from __future__ import annotations

import msgspec

__all__ = ["LogHistogram", "WireStats"]

_BUCKETS = 64
_SUB = 4  # buckets per power of two: a quantile is at most 25 % too high


class LogHistogram(msgspec.Struct):
    """A histogram of durations in ns with four buckets per power of two. Adding costs 0.2 µs."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (_BUCKETS * _SUB))
    total: int = 0
    largest: int = 0
    n: int = 0

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

    @property
    def mean(self) -> float:
        return self.total / self.n if self.n else 0.0

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
