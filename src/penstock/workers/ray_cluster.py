"""Workers on the nodes of a Ray cluster. On each node an actor starts worker processes, passes messages and sends the log.

The dataset is put into Ray's object store once and written to a folder of each node. The workers of a node write their logs
there; the actor sends what is new about once a second, and everything before it tells that a phase has ended. Each node has
a clock of its own: the difference to the clock of this process is measured by messages, with an error of half their round
trip, and start times are given in the clock of the node.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import queue
import shutil
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from time import monotonic_ns
from typing import IO, Any, NamedTuple

import msgspec

from penstock import __version__
from penstock.errors import UserError
from penstock.extras import require_extra
from penstock.records.nodes import LoggedNode
from penstock.records.payloads import store_files
from penstock.workers.backend import OnEvent
from penstock.workers.job import Job, JobSecrets, take_secrets
from penstock.workers.local_processes import SpawnedWorkers
from penstock.workers.messages import Close, Command, Event, LoadData, PhaseDone, StartPhase, WorkerDied, WorkerFailed

_PREFIX = "penstock-node-"
_LOCK = "lock"
_BLOCK_BYTES = 32 << 20
_TAIL_BYTES = 8 << 20
"""Size of the parts in which files travel, to a node and back."""
_TAIL_S = 1.0
_POLL_S = 0.2
_STEP_S = 0.01
_PINGS = 30
_END_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 120.0
"""Longest time for a node to start the process of an actor."""


# -- on a node --------------------------------------------------------------------------------------------------------


class Tail(NamedTuple):
    """New bytes of a file in the log of a node."""

    name: str
    data: bytes


class NodeAgent:
    """The actor of a node. Its methods are called by `RayWorkers`; a thread of its own drives the worker processes."""

    def __init__(self) -> None:
        self._folder, self._lock = _make_folder()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._outgoing: queue.SimpleQueue[tuple[int, Event] | Tail] = queue.SimpleQueue()
        self._sent: dict[str, int] = {}
        self._closing = False
        self._thread: threading.Thread | None = None

    def describe(self) -> tuple[str, str]:
        """Return the folder on the node and the version of Penstock there."""
        return self._folder, __version__

    def clock(self) -> int:
        return monotonic_ns()

    def has_file(self, path: str, size: int) -> bool:
        """Return whether the node sees the same file, as on a shared file system."""
        return os.path.isfile(path) and os.path.getsize(path) == size

    def write(self, name: str, data: bytes) -> None:
        """Append to a file in the folder of the node."""
        path = os.path.join(self._folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab") as file:
            file.write(data)
        self._sent[name] = os.path.getsize(path)

    def start(
        self, job: Job, secrets: JobSecrets, epoch: int, numbers: Sequence[int], workers: int, open_files: int
    ) -> None:
        backend = SpawnedWorkers(job, epoch, workers, open_files, numbers=numbers, secrets=secrets)
        self._thread = threading.Thread(target=self._drive, args=(backend,), daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        self._closing = isinstance(command, Close)
        self._commands.put(command)

    def poll(self) -> list[tuple[int, Event] | Tail]:
        """Return the new events and log data; wait a short time if there are none."""
        result: list[tuple[int, Event] | Tail] = []
        size = 0
        with contextlib.suppress(queue.Empty):
            result.append(self._outgoing.get(timeout=_POLL_S))
            while size < _TAIL_BYTES:
                if isinstance(result[-1], Tail):
                    size += len(result[-1].data)
                result.append(self._outgoing.get_nowait())
        return result

    def remove(self) -> None:
        """Remove the folder, after the end of the workers if they were told to end."""
        if self._closing and self._thread is not None:
            self._thread.join(_END_TIMEOUT_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.close()

    def _drive(self, backend: SpawnedWorkers) -> None:
        next_tail = time.monotonic() + _TAIL_S
        closing = False

        def on_event(worker: int, event: Event) -> None:
            if isinstance(event, PhaseDone | WorkerDied):
                self._tail()
            self._outgoing.put((worker, event))

        def step() -> bool:
            nonlocal next_tail, closing
            with contextlib.suppress(queue.Empty):
                while True:
                    command = self._commands.get_nowait()
                    backend.send(command)
                    closing = isinstance(command, Close)
            if time.monotonic() >= next_tail:
                self._tail()
                next_tail = time.monotonic() + _TAIL_S
            return closing

        try:
            backend.start(on_event)
            backend.wait(step)
        except Exception:  # an exception in a thread would be lost
            self._outgoing.put((backend.numbers[0], WorkerFailed("traceback", traceback.format_exc())))
        finally:
            backend.close()
            self._tail()

    def _tail(self) -> None:
        """Send what the workers have written since the last call."""
        for name in sorted(os.listdir(self._folder), key=_bodies_first):
            if not _is_of_worker(name):
                continue
            path = os.path.join(self._folder, name)
            with open(path, "rb") as file:
                file.seek(self._sent.get(name, 0))
                while data := file.read(_TAIL_BYTES):
                    self._outgoing.put(Tail(name, data))
                    self._sent[name] = file.tell()


def _make_folder() -> tuple[str, IO[bytes]]:
    """Make a folder of this node for a run, and lock it. Remove those of runs that were killed, whose locks nobody holds."""
    for path in glob.glob(os.path.join(tempfile.gettempdir(), f"{_PREFIX}*", _LOCK)):
        with contextlib.suppress(OSError), open(path, "rb") as old:
            fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(os.path.dirname(path), ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    lock = open(os.path.join(folder, _LOCK + ".new"), "wb")  # noqa: SIM115 - it is open until the actor ends
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(lock.name, os.path.join(folder, _LOCK))  # another actor sees it only when it is locked
    return folder, lock


def _is_of_worker(name: str) -> bool:
    """True for a file that a worker of the node writes: its log, the bodies that it builds, and the replies that it keeps."""
    stem, _, end = name.partition(".")[0].rpartition("-")
    return stem in ("worker", "payloads", "conversations", "sessions", "replies") and end.isdigit()


def _bodies_first(name: str) -> tuple[bool, str]:
    return name.startswith("worker-"), name


# -- in the process of the run ----------------------------------------------------------------------------------------


class ClusterNode(NamedTuple):
    id: str
    name: str
    cpus: int


class Cluster(NamedTuple):
    address: str
    nodes: tuple[ClusterNode, ...]


def connect(address: str) -> Cluster:
    """Connect to a Ray cluster; raise UserError if there is none."""
    require_extra("ray", "--cluster", "ray")
    if address.startswith("ray://"):
        require_extra("ray", "--cluster ray://", "grpc")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import logging

    import ray

    if not ray.is_initialized():
        try:
            _check_address(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray has no base class for these
            reason = str(error).strip().splitlines()
            why = f": {reason[0]}" if reason else ""
            raise UserError(
                f"There is no Ray cluster at --cluster {address}{why.rstrip('.')}. Start one with `ray start --head`, or name "
                "its address."
            ) from None
    nodes = [
        ClusterNode(node["NodeID"], node.get("NodeManagerHostname") or node["NodeManagerAddress"], int(cpus))
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"] and (cpus := node["Resources"].get("CPU", 0)) >= 1
    ]
    if not nodes:
        raise UserError(f"The Ray cluster at --cluster {address} has no node with a CPU.")
    nodes.sort(key=lambda node: (node.name, node.id))
    names = [node.name for node in nodes]
    unique = [
        node._replace(name=f"{node.name}/{node.id[:8]}") if names.count(node.name) > 1 else node for node in nodes
    ]
    return Cluster(address, tuple(unique))


def _check_address(address: str) -> None:
    """Raise OSError if nothing listens at an address, for which Ray would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()


