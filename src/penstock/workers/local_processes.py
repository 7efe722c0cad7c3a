"""Workers in child processes of this machine, forked or started as new interpreters, with a socket to each.

Forked workers start faster. A library must not fork the process of its caller, so it starts interpreters.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from penstock.errors import UserError
from penstock.processes import cores, descriptor_limit, end_with_parent, fork, raise_descriptor_limit, spawn
from penstock.records.nodes import LoggedNode
from penstock.schedule.share import Share
from penstock.workers.backend import OnEvent
from penstock.workers.child import Start, run_child
from penstock.workers.job import Job, JobSecrets, Target, take_secrets
from penstock.workers.message_socket import MessageSocket, wait_for
from penstock.workers.messages import Close, Command, Event, WorkerDied, WorkerFailed

_POLL_S = 0.01
_END_TIMEOUT_S = 60.0
"""Longest time for a worker to end, whose records are in its file then. One that is stopped would never end."""
_SPARE_FILES = 64
"""Open files of a process besides its connections."""
_MAX_FILES = 1 << 20
_MAX_WORKERS = 64
_STREAMS_PER_WORKER = 512
"""500 streams of 100 tokens/s take about half of one core."""
_RATE_PER_WORKER = 2000
_REQUESTS_PER_WORKER = 20_000
"""A run with more requests has a fast server or is long. A second process helps the first case and harms neither."""


def max_workers(limit: int | None) -> int:
    """Return the user's limit, but at most 64, or by default one fewer than there are cores."""
    return max(1, cores() - 1) if limit is None else min(limit, _MAX_WORKERS)


