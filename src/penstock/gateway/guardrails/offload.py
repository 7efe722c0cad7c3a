"""Runs slow inspections in threads.

Most inspections take a fraction of a millisecond and run inline: a round trip to a thread costs 0.1 ms. Large or slow ones
run in a thread, where searches release the GIL so that the event loop keeps serving other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.gateway.guardrails.search_budget import QUICK_S, InspectionTimeout, SearchBudgets

__all__ = ["INLINE_BYTES", "pending_inspections", "run_in_thread", "run_offloaded"]

INLINE_BYTES = 1 << 16
"""Parsing and searching this many bytes takes about 1 ms."""

_T = TypeVar("_T")
_threads = ThreadPoolExecutor(4, "inspection")
"""Several threads, so that one hostile text does not delay other inspections."""
_pending: set[asyncio.Future[Any]] = set()


async def run_offloaded(size: int, inspect: Callable[[SearchBudgets], _T], seconds: float) -> _T:
    """Run `inspect` inline, or in a thread if the input is large or the inline budget is exceeded.

    `inspect` may be called twice, so it must have no side effects when it raises `InspectionTimeout`.
    """
    if size <= INLINE_BYTES:
        try:
            return inspect(SearchBudgets(min(QUICK_S, seconds), final=False))
        except InspectionTimeout:
            pass
    return await run_in_thread(lambda: inspect(SearchBudgets(seconds)))


def run_in_thread(work: Callable[[], _T]) -> Awaitable[_T]:
    verdict = asyncio.get_running_loop().run_in_executor(_threads, work)
    _pending.add(verdict)
    verdict.add_done_callback(_pending.discard)
    return verdict


def pending_inspections() -> int:
    """Return the number of inspections that run in a thread or wait for one."""
    return len(_pending)