class _Node:
    """A node, its actor and its clock."""

    def __init__(self, node: ClusterNode, agent: Any, numbers: tuple[int, ...]) -> None:
        self.node = node
        self.agent = agent
        self.numbers = numbers
        self.folder = ""
        self.offset = 0
        """Clock of the node minus that of this process."""
        self.error = 0
        self.drift: int | None = None
        self.poll: Any = None
        self.alive = True
        self.ended: set[int] = set()

    def logged(self, first_worker: int) -> LoggedNode:
        workers = tuple(first_worker + number for number in self.numbers)
        return LoggedNode(self.node.name, workers, self.offset, self.error, self.drift)


class RayWorkers:
    lead_ns = 500_000_000

    def __init__(self, cluster: Cluster, job: Job, epoch: int, workers: int, open_files: int) -> None:
        self.workers = workers
        self._cluster = cluster
        self._log = job.log
        self._job, self._secrets = take_secrets(job)
        self._epoch = epoch
        self._open_files = open_files
        self._nodes: list[_Node] = []
        self._on_event: OnEvent | None = None
        self._files: dict[str, tuple[str, ...]] = {}
        """The user's files that bodies are read from, by node."""

    @property
    def nodes(self) -> list[LoggedNode]:
        return [node.logged(self._job.first_worker) for node in self._nodes]

    # -- start --------------------------------------------------------------------------------------------------------

    def start(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._nodes = [self._place(number, node) for number, node in enumerate(self._cluster.nodes[: self.workers])]
        self._describe()
        self._files = self._ship("", self._log, self._job.files)
        for node in self._nodes:
            node.offset, node.error = self._measure_clock(node)
            job = self._job._replace(log=node.folder, files=self._files[node.node.id])
            epoch = self._epoch + node.offset
            node.agent.start.remote(job, self._secrets, epoch, node.numbers, self.workers, self._open_files)
            node.poll = node.agent.poll.remote()

    def _place(self, number: int, node: ClusterNode) -> _Node:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        agent = (
            ray.remote(NodeAgent)
            .options(
                num_cpus=0,
                max_concurrency=4,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            .remote()
        )
        return _Node(node, agent, tuple(range(number, self.workers, len(self._cluster.nodes))))

    def _describe(self) -> None:
        """Wait until all actors have started; raise UserError if a node cannot run them."""
        import ray

        for node in self._nodes:
            try:
                node.folder, version = ray.get(node.agent.describe.remote(), timeout=_START_TIMEOUT_S)
            except ray.exceptions.GetTimeoutError:
                raise UserError(
                    f"Node {node.node.name} did not start a process within {_START_TIMEOUT_S:g} s."
                ) from None
            except ray.exceptions.RayError as error:
                self._check_alive(node)
                lines = str(error).strip().splitlines()
                raise UserError(
                    f"Node {node.node.name} cannot run Penstock; install penstock {__version__} there, too. Ray says: "
                    f"{lines[-1] if lines else type(error).__name__}"
                ) from None
            if version != __version__:
                raise UserError(
                    f"Node {node.node.name} has Penstock {version}, but this is {__version__}; install the same version."
                )

    @staticmethod
    def _check_alive(node: _Node) -> None:
        """Raise UserError if Ray has lost a node before the run began."""
        import ray

        if not any(each["NodeID"] == node.node.id and each["Alive"] for each in ray.nodes()):  # type: ignore[no-untyped-call]
            raise UserError(f"Node {node.node.name} was lost before the first request; start the run again.")

    def _measure_clock(self, node: _Node) -> tuple[int, int]:
        import ray

        try:
            return _measure_clock(node.agent)
        except ray.exceptions.RayError:
            self._check_alive(node)
            raise

    def _ship(self, name: str, folder: str, files: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Copy the payload store in `folder` to the folder `name` of each node, and the user's files that it refers to.
        Return their paths by node."""
        nodes = self._alive()
        for file in store_files(folder):
            self._write(nodes, os.path.join(name, file), os.path.join(folder, file))
        paths: dict[str, tuple[str, ...]] = {node.node.id: () for node in nodes}
        for number, path in enumerate(files):
            size = os.path.getsize(path)
            seen = self._get([(node, node.agent.has_file.remote(path, size)) for node in nodes])
            missing = [node for node, has in zip(nodes, seen, strict=True) if not has]
            copy = os.path.join(name, f"input-{number}.bin")
            self._write(missing, copy, path)
            for node in nodes:
                there = os.path.join(node.folder, copy) if node in missing else path
                paths[node.node.id] += (there,)
        return paths

    def _write(self, nodes: Sequence[_Node], name: str, path: str) -> None:
        """Send a file to nodes. Each part is put into the object store once, whatever the number of nodes."""
        import ray

        for block in _blocks(path) if nodes else ():
            shared = ray.put(block)
            # One part at a time: the next one must not overtake it.
            self._get([(node, node.agent.write.remote(name, shared)) for node in nodes])

    # -- messages -----------------------------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        files: dict[str, tuple[str, ...]] = {}
        name = ""
        if isinstance(command, LoadData):
            name = os.path.relpath(command.folder, self._log)
            files = self._files if name == "." else self._ship(name, command.folder, command.files)
        sent = []
        for node in self._alive():
            there = command
            if isinstance(command, StartPhase):
                there = msgspec.structs.replace(command, start=command.start + node.offset)
            elif isinstance(command, LoadData):
                folder = os.path.normpath(os.path.join(node.folder, name))
                there = msgspec.structs.replace(command, folder=folder, files=files[node.node.id])
            sent.append((node, node.agent.send.remote(there)))
        self._get(sent)  # calls of an actor with several threads may overtake each other

    def _alive(self) -> list[_Node]:
        return [node for node in self._nodes if node.alive]

    def _get(self, calls: Sequence[tuple[_Node, Any]]) -> list[Any]:
        """Wait for the results of calls; None for a node that is lost, which `_receive` notices, too."""
        import ray

        results = []
        for _, call in calls:
            try:
                results.append(ray.get(call, timeout=_START_TIMEOUT_S))
            except ray.exceptions.RayError:
                results.append(None)
        return results

    def wait(self, step: Callable[[], bool]) -> None:
        while not step():
            self._receive(_STEP_S)

    def _receive(self, timeout: float) -> None:
        import ray

        waiting = {node.poll: node for node in self._nodes if node.alive}
        if not waiting:
            time.sleep(timeout)
            return
        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=timeout)
        for poll in ready:
            node = waiting[poll]
            try:
                messages = ray.get(poll)
            except ray.exceptions.RayError:  # its text is about actors and sockets
                self._lose(node)
                continue
            node.poll = node.agent.poll.remote()
            for message in messages:
                if isinstance(message, Tail):
                    self._append(message)
                else:
                    self._pass_on(node, *message)

    def _append(self, tail: Tail) -> None:
        with open(os.path.join(self._log, tail.name), "ab") as file:
            file.write(tail.data)

    def _pass_on(self, node: _Node, worker: int, event: Event) -> None:
        if isinstance(event, WorkerDied):
            node.ended.add(worker)
            event = WorkerDied(f"on node {node.node.name} {event.how}")
        assert self._on_event is not None
        self._on_event(worker, event)

    def _lose(self, node: _Node) -> None:
        """Report all workers of a node as lost."""
        node.alive = False
        assert self._on_event is not None
        for worker in node.numbers:
            if worker not in node.ended:
                self._on_event(worker, WorkerDied(f"was lost with its node {node.node.name}"))

    def kill(self, numbers: set[int]) -> None:
        """Give up the nodes of these workers; `close` ends their actors."""
        for node in self._alive():
            if numbers & set(node.numbers):
                self._lose(node)

    # -- end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        import ray

        described = [node for node in self._alive() if node.folder]  # those of a start that failed may never answer
        for node in described:
            with contextlib.suppress(ray.exceptions.RayError):
                offset, error = _measure_clock(node.agent)
                node.drift = offset - node.offset
                node.error = max(node.error, error)
        self._get([(node, node.agent.remove.remote()) for node in described])
        for node in self._nodes:
            ray.kill(node.agent)
            node.alive = False


def _blocks(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield file.read(_BLOCK_BYTES)  # also of an empty file
        while block := file.read(_BLOCK_BYTES):
            yield block


def _measure_clock(agent: Any) -> tuple[int, int]:
    """Return the clock of a node minus that of this process, and the largest error of that: half of the shortest round
    trip."""
    import ray

    best = None
    for _ in range(_PINGS):
        before = monotonic_ns()
        there = ray.get(agent.clock.remote(), timeout=_START_TIMEOUT_S)
        after = monotonic_ns()
        if best is None or after - before < best[1]:
            best = there - (before + after) // 2, after - before
    assert best is not None
    return best[0], -(-best[1] // 2)
