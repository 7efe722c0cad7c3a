"""State that the parent and its workers share in memory: commands from the parent, counters from the workers.

Each number has one writer and is 8 bytes, aligned, so a reader sees the old or the new value and never a mix.
"""

from __future__ import annotations

import mmap

__all__ = ["CONNECTED", "ENDED", "FAILED", "IN_FLIGHT", "PHASE_DONE", "READY", "SENT", "SharedState"]

_GLOBALS = 8
_PER_WORKER = 16

_STOP, _PHASE, _PHASE_START, _INDEXING, _CHANGED_FILE = range(5)

# Counters of a worker, for `set`, `get`, `total` and `minimum`. PHASE_DONE is the number of phases that the worker has done.
READY, PHASE_DONE, SENT, ENDED, FAILED, IN_FLIGHT, CONNECTED = range(7)


class SharedState:
    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory = mmap.mmap(-1, 8 * (_GLOBALS + _PER_WORKER * workers))
        self._values = memoryview(self._memory).cast("q")

    # -- commands -----------------------------------------------------------------------------------------------------

    @property
    def stop(self) -> int:
        """0: continue; 1: send nothing more; 2: cancel the requests in flight, too."""
        return self._values[_STOP]

    @stop.setter
    def stop(self, level: int) -> None:
        self._values[_STOP] = level

    def start_phase(self, phase: int, start: int) -> None:
        """Start phase `phase` (from 0) at `start` on the monotonic clock, which all processes of a machine share."""
        self._values[_PHASE_START] = start
        self._values[_PHASE] = phase + 1

    def phase_start(self, phase: int) -> int | None:
        """Return when phase `phase` starts, or None while the parent has not started it."""
        return self._values[_PHASE_START] if self._values[_PHASE] > phase else None

    @property
    def indexing(self) -> bool:
        """True while the input files are still being indexed."""
        return bool(self._values[_INDEXING])

    @indexing.setter
    def indexing(self, value: bool) -> None:
        self._values[_INDEXING] = value

    @property
    def changed_file(self) -> int:
        """Number (from 1) of an input file in which a worker did not find a body any more; 0 for none."""
        return self._values[_CHANGED_FILE]

    @changed_file.setter
    def changed_file(self, number: int) -> None:
        self._values[_CHANGED_FILE] = number

    # -- counters -----------------------------------------------------------------------------------------------------

    def set(self, worker: int, counter: int, value: int) -> None:
        self._values[_GLOBALS + worker * _PER_WORKER + counter] = value

    def get(self, worker: int, counter: int) -> int:
        return self._values[_GLOBALS + worker * _PER_WORKER + counter]

    def total(self, counter: int) -> int:
        return sum(self.get(worker, counter) for worker in range(self.workers))

    def minimum(self, counter: int) -> int:
        return min(self.get(worker, counter) for worker in range(self.workers))
