"""Prompts of a dataset that repeat an earlier one, or begin like one. A server with a prefix cache answers such prompts faster.

Only the first turns of conversations are compared, because later ones contain the earlier ones anyway. Hashes of the prompts,
and of their prefixes of certain lengths, are kept in sets of at most 131,072 each. When a set is full, it keeps half of the
possible hashes, and each match counts twice: counts are exact up to that number and estimates beyond it.
"""

from __future__ import annotations

import contextlib
import os
from hashlib import blake2b

import msgspec

_FILE = "prompt_reuse.json"
_MAX_HASHES = 1 << 17
_SHORTEST = 256
"""Bytes, about 60 tokens. Prompts that have less in common count as different."""

_LENGTHS = (_SHORTEST, *sorted(factor * _SHORTEST << power for factor in (2, 3) for power in range(16)))
"""Lengths of the prefixes that are compared: 256, 512, 768, 1024, 1536, 2048, 3072, …"""


class ReuseCounts(msgspec.Struct):
    """Counts of the first turns of conversations."""

    prompts: int = 0
    repeated: int = 0
    """Prompts that an earlier one equals."""
    sharing: int = 0
    """Prompts of which at least the first 256 bytes are those of an earlier one."""
    size: int = 0
    """Bytes of all prompts."""
    shared_size: int = 0
    """Leading bytes of prompts that an earlier prompt has, too. Prefixes are compared at certain lengths only, so up to half
    of a shared prefix is not counted."""

    def save(self, folder: str) -> None:
        """Write the counts to the folder of a payload store."""
        path = os.path.join(folder, _FILE)
        with open(f"{path}.new", "wb") as file:
            file.write(msgspec.json.encode(self))
        os.replace(f"{path}.new", path)

    @classmethod
    def load(cls, folder: str) -> ReuseCounts:
        with contextlib.suppress(OSError, msgspec.MsgspecError), open(os.path.join(folder, _FILE), "rb") as file:
            return msgspec.json.decode(file.read(), type=cls)
        return cls()


class PromptReuse:
    """Compares each prompt with the earlier ones."""

    def __init__(self, max_hashes: int = _MAX_HASHES) -> None:
        self.counts = ReuseCounts()
        self._prompts, self._prefixes = _Hashes(max_hashes), _Hashes(max_hashes)

    def add(self, prompt: bytes) -> None:
        counts = self.counts
        counts.prompts += 1
        counts.size += len(prompt)
        counts.repeated += self._prompts.add(_hash(prompt))
        begin, key = 0, 0
        for end in _LENGTHS:
            if end > len(prompt):
                break
            key = _hash(prompt[begin:end], key)
            matches = self._prefixes.add(key)
            counts.shared_size += matches * (end - begin)
            if not begin:
                counts.sharing += matches
            begin = end


def _hash(text: bytes, key: int = 0) -> int:
    """Return a hash that is the same in every run, so that estimates are, too."""
    return int.from_bytes(blake2b(text, digest_size=8, key=key.to_bytes(8)).digest())


class _Hashes:
    """A set of hashes of limited size."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: set[int] = set()
        self._mask = 0

    def add(self, key: int) -> int:
        """Add a hash. Return for how many matches it stands: 0 if it is new or is not kept."""
        if key & self._mask:
            return 0
        if key in self._kept:
            return self._mask + 1
        self._kept.add(key)
        if len(self._kept) > self._limit:
            self._mask = 2 * self._mask + 1
            self._kept = {each for each in self._kept if not each & self._mask}
        return 0
