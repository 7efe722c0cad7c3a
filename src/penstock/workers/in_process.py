"""A single worker in this process, for the command line: it starts faster than a child process.

The event loop runs only during `wait`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import uvloop

from penstock.records.nodes import LoggedNode
from penstock.schedule.share import Share
from penstock.workers.backend import OnEvent
from penstock.workers.job import Job, Target
from penstock.workers.messages import Close, Command, Event
from penstock.workers.preconnect import describe_failure
from penstock.workers.worker import Worker


class InProcess:
    workers = 1
    lead_ns = 1_000_000
    nodes: Sequence[LoggedNode] = ()

    def __init__(self, job: Job, targets: Sequence[Target], epoch: int) -> None:
        self._job = job
        self._targets = targets
        self._epoch = epoch
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: Worker | None = None
        self._task: asyncio.Task[None] | None = None
        self._on_event: OnEvent | None = None
        self._step: Callable[[], bool] | None = None
        self._closing = False

    def start(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self._loop)

        async def make() -> None:
            loop = asyncio.get_running_loop()
            self._worker = Worker(
                self._job,
                self._targets,
                Share(),
                loop,
                epoch=self._epoch,
                on_event=self._event,
                on_tick=self._tick,
            )
            self._task = loop.create_task(self._worker.run())

        self._loop.run_until_complete(make())

    def _event(self, event: Event) -> None:
        assert self._on_event is not None
        self._on_event(0, event)

    def send(self, command: Command) -> None:
        assert self._worker is not None
        self._closing = isinstance(command, Close)
        self._worker.command(command)

    def _tick(self) -> None:
        if self._step is not None and self._loop is not None and self._step():
            self._step = None
            self._loop.stop()

    def wait(self, step: Callable[[], bool]) -> None:
        loop, task = self._loop, self._task
        assert loop is not None
        assert task is not None
        if step():
            return
        self._step = step
        task.add_done_callback(self._on_done)
        try:
            loop.run_forever()
        finally:
            task.remove_done_callback(self._on_done)
        if task.done() and (error := task.exception()) is not None:
            failure = describe_failure(self._targets, error)
            if failure.kind == "traceback":
                raise error
            self._event(failure)

    def _on_done(self, _: asyncio.Task[None]) -> None:
        assert self._loop is not None
        self._loop.stop()

    def kill(self, numbers: set[int]) -> None:
        """Do nothing: the worker is this process, and it answers if it can receive an interrupt."""

    def close(self) -> None:
        if self._loop is None:
            return
        if self._task is not None and not self._task.done():
            self._step = None
            self._task.add_done_callback(self._on_done)
            if not self._closing:
                self._task.cancel()
            self._loop.run_forever()
        self._loop.close()
        self._loop = None
