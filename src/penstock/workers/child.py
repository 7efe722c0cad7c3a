"""A worker in a process of its own. Run as `python -m penstock.workers.child FD`, it reads its job from that socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import uvloop

from penstock.endpoints.base import endpoint_named
from penstock.processes import end_with_parent, parent_watch, raise_descriptor_limit
from penstock.schedule.share import Share
from penstock.workers.job import Job, JobSecrets, Target, restore_secrets, targets
from penstock.workers.message_socket import MessageSocket, wait_for
from penstock.workers.messages import Connected, Event, Progress
from penstock.workers.preconnect import describe_failure
from penstock.workers.worker import Worker

_PROGRESS_TICKS = 10


class Start(NamedTuple):
    """The first message to a worker that was not forked."""

    job: Job
    secrets: JobSecrets
    share: Share
    epoch: int
    """The zero of the times in records, on the monotonic clock of the worker's machine."""
    open_files: int
    """Open files that the worker needs."""


def run_child(
    job: Job, made_targets: Sequence[Target] | None, share: Share, epoch: int, messages: MessageSocket, parent: int
) -> int:
    """Run a worker until it is told to end; return the exit status of its process.

    `made_targets` are the targets if they are resolved already, as in a forked process."""
    resolved: Sequence[Target] = made_targets or ()
    try:
        if made_targets is None:
            made = endpoint_named(job.settings.type, job.settings)
            resolved = targets(job.settings, made.request_path(job.settings), made.declaration)
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_run(loop, job, resolved, share, epoch, messages, parent_watch(parent)))
    except BaseException as error:  # the process ends here
        messages.send(describe_failure(resolved, error))
        messages.flush_all()
        return 1
    messages.flush_all()
    return 0


async def _run(
    loop: asyncio.AbstractEventLoop,
    job: Job,
    resolved: Sequence[Target],
    share: Share,
    epoch: int,
    messages: MessageSocket,
    on_tick: Callable[[], None] | None,
) -> None:
    def flush() -> None:
        messages.flush()
        if not messages.unsent:
            loop.remove_writer(messages.fileno())

    def send(event: Event) -> None:
        if messages.unsent and isinstance(event, Progress | Connected):
            return  # the run does not read now, and the next progress replaces this one
        messages.send(event)
        if messages.unsent:
            loop.add_writer(messages.fileno(), flush)

    worker = Worker(
        job,
        resolved,
        share,
        loop,
        epoch=epoch,
        on_event=send,
        on_tick=on_tick,
        progress_ticks=_PROGRESS_TICKS,
    )

    def receive() -> None:
        for command in messages.receive():
            worker.command(command)
        if messages.closed:
            os._exit(1)  # the run has ended without closing this worker

    loop.add_reader(messages.fileno(), receive)
    try:
        await worker.run()
    finally:
        loop.remove_reader(messages.fileno())


def _main() -> int:
    import penstock.schedule.random_arrivals  # noqa: F401 - otherwise the start of a phase would import NumPy

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    messages = MessageSocket(socket.socket(fileno=int(sys.argv[1])))
    if not end_with_parent(parent, signal.SIGKILL):
        return 1
    received: list[Start] = []
    while not received:
        wait_for([messages])
        received = messages.receive()
        if messages.closed:
            return 1
    start = received[0]
    raise_descriptor_limit(start.open_files)
    return run_child(restore_secrets(start.job, start.secrets), None, start.share, start.epoch, messages, parent)


if __name__ == "__main__":
    sys.exit(_main())
