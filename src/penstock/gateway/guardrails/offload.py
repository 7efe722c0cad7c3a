"""Inspections beside the event loop.

Most take a fraction of a millisecond and are done at once: to hand one to a thread and back costs 0.1 ms. What is large, or
turns out to be slow, is done in a thread, where searches give up the interpreter's lock and everybody else is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.gateway.guardrails.search_budget import QUICK_S, SearchBudgets, Undecided

__all__ = ["paced"]

AT_ONCE_BYTES = 1 << 16
"""Reading and searching so many takes about 1 ms."""

_T = TypeVar("_T")
_threads = ThreadPoolExecutor(4, "inspection")
"""More than one, so that one hostile text does not keep the others waiting for all of its time."""


async def paced(size: int, inspect: Callable[[SearchBudgets], _T], seconds: float) -> _T:
    """`inspect` may be called twice; the first time it has changed nothing when it raises `Undecided`."""
    if size <= AT_ONCE_BYTES:
        try:
            return inspect(SearchBudgets(min(QUICK_S, seconds), last=False))
        except Undecided:
            pass
    return await asyncio.get_running_loop().run_in_executor(_threads, inspect, SearchBudgets(seconds))
