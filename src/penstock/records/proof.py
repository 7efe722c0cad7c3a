"""One number for everything that was sent: SHA-256 over the digests of the bodies, in the order of the plan.

The digests come in the order in which requests ended, and the plan's order is only known at the end. Forty bytes a request
wait in files meanwhile.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RootHash", "mapped", "plan_key"]

_BLOCK = 65_536
_BUFFER = 1 << 20


def plan_key(phase: int, number: int, turn: int) -> int:
    """Sorts requests in the order of the plan."""
    return phase << 58 | number << 20 | turn


class RootHash:
    def __init__(self, scratch: str, name: str = "root") -> None:
        """`scratch` is a folder for files that are of no use afterwards."""
        self._paths = (os.path.join(scratch, f"{name}-keys"), os.path.join(scratch, f"{name}-digests"))
        self._keys = open(self._paths[0], "wb", buffering=_BUFFER)  # noqa: SIM115
        self._digests = open(self._paths[1], "wb", buffering=_BUFFER)  # noqa: SIM115
        self.requests = 0

    def add(self, key: int, digest: bytes) -> None:
        self._keys.write(key.to_bytes(8, "little"))
        self._digests.write(digest)
        self.requests += 1

    def root(self) -> str:
        """All are in."""
        self._keys.close()
        self._digests.close()
        whole = sha256()
        if self.requests:
            order = np.argsort(mapped(self._paths[0], np.dtype("<i8")), kind="stable")
            digests = mapped(self._paths[1], np.dtype("V32"))
            for first in range(0, self.requests, _BLOCK):
                whole.update(digests[order[first : first + _BLOCK]].tobytes())
        return whole.hexdigest()


def mapped(path: str, kind: np.dtype[Any]) -> NDArray[Any]:
    found: NDArray[Any] = np.memmap(path, dtype=kind, mode="r")
    return found
