"""Workers on this machine: a single one runs in this process, several run in forked children with shared memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

import uvloop

from penstock.errors import PenstockError, RunError, UserError, disk_full
from penstock.processes import cores, end_with_parent, fork, parent_watch, raise_descriptor_limit
from penstock.schedule.scheduler import Share
from penstock.wire.exchange import WireError
from penstock.workers.indexer import InputFiles
from penstock.workers.job import Job
from penstock.workers.phase_controller import PhaseController, RunProgress
from penstock.workers.preconnect import ConnectError
from penstock.workers.shared_state import PHASE_DONE, READY, SharedState
from penstock.workers.worker import Worker

__all__ = ["Outcome", "choose_workers", "max_workers", "raise_file_limit", "run"]

_POLL_S = 0.01
_USER_ERROR, _RUN_ERROR, _TRACEBACK = "u", "r", "f"
"""First character of an error message that a child writes to its pipe."""
_MESSAGE_END = "\0"
_MESSAGE_BYTES = 4000
"""Maximum length of a message. Writes of up to 4,096 bytes (PIPE_BUF) by several children are not interleaved."""
_SPARE_FILES = 64
"""Open files of a process besides its connections."""
_MAX_FILES = 1 << 20
_STREAMS_PER_WORKER = 512
"""500 streams of 100 tokens/s take about half of one core."""
_RATE_PER_WORKER = 2000
_REQUESTS_PER_WORKER = 20_000
"""A run with more requests has a fast server or is long. A second process helps the first case and harms neither."""


def max_workers(limit: int | None) -> int:
    """Return the user's limit, or by default one fewer than there are cores."""
    return max(1, cores() - 1) if limit is None else limit


