"""The share of one worker in the work of a phase."""

from __future__ import annotations

from typing import NamedTuple


class Share(NamedTuple):
    """One worker's number, and the number of workers."""

    worker: int = 0
    workers: int = 1


def split(total: int, share: Share) -> int:
    """Return this worker's part of `total` items that are assigned round robin; 0 for a worker without a share."""
    return max(0, (total - share.worker + share.workers - 1) // share.workers)
