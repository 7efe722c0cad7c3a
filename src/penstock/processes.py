"""Processes of our own: how many are worth starting, and children that find this package and end with their parent."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import subprocess

__all__ = ["cores", "end_with_parent", "on_closed_stdin", "parent_watch", "raise_descriptor_limit", "spawn"]

_PR_SET_PDEATHSIG = 1
_OPEN_MAX = 10_240
"""More than this macOS refuses, also where it names no limit."""


def cores() -> int:
    """Those that this process may use: a container or `taskset` may leave it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spawn(module: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    """`python -m module` with a pipe as its standard input, whose end tells the child that this process is gone. It finds
    this package, however this process found it, and nothing in the working directory."""
    import subprocess

    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    known = os.environ.get("PYTHONPATH")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": home if not known else home + os.pathsep + known},
        **options,
    )


def on_closed_stdin(loop: asyncio.AbstractEventLoop, ended: Callable[[], object]) -> None:
    """The half of the child that `spawn` started. Another process of the parent's may have inherited the pipe and keep it
    open: where that can be, `end_with_parent` helps."""
    stdin = sys.stdin.fileno()
    os.set_blocking(stdin, False)

    def readable() -> None:
        try:
            closed = not os.read(stdin, 4096)
        except BlockingIOError:
            return
        except OSError:
            closed = True
        if closed:
            loop.remove_reader(stdin)
            ended()

    loop.add_reader(stdin, readable)


def end_with_parent(parent: int, by: signal.Signals) -> bool:
    """Have the system send this signal when the parent dies; only on Linux, and the thread that started this process counts
    as the parent. False when it is dead already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    return os.getppid() == parent


def parent_watch(parent: int) -> Callable[[], None] | None:
    """Where `end_with_parent` cannot arrange it: what to call now and then, to end this process when the parent is gone."""
    if sys.platform == "linux":
        return None

    def look() -> None:
        if os.getppid() != parent:
            os._exit(1)

    return look


def raise_descriptor_limit(wanted: int | None = None) -> int:
    """To `wanted`, or to all that the system allows; never lowers it. Returns what it is then. A connection is a descriptor:
    many of them should not end at the usual 1,024."""
    import resource

    infinite = resource.RLIM_INFINITY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted is None or (hard != infinite and wanted > hard):
        wanted = hard
    for limit in (wanted, _OPEN_MAX):
        if soft == infinite or (limit != infinite and soft >= limit):
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            continue
        soft = limit
        break
    return sys.maxsize if soft == infinite else soft