def choose_workers(concurrency: int | None, rate: float | None, requests: int | None, limit: int | None) -> int:
    """Return how many workers a load needs; `limit` is the user's number of workers."""
    capacities = (
        (concurrency, _STREAMS_PER_WORKER),
        (int(rate or 0), _RATE_PER_WORKER),
        (requests, _REQUESTS_PER_WORKER),
    )
    needed = max(1, *(-(-(load or 0) // capacity) for load, capacity in capacities))
    workers = min(needed, max_workers(None)) if limit is None else max_workers(limit)
    return _bounded(workers, concurrency, requests)


def _bounded(workers: int, *limits: int | None) -> int:
    return max(1, min([workers, *(limit for limit in limits if limit is not None)]))


def choose_cluster_workers(
    concurrency: int | None, rate: float | None, requests: int | None, per_node: int | None, cpus: Sequence[int]
) -> int:
    """Return how many workers a load needs on nodes whose numbers of CPUs are `cpus`: at least one on each node, or `per_node`
    if the user sets it."""
    nodes = len(cpus)
    if per_node is None:
        capacities = ((concurrency, _STREAMS_PER_WORKER), (int(rate or 0), _RATE_PER_WORKER))
        needed = max(1, *(-(-(load or 0) // capacity) for load, capacity in capacities))
        per_node = min(-(-needed // nodes), max(1, min(cpus) - 1))
    return _bounded(max_workers(per_node) * nodes, concurrency, requests)


def raise_file_limit(slots: int | None, preconnect: int, workers: int, *, only_check: bool = False) -> int:
    """Raise the limit of open files for the run's connections, and return how many files a worker needs; raise UserError if
    the system does not allow it.

    With `only_check`, the limit of this process stays as it is. Without `slots` the number of connections is unlimited, and
    only those opened before the first request are required.
    """
    connections = preconnect if slots is None else slots
    needed = -(-connections // workers) + _SPARE_FILES
    wanted = max(needed, _MAX_FILES) if slots is None else needed
    allowed = descriptor_limit() if only_check else raise_descriptor_limit(wanted)
    if allowed < needed:
        raise UserError(
            f"{connections} connections need {needed} open files a process, but the system allows {allowed}; "
            "raise the limit (ulimit -n), use more --workers-max, or lower --concurrency."
        )
    return wanted


class _Process(Protocol):
    """A child process that has been started."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process runs."""
        ...

    def kill(self) -> None: ...


class _Child(NamedTuple):
    number: int
    process: _Process
    messages: MessageSocket


class _Workers:
    """Child processes and the messages to and from them."""

    lead_ns = 30_000_000
    nodes: Sequence[LoggedNode] = ()

    def __init__(self, workers: int, numbers: Sequence[int] | None = None) -> None:
        """`numbers` are the numbers of the workers to start here; None for all of them."""
        self.workers = workers
        self.numbers = range(workers) if numbers is None else numbers
        self._children: list[_Child] = []
        self._on_event: OnEvent | None = None
        self._closing = False
        self._failed: set[int] = set()
        """Workers that have sent why they end."""

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the workers that run, by number."""
        return {child.number: child.process.pid for child in self._children}

    def _start_child(self, share: Share, ours: socket.socket, theirs: socket.socket) -> _Process:
        raise NotImplementedError

    def start(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        sys.stdout.flush()
        sys.stderr.flush()
        for number in self.numbers:
            ours, theirs = socket.socketpair()
            try:
                process = self._start_child(Share(number, self.workers), ours, theirs)
            except OSError as error:
                ours.close()
                raise UserError(
                    f"A worker process cannot be started: {error.strerror}; allow more processes (ulimit -u), or use fewer "
                    "--workers-max."
                ) from None
            finally:
                theirs.close()
            self._children.append(_Child(number, process, MessageSocket(ours)))

    def send(self, command: Command) -> None:
        self._closing = isinstance(command, Close)
        for child in self._children:
            child.messages.send(command)

    def wait(self, step: Callable[[], bool]) -> None:
        while not step():
            open_sockets = [child.messages for child in self._children]
            unsent = [messages for messages in open_sockets if messages.unsent]
            wait_for(open_sockets, unsent, _POLL_S)
            self._poll()

    def _poll(self) -> None:
        """Pass on the events that have arrived, and the ends of processes."""
        for child in list(self._children):
            status = child.process.poll()  # before the last messages are read
            child.messages.flush()
            for event in child.messages.receive():
                if isinstance(event, WorkerFailed):
                    self._failed.add(child.number)
                self._pass_on(child.number, event)
            if status is not None:
                self._children.remove(child)
                child.messages.close()
                if status != 0 and child.number not in self._failed:
                    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
                    self._pass_on(child.number, WorkerDied(how))

    def _pass_on(self, number: int, event: Event) -> None:
        assert self._on_event is not None
        self._on_event(number, event)

    def kill(self, numbers: set[int]) -> None:
        for child in self._children:
            if child.number in numbers:
                child.process.kill()

    def close(self) -> None:
        deadline = time.monotonic() + _END_TIMEOUT_S
        while self._closing and self._children and time.monotonic() < deadline:
            wait_for([child.messages for child in self._children], timeout=_POLL_S)
            self._poll()
        for child in self._children:
            child.process.kill()
            while child.process.poll() is None:
                time.sleep(0.001)
            child.messages.close()
        self._children.clear()


class _ForkedProcess:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkedWorkers(_Workers):
    def __init__(self, job: Job, targets: Sequence[Target], epoch: int, workers: int) -> None:
        super().__init__(workers)
        self._job = job
        self._targets = targets
        self._epoch = epoch

    def _start_child(self, share: Share, ours: socket.socket, theirs: socket.socket) -> _Process:
        parent = os.getpid()
        pid = fork()
        if pid == 0:
            ours.close()
            for earlier in self._children:
                earlier.messages.close()
            messages = MessageSocket(theirs)
            if not end_with_parent(parent, signal.SIGKILL):
                os._exit(1)
            os._exit(run_child(self._job, self._targets, share, self._epoch, messages, parent))
        return _ForkedProcess(pid)


class SpawnedWorkers(_Workers):
    def __init__(
        self,
        job: Job,
        epoch: int,
        workers: int,
        open_files: int,
        *,
        numbers: Sequence[int] | None = None,
        secrets: JobSecrets | None = None,
    ) -> None:
        """`secrets` are those of a job from which they have been taken already."""
        super().__init__(workers, numbers)
        self._job, self._secrets = (job, secrets) if secrets is not None else take_secrets(job)
        self._epoch = epoch
        self._open_files = open_files

    def _start_child(self, share: Share, ours: socket.socket, theirs: socket.socket) -> _Process:
        process = spawn(
            "penstock.workers.child",
            str(theirs.fileno()),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        messages = MessageSocket(ours)
        messages.send(Start(self._job, self._secrets, share, self._epoch, self._open_files))
        messages.flush_all()
        return process
