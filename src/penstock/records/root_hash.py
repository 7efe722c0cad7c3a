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

from penstock.files import append_file

__all__ = ["RootHash", "memory_map", "schedule_key", "schedule_keys", "session_key"]

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
    def __init__(self, scratch: str, name: str = "root") -> None:
        """`scratch` is a folder for temporary files."""
        self._paths = (os.path.join(scratch, f"{name}-keys"), os.path.join(scratch, f"{name}-digests"))
        self._keys, self._digests = bytearray(), bytearray()
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
        for path, buffer in zip(self._paths, (self._keys, self._digests), strict=True):
            with open(path, "ab") as file:
                file.write(buffer)
            buffer.clear()

    def merge(self, other: RootHash) -> None:
        """Take over the digests of another object."""
        self._write()
        other._write()
        for path, part in zip(self._paths, other._paths, strict=True):
            append_file(path, part)
        self.requests += other.requests

    def root(self) -> str:
        """Return the root hash. Call this once, after the last `add`."""
        self._write()
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
