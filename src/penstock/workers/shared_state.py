"""A small block of shared memory: counters up from the workers, commands down from the parent. No message per request.

Each number has one writer, and is 8 bytes aligned, so reading it while it is written gives the old or the new value.
"""

from __future__ import annotations

import mmap

__all__ = ["SharedState"]

_GLOBALS = 8
_PER_WORKER = 16

# places of the commands
_STOP, _GO_PHASE, _GO_TIME, _GROWING, _BROKEN = range(5)
# places in a worker's block
READY, PHASE_DONE, SENT, ENDED, FAILED, LIVE, CONNECTED = range(7)


class SharedState:
    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory = mmap.mmap(-1, 8 * (_GLOBALS + _PER_WORKER * workers))
        self._cells = memoryview(self._memory).cast("q")

    # -- commands -----------------------------------------------------------------------------------------------------

    @property
    def stop(self) -> int:
        """0: go on; 1: send nothing more; 2: end what is in flight, too."""
        return self._cells[_STOP]

    @stop.setter
    def stop(self, level: int) -> None:
        self._cells[_STOP] = level

    def go(self, phase: int, at: int) -> None:
        """Phase `phase` (from 0) starts at `at` on the monotonic clock, which all processes of a machine share."""
        self._cells[_GO_TIME] = at
        self._cells[_GO_PHASE] = phase + 1

    def gone(self, phase: int) -> int | None:
        """When that phase starts, once the parent has said so."""
        return self._cells[_GO_TIME] if self._cells[_GO_PHASE] > phase else None

    @property
    def growing(self) -> bool:
        """The dataset is still being indexed, ahead of the sending."""
        return bool(self._cells[_GROWING])

    @growing.setter
    def growing(self, value: bool) -> None:
        self._cells[_GROWING] = value

    @property
    def broken(self) -> int:
        """The number (from 1) of a file of the user's in which a body was not there any more; 0 for none."""
        return self._cells[_BROKEN]

    @broken.setter
    def broken(self, file: int) -> None:
        self._cells[_BROKEN] = file

    # -- counters -----------------------------------------------------------------------------------------------------

    def set(self, worker: int, place: int, value: int) -> None:
        self._cells[_GLOBALS + worker * _PER_WORKER + place] = value

    def get(self, worker: int, place: int) -> int:
        return self._cells[_GLOBALS + worker * _PER_WORKER + place]

    def total(self, place: int) -> int:
        return sum(self.get(worker, place) for worker in range(self.workers))

    def least(self, place: int) -> int:
        return min(self.get(worker, place) for worker in range(self.workers))
