"""The interface of a tokenizer: it counts, encodes and decodes plain text, and adds no special tokens such as BOS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

Source = Literal["builtin", "package", "folder", "file", "cache", "hub"]
"""Where the vocabulary was read from. `package` is a data file of an installed Python package."""

_CHUNK = 64
"""Texts per task: small enough to keep all threads busy, large enough that the cost of a task does not matter."""


class Tokenizer(Protocol):
    """Implementations can be pickled, so that a process that counts does not need the hub or a cache."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> Source: ...

    @property
    def size(self) -> int:
        """The number of token ids."""
        ...

    def count(self, text: str) -> int: ...

    def count_many(self, texts: Sequence[str], threads: int = 1) -> list[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def __hash__(self) -> int: ...


def count_in_threads(count: Callable[[Sequence[str]], list[int]], texts: Sequence[str], threads: int) -> list[int]:
    """Count in several threads. Both tokenizer libraries release the GIL while they encode."""
    if threads <= 1 or len(texts) <= 1:
        return count(texts)
    from concurrent.futures import ThreadPoolExecutor

    size = max(1, min(_CHUNK, -(-len(texts) // threads)))
    chunks = [texts[start : start + size] for start in range(0, len(texts), size)]
    with ThreadPoolExecutor(threads) as pool:
        return [n for counts in pool.map(count, chunks) for n in counts]