def choose_workers(concurrency: int | None, rate: float | None, requests: int | None, limit: int | None) -> int:
    """Return how many workers a load needs; `limit` is the user's number of workers."""
    capacities = (
        (concurrency, _STREAMS_PER_WORKER),
        (int(rate or 0), _RATE_PER_WORKER),
        (requests, _REQUESTS_PER_WORKER),
    )
    needed = max(1, *(-(-(load or 0) // capacity) for load, capacity in capacities))
    workers = min(needed, max_workers(None)) if limit is None else limit
    for maximum in (concurrency, requests):
        if maximum is not None:
            workers = min(workers, maximum)
    return max(1, workers)


def raise_file_limit(slots: int | None, preconnect: int, workers: int) -> None:
    """Raise the limit of open files for the run's connections; raise UserError if the system does not allow it.

    Without `slots` the number of connections is unlimited, and only those opened before the first request are required.
    """
    connections = preconnect if slots is None else slots
    needed = -(-connections // workers) + _SPARE_FILES
    allowed = raise_descriptor_limit(max(needed, _MAX_FILES) if slots is None else needed)
    if allowed < needed:
        raise UserError(
            f"{connections} connections need {needed} open files a process, but the system allows {allowed}; "
            "raise the limit (ulimit -n), use more --workers-max, or lower --concurrency."
        )


class Outcome(NamedTuple):
    interrupts: int
    """How often the user interrupted the run."""
    input_error: str | None = None
    """Error in the input files that ended the run early."""


def run(
    job: Job,
    workers: int,
    display: Callable[[RunProgress], None] | None,
    input_files: InputFiles | None = None,
    on_begin: Callable[[], None] | None = None,
) -> Outcome:
    """Run the job. `input_files` are those that bodies are read from; `on_begin` is called before the first request."""
    shared = SharedState(workers)
    must_stop = None if input_files is None else input_files.poll
    controller = PhaseController(shared, len(job.phases), display, must_stop, on_begin)
    input_error = None
    with _interrupts(controller):
        try:
            if input_files is not None:
                input_files.start(shared)
            if workers == 1:
                _run_in_process(job, shared, controller)
            else:
                _run_children(job, shared, controller, workers)
        except UserError:
            if controller.began or not controller.interrupts:
                raise
        except RunError as error:
            if not controller.began:
                raise
            folder = os.path.dirname(job.log)
            raise RunError(
                f"{error} The records up to then are in {job.log}; `penstock report {folder}` shows them."
            ) from None
        finally:
            if input_files is not None:
                input_error = input_files.finish()
    controller.show()
    return Outcome(controller.interrupts, input_error)


def _run_in_process(job: Job, shared: SharedState, controller: PhaseController) -> None:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(Worker(job, Share(), shared, loop, controller.step).run())
    except ConnectError as error:
        raise _unreachable(job, error.error) from None
    finally:
        loop.close()


@contextlib.contextmanager
def _interrupts(controller: PhaseController) -> Iterator[None]:
    """Pass SIGINT and SIGTERM to the controller.

    The event loop's own signal handlers would lose a signal that arrives before the loop runs.
    """
    before = {name: signal.signal(name, lambda *_: controller.interrupt()) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _unreachable(job: Job, error: WireError) -> UserError:
    if error.type in ("CertificateError", "TLSError"):
        return UserError(error.message)  # the server is running, and the message says what to do
    urls = ", ".join(target.url for target in job.targets)
    return UserError(f"{error.message} Start the server or correct --url ({urls}).")


def _run_children(job: Job, shared: SharedState, controller: PhaseController, workers: int) -> None:
    failed, messages = _supervise(job, shared, controller, workers)
    for kind, error in ((_USER_ERROR, UserError), (_RUN_ERROR, RunError)):
        for message in messages:
            if message.startswith(kind):
                raise error(message[1:])
    if failed is not None:
        number, status = failed
        how = f"was killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "failed"
        raise RunError(" ".join([f"Worker {number} {how}.", *(message[1:] for message in messages)]))


def _supervise(
    job: Job, shared: SharedState, controller: PhaseController, workers: int
) -> tuple[tuple[int, int] | None, list[str]]:
    """Start the workers and run the controller until all have ended.

    Return the number and wait status of the first worker that failed, and the error messages of all workers.
    """
    children: dict[int, int] = {}
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    for number in range(workers):
        pid = fork()
        if pid == 0:
            os.close(read_end)
            os._exit(_run_child(job, Share(number, workers), shared, write_end, parent))
        children[pid] = number
    os.close(write_end)
    os.set_blocking(read_end, False)
    output = b""
    failed = None
    try:
        while children:
            time.sleep(_POLL_S)
            controller.step()
            output += _available(read_end)  # children that fail together would block on a full pipe
            for pid in list(children):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    number = children.pop(pid)
                    if status != 0:
                        failed = failed or (number, status)
                        shared.stop = 2
                        shared.set(number, READY, 1)
                        shared.set(number, PHASE_DONE, len(job.phases))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    output += _available(read_end)
    os.close(read_end)
    return failed, [message for message in output.decode("utf-8", "replace").split(_MESSAGE_END) if message]


def _available(pipe: int) -> bytes:
    """Return what can be read without blocking."""
    output = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(pipe, 1 << 16):
            output += data
    return output


def _run_child(job: Job, share: Share, shared: SharedState, pipe: int, parent: int) -> int:
    """Run a worker in a child process; return its exit status."""
    if not end_with_parent(parent, signal.SIGKILL):
        return 1
    try:
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(Worker(job, share, shared, loop, parent_watch(parent)).run())
    except BaseException as error:  # os._exit follows, which prints nothing
        kind, text = _describe(job, error)
        os.write(pipe, f"{kind}{text}{_MESSAGE_END}".encode())
        return 1
    return 0


def _describe(job: Job, error: BaseException) -> tuple[str, str]:
    """Return the kind and the text of a child's error message."""
    known = _unreachable(job, error.error) if isinstance(error, ConnectError) else disk_full(error) or error
    if not isinstance(known, PenstockError):
        return _TRACEBACK, traceback.format_exc()[-_MESSAGE_BYTES:]
    return _USER_ERROR if isinstance(known, UserError) else _RUN_ERROR, str(known)[:_MESSAGE_BYTES]
