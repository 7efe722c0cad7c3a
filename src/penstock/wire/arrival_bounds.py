"""The earliest moment at which the data of a read can have arrived. No I/O."""

from __future__ import annotations


class ArrivalBounds:
    """Follows the reads of one socket and the kernel's counts of what the socket has received.

    A read of one segment has an exact stamp. A read of several carries the stamp of the newest; the others arrived after the
    last moment at which the socket was known to be empty: before the previous read, unless that left data behind, when the
    request was sent, or at the loop's last mark (`LoopMarks`).
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._segments = 0
        self._unassigned = 0
        """Segments that were counted with an earlier read and may belong to the next one."""
        self._empty_at = 0

    def sent(self, at: int) -> None:
        """A request is about to be sent: its reply arrives later than this."""
        self._empty_at = at

    def read(self, size: int, drained: bool, before: int, known_empty: int, segments: int, received: int) -> int | None:
        """Return the earliest possible arrival (monotonic ns), or None if the read's stamp is exact.

        `size` bytes were read, no earlier than `before`; `drained` tells that nothing was left then. `segments` and `received`
        are the socket's totals of data segments and bytes, taken after the read, so they may include data that arrived since.
        """
        covered = segments - self._segments + self._unassigned
        self._segments = segments
        self._bytes += size
        self._unassigned = 0 if received == self._bytes else max(0, covered - 1)
        if covered == 1:
            if drained:
                self._empty_at = before
            return None
        return self.read_without_stamp(drained, before, known_empty)

    def read_without_stamp(self, drained: bool, before: int, known_empty: int) -> int:
        """Return the earliest possible arrival of a read that has no stamp, or whose stamp is one of several."""
        earliest = known_empty if known_empty > self._empty_at else self._empty_at
        if drained:
            self._empty_at = before
        return earliest
