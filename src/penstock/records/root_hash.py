"""The root hash of a run: SHA-256 over the digests of all sent bodies, in the order of the schedule.

Digests arrive in the order in which requests end, and the schedule's order is only known at the end of the run. Until
then they are kept in files, 40 bytes a request.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RootHash", "memory_map", "schedule_key"]

_BLOCK = 65_536
_BUFFER = 1 << 20
_PART = 1 << 20
_SAMPLE = 64


def schedule_key(phase: int, number: int, turn: int) -> int:
    """Return a key that sorts requests in the order of the schedule."""
    return phase << 58 | number << 20 | turn


class RootHash:
    def __init__(self, scratch: str, name: str = "root") -> None:
        """`scratch` is a folder for temporary files."""
        self._paths = (os.path.join(scratch, f"{name}-keys"), os.path.join(scratch, f"{name}-digests"))
        self._keys = open(self._paths[0], "wb", buffering=_BUFFER)  # noqa: SIM115
        self._digests = open(self._paths[1], "wb", buffering=_BUFFER)  # noqa: SIM115
        self.requests = 0

    def add(self, key: int, digest: bytes) -> None:
        self._keys.write(key.to_bytes(8, "little"))
        self._digests.write(digest)
        self.requests += 1

    def add_many(self, keys: NDArray[np.int64], digests: Sequence[bytes]) -> None:
        self._keys.write(keys.astype("<i8").tobytes())
        self._digests.write(b"".join(digests))
        self.requests += len(keys)

    def root(self) -> str:
        """Return the root hash. Call this once, after the last `add`."""
        self._keys.close()
        self._digests.close()
        root = sha256()
        if self.requests:
            keys = memory_map(self._paths[0], np.dtype("<i8"))
            digests = memory_map(self._paths[1], np.dtype("V32"))
            for chosen in _in_order(keys):
                for first in range(0, len(chosen), _BLOCK):
                    root.update(digests[chosen[first : first + _BLOCK]].tobytes())
        return root.hexdigest()


def _in_order(keys: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """Yield the indexes of the keys in ascending order of keys, in parts of about a million."""
    sample = np.sort(keys[::_SAMPLE])
    parts = -(-len(keys) // _PART)
    edges = [int(sample[len(sample) * part // parts]) for part in range(1, parts)]
    for part in range(parts):
        found = []
        for first in range(0, len(keys), _PART):
            block = keys[first : first + _PART]
            wanted = np.ones(len(block), dtype=np.bool_)
            if part:
                wanted &= block >= edges[part - 1]
            if part < len(edges):
                wanted &= block < edges[part]
            found.append(np.flatnonzero(wanted) + first)
        indexes = np.concatenate(found)
        yield indexes[np.argsort(keys[indexes], kind="stable")]


def memory_map(path: str, kind: np.dtype[Any]) -> NDArray[Any]:
    array: NDArray[Any] = np.memmap(path, dtype=kind, mode="r")
    return array
