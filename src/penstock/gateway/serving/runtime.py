"""What the main process and its workers share: a folder of their own, in memory where the system has such a place.

    board             a page that all of them map: which snapshot counts, whether we drain, and a slot for each worker
    owner             locked for as long as the main process lives
    config            gateway.yaml as the main process understood it
    snapshot-N        the resources of generation N, read once by the main process and decoded in each worker in a
                      millisecond, where YAML would hold up its loop for as long as a second

Snapshots hold secrets, so the folder is closed to everybody else and goes away with the main process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
import tempfile
from typing import Any

import msgspec

from penstock.gateway import owned_file
from penstock.gateway.resources.config import GatewayConfig
from penstock.gateway.resources.snapshot import Snapshot
from penstock.secrets import Secret

__all__ = ["Runtime", "SharedWords", "WorkerState"]

_WORD = struct.Struct("<Q")
_SLOT = struct.Struct("<QQQQ")
_PREFIX = "penstock-gateway-"
_OWNER = "owner"
_HEAD = 64
_SLOT_SIZE = 64
_DRAINING = 8


class WorkerState(msgspec.Struct, frozen=True):
    """What a worker last said about itself."""

    pid: int
    generation: int
    in_flight: int
    upstream_connections: int


class SharedWords:
    """Single words, each written by one process: no lock, and a reader sees a word as it was before or after."""

    def __init__(self, path: str, workers: int, *, create: bool = False) -> None:
        size = _HEAD + workers * _SLOT_SIZE
        file = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:
                os.ftruncate(file, size)
            self._map = mmap.mmap(file, size)
        finally:
            os.close(file)

    def generation_bytes(self) -> bytes:
        """The generation as it lies there: compared on every request (0.1 µs)."""
        return self._map[:8]

    @property
    def generation(self) -> int:
        return int(_WORD.unpack_from(self._map, 0)[0])

    def publish(self, generation: int) -> None:
        _WORD.pack_into(self._map, 0, generation)

    @property
    def draining(self) -> bool:
        return self._map[_DRAINING] != 0

    def drain(self) -> None:
        self._map[_DRAINING] = 1

    def write_slot(self, worker: int, state: WorkerState) -> None:
        _SLOT.pack_into(
            self._map,
            _HEAD + worker * _SLOT_SIZE,
            state.pid,
            state.generation,
            state.in_flight,
            state.upstream_connections,
        )

    def slot(self, worker: int) -> WorkerState:
        return WorkerState(*_SLOT.unpack_from(self._map, _HEAD + worker * _SLOT_SIZE))

    def clear_slot(self, worker: int) -> None:
        self.write_slot(worker, WorkerState(0, 0, 0, 0))


class Runtime:
    def __init__(self, folder: str, config: GatewayConfig, board: SharedWords) -> None:
        self.folder = folder
        self.config = config
        self.board = board
        self._owned = -1

    @classmethod
    def create(cls, config: GatewayConfig) -> Runtime:
        memory = "/dev/shm"  # noqa: S108 - mkdtemp makes a folder that only we can enter
        home = memory if os.path.isdir(memory) and os.access(memory, os.W_OK) else tempfile.gettempdir()
        _remove_orphans(home)
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=home)
        owned = owned_file.create(os.path.join(folder, _OWNER))
        _write(os.path.join(folder, "config"), msgspec.msgpack.encode(config))
        made = cls(folder, config, SharedWords(os.path.join(folder, "board"), config.listen.workers, create=True))
        made._owned = owned
        return made

    @classmethod
    def attach(cls, folder: str) -> Runtime:
        with open(os.path.join(folder, "config"), "rb") as file:
            config = msgspec.msgpack.decode(file.read(), type=GatewayConfig)
        return cls(folder, config, SharedWords(os.path.join(folder, "board"), config.listen.workers))

    @property
    def limits_path(self) -> str:
        return os.path.join(self.folder, "limits")

    def _snapshot_path(self, generation: int) -> str:
        return os.path.join(self.folder, f"snapshot-{generation}")

    def publish(self, snapshot: Snapshot, generation: int) -> None:
        """Make it what every request that begins from now on is served by."""
        _write(self._snapshot_path(generation), msgspec.msgpack.encode(snapshot, enc_hook=_reveal))
        self.board.publish(generation)
        with contextlib.suppress(FileNotFoundError):
            # A worker that looks for the one before the last looks again and finds the last.
            os.unlink(self._snapshot_path(generation - 2))

    def snapshot(self) -> tuple[int, Snapshot]:
        """The newest, with its generation."""
        while True:
            generation = self.board.generation
            try:
                with open(self._snapshot_path(generation), "rb") as file:
                    return generation, msgspec.msgpack.decode(file.read(), type=Snapshot, dec_hook=_conceal)
            except FileNotFoundError:
                if generation == self.board.generation:
                    raise

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._owned)


def _remove_orphans(home: str) -> None:
    """What main processes left that were killed: nobody holds their lock any more."""
    for name in os.listdir(home):
        if not name.startswith(_PREFIX):
            continue
        folder = os.path.join(home, name)
        with contextlib.suppress(OSError):  # not ours, or just going away
            file = os.open(os.path.join(folder, _OWNER), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.fstat(file).st_uid == os.getuid() and owned_file.is_orphan(file):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(file)


def _write(path: str, data: bytes) -> None:
    file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(data)
    os.replace(path + ".new", path)


def _reveal(value: Any) -> Any:
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError


def _conceal(kind: type, value: Any) -> Any:
    if kind is Secret:
        return Secret(value)
    raise NotImplementedError
