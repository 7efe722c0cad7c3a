"""Runs slow inspections in threads, and those of large bodies in processes.

Most inspections take a fraction of a millisecond and run inline: a round trip to a thread costs 0.1 ms. Larger or slower ones
run in a thread, where searches release the GIL so that the event loop keeps serving other requests. Parsing does not release
it, so a body with much text or many values goes to another process (`body_process`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.gateway.body_process import BodyProcesses, Work
from penstock.gateway.guardrails.search_budget import QUICK_S, InspectionTimeout, SearchBudgets

INLINE_BYTES = 1 << 16
"""Parsing and searching this many bytes takes about 1 ms."""
_PROCESS_BYTES = 1 << 19
_PROCESS_VALUES = 10_000
"""A body with more bytes, or more values, is inspected in another process: a thread would hold the GIL for more than 10 ms
at a time."""


_T = TypeVar("_T")
_threads = ThreadPoolExecutor(4, "inspection")
"""Several threads, so that one hostile text does not delay other inspections."""
_processes = BodyProcesses()
_process_threads = ThreadPoolExecutor(2, "body-process")
"""Each of these threads waits for a process."""
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


def is_large(body: bytes) -> bool:
    """Return True if a body has to be inspected in another process. Commas in texts count as values."""
    return len(body) > _PROCESS_BYTES or has_many_values(body)


def has_many_values(body: bytes) -> bool:
    return len(body) > INLINE_BYTES and body.count(b",") > _PROCESS_VALUES


def run_in_process(work: Work, arguments: tuple[Any, ...], body: bytes) -> Awaitable[tuple[Any, bytes]]:
    """Run `work` on a body in another process; see `BodyProcesses.run`."""
    return _run(_process_threads, lambda: _processes.run(work, arguments, body))


def run_in_thread(work: Callable[[], _T]) -> Awaitable[_T]:
    return _run(_threads, work)


def _run(threads: ThreadPoolExecutor, work: Callable[[], _T]) -> Awaitable[_T]:
    verdict = asyncio.get_running_loop().run_in_executor(threads, work)
    _pending.add(verdict)
    verdict.add_done_callback(_pending.discard)
    return verdict


def pending_inspections() -> int:
    """Return the number of inspections that run in a thread or a process, or wait for one."""
    return len(_pending)
