"""The requests that a worker is serving, in a file that survives its death.

A worker notes each request in a slot of a mapped file when it is sent to an upstream, and clears the slot when the request's
entry is in the spool. If the worker is killed, the mover writes an entry for every slot that is left: the provider bills these
requests, too. This takes about 1 µs per request. The file survives the death of any process, but not a power failure.
"""

from __future__ import annotations

import mmap
import os
import struct
from operator import attrgetter

import msgspec

from penstock.gateway.ledger.entry import Entry
from penstock.gateway.storage import owned_file

LOST = "worker_lost"
"""The error of an entry whose request ended with its worker."""

_SLOT_BYTES = 512
_GROWTH_SLOTS = 256
_MAX_SLOTS = 1 << 16
_LENGTH = struct.Struct("<I")
_EMPTY = _LENGTH.pack(0)
_NEW_SLOTS = bytes(_GROWTH_SLOTS * _SLOT_BYTES)
_FIELDS = (
    "request_id",
    "at",
    "route",
    "api_key_id",
    "api_key_name",
    "team_id",
    "model",
    "provider",
    "stream",
    "worker",
    "client",
)
"""What is known of a request when it is sent to an upstream, besides its estimated input."""
_values = attrgetter(*_FIELDS)


class LiveRequests:
    """The live requests of one worker, for use by one thread. A disk error only means that a request is not noted."""

    def __init__(self, folder: str, worker: int) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._path = owned_file.new_path(folder, f"live-{worker}", ".bin")
        self._encode = msgspec.msgpack.Encoder().encode
        self._file = -1
        self._map: mmap.mmap | None = None
        self._slots = 0
        self._free: list[int] = []
        self._by_id: dict[str, int] = {}

    def begin(self, entry: Entry, input_tokens: int) -> None:
        """Note a request. `input_tokens` is the estimate that its entry gets if the worker dies."""
        if not self._free and not self._grow():
            return
        data = self._encode((input_tokens, *_values(entry)))
        if len(data) > _SLOT_BYTES - _LENGTH.size:
            return
        assert self._map is not None
        slot = self._by_id[entry.request_id] = self._free.pop()
        offset = slot * _SLOT_BYTES
        self._map[offset : offset + _LENGTH.size + len(data)] = _LENGTH.pack(len(data)) + data

    def end(self, request_id: str) -> None:
        """Clear a request whose entry is in the spool."""
        slot = self._by_id.pop(request_id, None)
        if slot is not None and self._map is not None:
            offset = slot * _SLOT_BYTES
            self._map[offset : offset + _LENGTH.size] = _EMPTY
            self._free.append(slot)

    def close(self) -> None:
        """Release the file; the mover removes it."""
        if self._map is not None:
            self._map.close()
            os.close(self._file)
            self._map = None
            self._free = []

    def _grow(self) -> bool:
        """Allocate more slots. Writing to a page without disk space would kill the process, so write zeros to them now."""
        if self._slots >= _MAX_SLOTS:
            return False
        slots = self._slots + _GROWTH_SLOTS
        try:
            if self._file < 0:
                self._file = owned_file.create(self._path)
            if os.write(self._file, _NEW_SLOTS) < len(_NEW_SLOTS):
                return False
            previous, self._map = self._map, mmap.mmap(self._file, slots * _SLOT_BYTES)
        except OSError:
            return False
        if previous is not None:
            previous.close()
        self._free += range(self._slots, slots)
        self._slots = slots
        return True


def live_paths(folder: str) -> list[str]:
    return owned_file.paths(folder, "live", ".bin")


def orphaned(path: str) -> bool:
    """Return whether the worker of a file has ended."""
    try:
        with open(path, "rb") as file:
            return owned_file.is_orphan(file.fileno())
    except FileNotFoundError:
        return False


def read_lost(path: str) -> list[Entry]:
    """Return an entry for each request that was live when the worker ended."""
    with open(path, "rb") as file:
        data = file.read()
    entries = []
    for offset in range(0, len(data) - len(data) % _SLOT_BYTES, _SLOT_BYTES):
        (length,) = _LENGTH.unpack_from(data, offset)
        begin = offset + _LENGTH.size
        if 0 < length <= _SLOT_BYTES - _LENGTH.size:
            try:
                entries.append(_entry(*msgspec.msgpack.decode(data[begin : begin + length])))
            except (msgspec.MsgspecError, TypeError, ValueError):
                continue  # of another version
    return entries


def _entry(input_tokens: int, *values: object) -> Entry:
    fields = dict(zip(_FIELDS, values, strict=True)) | {"input_tokens": input_tokens, "usage_source": "estimated"}
    return msgspec.convert({**fields, "status": 500, "error": LOST, "finish": "lost"}, Entry)
