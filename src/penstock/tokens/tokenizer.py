"""What a tokenizer is here: it counts, encodes and decodes plain text, and never adds special tokens (BOS etc.)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

__all__ = ["Source", "Tokenizer", "spread"]

Source = Literal["builtin", "folder", "file", "cache", "hub"]

_CHUNK = 64
"""Texts per task of a thread: few enough that both cores stay busy, many enough that handing over costs nothing."""


class Tokenizer(Protocol):
    """Implementations can be pickled, so that a process that counts needs no hub and no cache of its own."""

    @property
    def name(self) -> str:
        """What to show the user."""
        ...

    @property
    def source(self) -> Source: ...

    def count(self, text: str) -> int: ...

    def count_many(self, texts: Sequence[str], threads: int = 1) -> list[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def spread(count: Callable[[Sequence[str]], list[int]], texts: Sequence[str], threads: int) -> list[int]:
    """Count in `threads` threads; both underlying libraries release the GIL while they encode."""
    if threads <= 1 or len(texts) <= 1:
        return count(texts)
    from concurrent.futures import ThreadPoolExecutor

    size = max(1, min(_CHUNK, -(-len(texts) // threads)))
    chunks = [texts[start : start + size] for start in range(0, len(texts), size)]
    with ThreadPoolExecutor(threads) as pool:
        return [n for counts in pool.map(count, chunks) for n in counts]
