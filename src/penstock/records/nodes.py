"""The nodes of a cluster, as they are in the log of a run."""

from __future__ import annotations

import msgspec


class LoggedNode(msgspec.Struct, frozen=True):
    """A node with its workers. The times in its records are converted to the clock of the run with `offset`."""

    name: str
    workers: tuple[int, ...]
    """Numbers of its workers in the run."""
    offset: int
    """Monotonic clock of the node minus that of the run, in ns, before the first phase."""
    error: int
    """Largest error of the offset, in ns: half of the shortest round trip."""
    drift: int | None = None
    """How much the offset changed up to the end of the run, in ns; None if the node was lost."""
