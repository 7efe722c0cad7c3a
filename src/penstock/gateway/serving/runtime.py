"""The folder that the main process and its workers share, in /dev/shm if the system has it.

    state             mapped memory: the current generation, whether the gateway drains, and a slot for each worker
    owner             locked as long as the main process lives
    config            the parsed gateway.yaml
    cooldowns         the cooldowns of upstream targets, created by the first worker
    address           host, port and number of workers, in a form that other versions can read
    stack-N           the stack of worker N, which it writes when it gets STACK_SIGNAL
    control           socket for a new gateway that takes over
    snapshot-N        the resources of generation N, parsed once by the main process. A worker decodes them in a
                      millisecond, while parsing YAML would block its event loop for up to a second

Snapshots contain secrets, so only the owner can read the folder, and the main process removes it at its end.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
import struct
import tempfile
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.gateway.resources.config import GatewayConfig
from penstock.gateway.resources.snapshot import Snapshot, reveal_secret
from penstock.gateway.storage import owned_file
from penstock.secrets import Secret

STACK_SIGNAL = signal.SIGQUIT

_UINT64 = struct.Struct("<Q")
_SLOT = struct.Struct("<QQQQQQ")
_PREFIX = "penstock-gateway-"
_OWNER = "owner"
_HEADER_SIZE = 64
_SLOT_SIZE = 64
_DRAINING = 8


class WorkerState(msgspec.Struct, frozen=True):
    """The state that a worker last reported."""

    pid: int
    generation: int
    in_flight: int
    upstream_connections: int
    failed_generation: int = 0
    """A newer generation that the worker could not load; 0 if there is none."""
    heartbeat: int = 0
    """A number that changes ten times a second while the worker's event loop runs."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gateway listens."""

    host: str
    port: int
    workers: int


class GatewayState:
    """State of the gateway in memory that all its processes map. Each value has a single writer, so there is no lock."""

    def __init__(self, path: str, workers: int, *, create: bool = False) -> None:
        size = _HEADER_SIZE + workers * _SLOT_SIZE
        file = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:
                os.ftruncate(file, size)
            self._map = mmap.mmap(file, size)
        finally:
            os.close(file)

    def generation_bytes(self) -> bytes:
        """Return the generation undecoded: comparing it on every request takes 0.1 µs."""
        return self._map[:8]

    @property
    def generation(self) -> int:
        return int(_UINT64.unpack_from(self._map, 0)[0])

    def publish(self, generation: int) -> None:
        _UINT64.pack_into(self._map, 0, generation)

    @property
    def draining(self) -> bool:
        return self._map[_DRAINING] != 0

    def drain(self) -> None:
        self._map[_DRAINING] = 1

    def write_slot(self, worker: int, state: WorkerState) -> None:
        _SLOT.pack_into(self._map, _HEADER_SIZE + worker * _SLOT_SIZE, *msgspec.structs.astuple(state))

    def slot(self, worker: int) -> WorkerState:
        return WorkerState(*_SLOT.unpack_from(self._map, _HEADER_SIZE + worker * _SLOT_SIZE))

    def clear_slot(self, worker: int) -> None:
        self.write_slot(worker, WorkerState(0, 0, 0, 0))


class Runtime:
    """The shared folder. The main process creates it, the workers attach to it."""

    def __init__(self, folder: str, config: GatewayConfig, state: GatewayState) -> None:
        self.folder = folder
        self.config = config
        self.state = state
        self._owner_file = -1

    @classmethod
    def create(cls, config: GatewayConfig) -> Runtime:
        for orphan in _folders(orphans=True):
            shutil.rmtree(orphan, ignore_errors=True)
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=_parent())
        owned = owned_file.create(os.path.join(folder, _OWNER))
        listen = config.listen
        address = Address(host=listen.host, port=listen.port, workers=listen.workers)
        _write(os.path.join(folder, "address"), msgspec.json.encode(address))
        _write(os.path.join(folder, "config"), msgspec.msgpack.encode(config))
        runtime = cls(folder, config, GatewayState(os.path.join(folder, "state"), config.listen.workers, create=True))
        runtime._owner_file = owned
        return runtime

    @classmethod
    def attach(cls, folder: str) -> Runtime:
        with open(os.path.join(folder, "config"), "rb") as file:
            config = msgspec.msgpack.decode(file.read(), type=GatewayConfig)
        return cls(folder, config, GatewayState(os.path.join(folder, "state"), config.listen.workers))

    def replace_config(self, config: GatewayConfig) -> None:
        """Set the configuration for workers that start from now on."""
        self.config = config
        _write(os.path.join(self.folder, "config"), msgspec.msgpack.encode(config))

    @property
    def limits_path(self) -> str:
        """The table of the limits. It is in the spool folder, so that the counts survive a restart."""
        return os.path.join(self.config.ledger.spool, "limits.table")

    def stack_path(self, worker: int) -> str:
        return os.path.join(self.folder, f"stack-{worker}")

    def _snapshot_path(self, generation: int) -> str:
        return os.path.join(self.folder, f"snapshot-{generation}")

    def publish(self, snapshot: Snapshot, generation: int) -> None:
        """Make a snapshot the current one: workers use it for new requests."""
        _write(self._snapshot_path(generation), msgspec.msgpack.encode(snapshot, enc_hook=reveal_secret))
        self.state.publish(generation)
        with contextlib.suppress(FileNotFoundError):
            # A worker that misses this file reads the generation again and finds the newest snapshot.
            os.unlink(self._snapshot_path(generation - 2))

    def snapshot(self) -> tuple[int, Snapshot]:
        """Return the newest snapshot with its generation."""
        while True:
            generation = self.state.generation
            try:
                with open(self._snapshot_path(generation), "rb") as file:
                    return generation, msgspec.msgpack.decode(file.read(), type=Snapshot, dec_hook=_conceal)
            except FileNotFoundError:
                if generation == self.state.generation:
                    raise

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._owner_file)


def running_gateways() -> Iterator[tuple[str, Address]]:
    """Yield the folder and the address of each running gateway of this user."""
    for folder in _folders(orphans=False):
        try:
            with open(os.path.join(folder, "address"), "rb") as file:
                yield folder, msgspec.json.decode(file.read(), type=Address)
        except (OSError, msgspec.MsgspecError):
            continue  # it is starting, or being removed


def _parent() -> str:
    memory = "/dev/shm"  # noqa: S108 - mkdtemp makes a folder that only this user can enter
    return memory if os.path.isdir(memory) and os.access(memory, os.W_OK) else tempfile.gettempdir()


def _folders(*, orphans: bool) -> Iterator[str]:
    """Yield the folders of this user's gateways that run, or of those that were killed: their owner file is not locked."""
    parent = _parent()
    for name in os.listdir(parent):
        if not name.startswith(_PREFIX):
            continue
        folder = os.path.join(parent, name)
        with contextlib.suppress(OSError):  # another user's, or being removed
            file = os.open(os.path.join(folder, _OWNER), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                own = os.fstat(file).st_uid == os.getuid()
                if own and owned_file.is_orphan(file) == orphans:
                    yield folder
            finally:
                os.close(file)


def _write(path: str, data: bytes) -> None:
    file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(data)
    os.replace(path + ".new", path)


def _conceal(kind: type, value: Any) -> Any:
    if kind is Secret:
        return Secret(value)
    raise NotImplementedError
