"""Cores for the programs of a benchmark, so that they do not take each other's time on a machine with enough cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["CLIENT", "GATEWAY", "SERVER", "pinned_to"]

GATEWAY, SERVER, CLIENT = "gateway", "server", "client"
_MIN_CORES = 8


def _cores() -> list[int]:
    """Return the cores that this process may use, one of each pair of hyper-threads before the others."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

    def is_second(core: int) -> bool:
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        except OSError:
            return False
        return int(siblings.replace("-", ",").split(",")[0]) != core

    return sorted(allowed, key=is_second)


def _shares() -> dict[str, set[int]]:
    """A worker has an event loop and a thread for HTTP; the main process of a gateway has little to do."""
    cores = _cores()
    if len(cores) < _MIN_CORES:
        return {}
    return {GATEWAY: set(cores[:3]), SERVER: {cores[3]}, CLIENT: set(cores[4:])}


_SHARES = _shares()


@contextmanager
def pinned_to(role: str) -> Iterator[None]:
    """Run the block, and the programs that it starts, on the cores of a role. Without enough cores it changes nothing."""
    if role not in _SHARES:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _SHARES[role])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
