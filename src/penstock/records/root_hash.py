"""The root hash of a run: SHA-256 over the digests of all sent bodies, in the order of the schedule.

Digests arrive in the order in which requests end, and the schedule's order is only known at the end of the run. Until
then they are kept in a scratch file, 40 bytes a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from penstock.scratch import Scratch, Spool

_BLOCK = 65_536
_BUFFER = 1 << 20
_PART = 1 << 20
_SAMPLE = 64


def session_key(phase: int, number: int) -> int:
    """Return a key that sorts sessions in the order of the schedule."""
    return phase << 34 | number


def schedule_key(phase: int, number: int, turn: int) -> int:
    """Return a key of 63 bits that sorts requests in the order of the schedule."""
    return session_key(phase, number) << 14 | turn


def schedule_keys(phase: int, numbers: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the keys of requests of one phase."""
    return session_key(phase, 0) + numbers << 14 | turns


class RootHash:
    def __init__(self, scratch: Scratch) -> None:
        self._keys, self._digests = bytearray(), bytearray()
        self._spools = Spool(scratch), Spool(scratch)
        """Those of the keys and of the digests."""
        self.requests = 0

    def add(self, key: int, digest: bytes) -> None:
        self._keys += key.to_bytes(8, "little")
        self._digests += digest
        self._count(1)

    def add_many(self, keys: NDArray[np.int64], digests: Sequence[bytes]) -> None:
        self._keys += keys.astype("<i8").tobytes()
        self._digests += b"".join(digests)
        self._count(len(keys))

    def _count(self, requests: int) -> None:
        self.requests += requests
        if len(self._digests) >= _BUFFER:
            self._write()

    def _write(self) -> None:
        for spool, buffer in zip(self._spools, (self._keys, self._digests), strict=True):
            spool.write(buffer)
            buffer.clear()

    def merge(self, other: RootHash) -> None:
        """Take over the digests of another object."""
        self._keys += other._keys
        self._digests += other._digests
        for spool, part in zip(self._spools, other._spools, strict=True):
            spool.merge(part)
        self._count(other.requests)

    def root(self, part: int = _PART, sample: int = _SAMPLE) -> str:
        """Return the root hash. Call this once, after the last `add`. About `part` keys are sorted at a time; their limits
        are taken from each `sample`th key."""
        self._write()
        root = sha256()
        if self.requests:
            keys, digests = (spool.as_array(kind) for spool, kind in zip(self._spools, ("<i8", "V32"), strict=True))
            for chosen in _in_order(keys, part, sample):
                for first in range(0, len(chosen), _BLOCK):
                    root.update(digests[chosen[first : first + _BLOCK]].tobytes())
        return root.hexdigest()


def _in_order(keys: NDArray[np.int64], size: int, step: int) -> Iterator[NDArray[np.intp]]:
    """Yield the indexes of the keys in ascending order of keys, in parts of about `size`."""
    sample = np.sort(keys[::step])
    parts = -(-len(keys) // size)
    edges = [int(sample[len(sample) * part // parts]) for part in range(1, parts)]
    for part in range(parts):
        found = []
        for first in range(0, len(keys), size):
            block = keys[first : first + size]
            wanted = np.ones(len(block), dtype=np.bool_)
            if part:
                wanted &= block >= edges[part - 1]
            if part < len(edges):
                wanted &= block < edges[part]
            found.append(np.flatnonzero(wanted) + first)
        indexes = np.concatenate(found)
        yield indexes[np.argsort(keys[indexes], kind="stable")]
