"""Child processes: how many are useful, how to start them, and how they end with their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio
    import subprocess
    from multiprocessing.connection import Connection

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_OPEN_MAX = 10_240
"""macOS refuses a higher limit, even if it reports none."""


def cores() -> int:
    """Return how many cores this process may use; a container or `taskset` may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spawn(module: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start `python -m module` with a pipe as standard input, which is closed when this process ends (`on_closed_stdin`).

    `options` are those of `subprocess.Popen`. The child finds this package wherever it is installed, and imports nothing
    from the working directory.
    """
    import subprocess

    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.environ.get("PYTHONPATH")
    options.setdefault("stdin", subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": source if not path else source + os.pathsep + path},
        **options,
    )


def fork() -> int:
    """Fork a child that ignores SIGINT, SIGTERM and SIGHUP from its first instruction on.

    Ctrl-C goes to the whole process group. A child that handled it would unwind the stack that it shares with the parent.
    """
    ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ignored)
    try:
        pid = os.fork()
        if pid == 0:
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def can_fork() -> bool:
    """Return whether `start_child` is safe: a child has none of the threads of its parent, and Ray has its own threads."""
    return sys.platform == "linux" and threading.active_count() == 1 and "ray" not in sys.modules


def start_child(function: Callable[[Callable[[Any], None]], Any]) -> tuple[Connection, int]:
    """Call a function in a forked child. Return a connection to it and its id.

    The connection receives what the function sends with its argument, and at last what it returns or the error that it raises.
    The child is killed when its parent ends.
    """
    from multiprocessing import Pipe

    own, other = Pipe()
    parent = os.getpid()
    child = fork()
    if child:
        other.close()
        return own, child
    try:
        own.close()
        if end_with_parent(parent, signal.SIGKILL):
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads were not forked
            other.send(function(other.send))
    except BaseException as error:
        with contextlib.suppress(Exception):
            other.send(error)
    finally:
        os._exit(0)


def in_background(function: Callable[[], T]) -> Callable[[], T]:
    """Begin to call a function in a child process, and return a function that waits for its result.

    If no child can be forked or it is killed, the function is called when its result is wanted.
    """
    if not can_fork() or cores() < 2:
        return function
    connection, child = start_child(lambda _: function())

    def wait() -> T:
        try:
            answer = connection.recv()
        except EOFError:
            answer = function()
        finally:
            connection.close()
            os.waitpid(child, 0)
        if isinstance(answer, BaseException):
            raise answer
        found: T = answer
        return found

    return wait


def on_closed_stdin(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call `callback` when the parent of this process, which `spawn` started, has ended.

    Another child of the parent may have inherited the pipe and keep it open; `end_with_parent` covers that case.
    """
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
            callback()

    loop.add_reader(stdin, readable)


def end_with_parent(parent: int, number: signal.Signals) -> bool:
    """Have the kernel send this signal when the parent ends; return False if it has ended already.

    Only Linux can do this, and there the parent is the thread that started this process.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def parent_watch(parent: int) -> Callable[[], None] | None:
    """Return a function that ends this process if the parent has ended, to be called regularly; None on Linux, where
    `end_with_parent` suffices."""
    if sys.platform == "linux":
        return None

    def exit_if_orphaned() -> None:
        if os.getppid() != parent:
            os._exit(1)

    return exit_if_orphaned


def descriptor_limit() -> int:
    """Return the highest limit of open files that a process may set for itself."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if sys.platform == "darwin":
        return _OPEN_MAX
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def raise_descriptor_limit(needed: int | None = None) -> int:
    """Raise the limit of open files to `needed`, or as far as the system allows, and return the limit. Never lower it.

    Every connection is an open file, and the usual limit is 1,024.
    """
    import resource

    infinite = resource.RLIM_INFINITY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed is None or (hard != infinite and needed > hard):
        needed = hard
    for limit in (needed, _OPEN_MAX):
        if soft == infinite or (limit != infinite and soft >= limit):
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            continue
        soft = limit
        break
    return sys.maxsize if soft == infinite else soft
