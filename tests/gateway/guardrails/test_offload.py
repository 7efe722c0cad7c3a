"""Inspections in threads."""

from __future__ import annotations

import asyncio
import threading

from penstock.gateway.guardrails.offload import pending_inspections, run_in_thread


def test_pending_inspections_are_counted() -> None:
    may_end = threading.Event()

    async def inspect() -> tuple[int, int]:
        verdicts = [run_in_thread(may_end.wait) for _ in range(6)]
        pending = pending_inspections()
        may_end.set()
        await asyncio.gather(*verdicts)
        return pending, pending_inspections()

    assert asyncio.run(inspect()) == (6, 0)
