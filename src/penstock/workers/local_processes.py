"""Workers on this machine: one in this very process, several as forked children that share a board and nothing else."""

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
from penstock.processes import cores, end_with_parent, parent_watch, raise_descriptor_limit
from penstock.schedule.scheduler import Share
from penstock.wire.exchange import WireError
from penstock.workers import shared_state as cells
from penstock.workers.indexer import Sources
from penstock.workers.job import Job
from penstock.workers.phase_controller import PhaseController, Progress
from penstock.workers.preconnect import ConnectError
from penstock.workers.shared_state import SharedState
from penstock.workers.worker import Worker

__all__ = ["Outcome", "choose_workers", "most_workers", "raise_file_limit", "run"]

_POLL_S = 0.01
_USER, _RUN, _FAULT = "u", "r", "f"
"""Before what a worker says: a sentence about what the user must change, one about the run, or a traceback."""
_END = "\0"  # behind it
_SAID_BYTES = 4000  # so that what several say at once is not mixed up in the pipe
_SPARE_FILES = 64
_MANY_FILES = 1 << 20
_BUSY_STREAMS = 512  # what one core carries with ease: 500 streams of 100 tokens/s take about half of it
_BUSY_RATE = 2000
_MANY_REQUESTS = 20_000
"""So many in one run mean a fast server or a long run; a second process helps the one and harms none."""


def most_workers(limit: int | None) -> int:
    """Leaving a core to others, unless the user says how many."""
    return max(1, cores() - 1) if limit is None else limit


def choose_workers(concurrency: int | None, rate: float | None, requests: int | None, limit: int | None) -> int:
    """One process for what one core does with ease; beyond that one for each such part."""
    parts = ((concurrency, _BUSY_STREAMS), (int(rate or 0), _BUSY_RATE), (requests, _MANY_REQUESTS))
    wanted = max(1, *(-(-(load or 0) // each) for load, each in parts))
    workers = min(wanted, most_workers(None)) if limit is None else limit
    for bound in (concurrency, requests):
        if bound is not None:
            workers = min(workers, bound)
    return max(1, workers)


def raise_file_limit(slots: int | None, ahead: int, workers: int) -> None:
    """Each connection is an open file: take what the system allows, and say so when it is not enough. Without `slots` nobody
    knows how many there will be, beyond those that are opened `ahead`."""
    connections = ahead if slots is None else slots
    needed = -(-connections // workers) + _SPARE_FILES
    allowed = raise_descriptor_limit(max(needed, _MANY_FILES) if slots is None else needed)
    if allowed < needed:
        raise UserError(
            f"{connections} connections need {needed} open files a process, but the system allows {allowed}; "
            "raise the limit (ulimit -n), use more --workers-max, or lower --concurrency."
        )


class Outcome(NamedTuple):
    interrupted: int
    """How often the user did."""
    error: str | None = None
    """Why the run ended before its time: something about the user's files."""


def run(
    job: Job,
    workers: int,
    display: Callable[[Progress], None] | None,
    sources: Sources | None = None,
    on_begin: Callable[[], None] | None = None,
) -> Outcome:
    """Carries out the job; `sources` are the user's files that it sends from, `on_begin` is called before the first request."""
    board = SharedState(workers)
    conductor = PhaseController(board, len(job.phases), display, None if sources is None else sources.look, on_begin)
    file_error = None
    if sources is not None:
        sources.start(board)
    try:
        if workers == 1:
            _run_here(job, board, conductor)
        else:
            _run_children(job, board, conductor, workers)
    except RunError as error:
        if not conductor.began:
            raise
        folder = os.path.dirname(job.log)
        raise RunError(
            f"{error} The records up to then are in {job.log}; `penstock report {folder}` shows them."
        ) from None
    finally:
        if sources is not None:
            file_error = sources.finish()
    conductor.show()
    return Outcome(conductor.interrupted, file_error)


def _run_here(job: Job, board: SharedState, conductor: PhaseController) -> None:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        with _interrupts(conductor):
            loop.run_until_complete(Worker(job, Share(), board, loop, conductor.step).run())
    except ConnectError as error:
        raise _unreachable(job, error.error) from None
    finally:
        loop.close()


@contextlib.contextmanager
def _interrupts(conductor: PhaseController) -> Iterator[None]:
    """Ctrl-C is the conductor's. (Not by the loop's own handlers: one that comes before the loop runs would be lost.)"""
    before = {name: signal.signal(name, lambda *_: conductor.interrupt()) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _unreachable(job: Job, error: WireError) -> UserError:
    if error.type in ("CertificateError", "TLSError"):
        return UserError(error.message)  # somebody is there, and the sentence says what to do
    urls = ", ".join(target.url for target in job.targets)
    return UserError(f"{error.message} Start the server or correct --url ({urls}).")


def _run_children(job: Job, board: SharedState, conductor: PhaseController, workers: int) -> None:
    with _interrupts(conductor):
        died, said = _attended(job, board, conductor, workers)
    for kind, error in ((_USER, UserError), (_RUN, RunError)):
        for word in said:
            if word.startswith(kind):
                raise error(word[1:])
    if died is not None:
        number, status = died
        how = f"was killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "failed"
        raise RunError(" ".join([f"Worker {number} {how}.", *(word[1:] for word in said)]))


def _attended(
    job: Job, board: SharedState, conductor: PhaseController, workers: int
) -> tuple[tuple[int, int] | None, list[str]]:
    """Lives with the workers until the last has ended: (the first that failed, and its status; what they said)."""
    children: dict[int, int] = {}
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    me = os.getpid()
    for number in range(workers):
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            os._exit(_child(job, Share(number, workers), board, write_end, me))
        children[pid] = number
    os.close(write_end)
    os.set_blocking(read_end, False)
    said = b""
    died = None
    try:
        while children:
            time.sleep(_POLL_S)
            conductor.step()
            said += _available(read_end)  # many that fail together would fill the pipe and wait for us
            for pid in list(children):
                gone, status = os.waitpid(pid, os.WNOHANG)
                if gone:
                    number = children.pop(pid)
                    if status != 0:
                        died = died or (number, status)
                        board.stop = 2
                        board.set(number, cells.READY, 1)
                        board.set(number, cells.PHASE_DONE, len(job.phases))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    said += _available(read_end)
    os.close(read_end)
    return died, [word for word in said.decode("utf-8", "replace").split(_END) if word]


def _available(pipe: int) -> bytes:
    """What can be read without waiting."""
    found = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(pipe, 1 << 16):
            found += data
    return found


def _child(job: Job, share: Share, board: SharedState, tell: int, parent: int) -> int:
    """A worker's whole life."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    if not end_with_parent(parent, signal.SIGKILL):
        return 1
    try:
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(Worker(job, share, board, loop, parent_watch(parent)).run())
    except BaseException as error:  # this is the end of the process: nobody else would hear of it
        kind, text = _in_words(job, error)
        os.write(tell, f"{kind}{text}{_END}".encode())
        return 1
    return 0


def _in_words(job: Job, error: BaseException) -> tuple[str, str]:
    found = _unreachable(job, error.error) if isinstance(error, ConnectError) else disk_full(error) or error
    if not isinstance(found, PenstockError):
        return _FAULT, traceback.format_exc()[-_SAID_BYTES:]
    return _USER if isinstance(found, UserError) else _RUN, str(found)[:_SAID_BYTES]
