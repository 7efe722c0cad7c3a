"""`inputs.json`: the bodies that were really sent, each byte as it went out, by conversation in order of first use."""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Iterator
from typing import IO

import msgspec
import numpy as np
import orjson

from penstock.records.log import RunLog
from penstock.records.payloads import PayloadStore
from penstock.records.record import Record

__all__ = ["UsedPayloads", "write_inputs_json"]

_NEVER = (1 << 63) - 1
_AS_STORED = -1


class UsedPayloads:
    """When each body was first sent, and which build of it when a worker built it: 20 bytes a body."""

    def __init__(self, payloads: int) -> None:
        self._first = array("q", [_NEVER]) * payloads
        self._built = array("q", [_AS_STORED]) * payloads
        self._worker = array("i", [0]) * payloads

    def add(self, record: Record) -> None:
        number = record.payload
        if record.start < self._first[number]:
            self._first[number] = record.start
            self._built[number] = _AS_STORED if record.built is None else record.built
            self._worker[number] = record.worker

    def conversations(self, payloads: PayloadStore) -> Iterator[list[int]]:
        """The numbers of the bodies of each conversation in which at least one was sent, in turn order."""
        starts = np.frombuffer(self._first, dtype=np.int64)
        used = np.flatnonzero(starts != _NEVER)
        # A conversation's bodies have consecutive numbers, so it begins where its number changes.
        owners = np.fromiter((payloads.entry(int(n)).conversation for n in used), np.int64, len(used))
        begins = np.flatnonzero(np.diff(owners, prepend=-1))
        if not len(begins):
            return
        first = np.minimum.reduceat(starts[used], begins)
        ends = np.append(begins[1:], len(used))
        for i in np.argsort(first, kind="stable"):
            yield used[begins[i] : ends[i]].tolist()

    def build(self, number: int) -> tuple[int, int] | None:
        """The worker that built the body and its number there; None when it was sent as stored."""
        built = self._built[number]
        return None if built == _AS_STORED else (self._worker[number], built)


def write_inputs_json(file: IO[bytes], used: UsedPayloads, log: RunLog) -> None:
    with contextlib.ExitStack() as opened:
        bodies = _Bodies(log, used, opened)
        file.write(b'{\n  "data": [')
        between = b"\n"
        for numbers in used.conversations(log.payloads):
            session = orjson.dumps(log.payloads.session(numbers[0]))
            file.write(between + b'    {\n      "session_id": ' + session + b',\n      "payloads": [\n        ')
            sent = (bodies.sent(number) for number in numbers)
            file.write(b",\n        ".join(_as_json(body) for body in sent if body is not None))
            file.write(b"\n      ]\n    }")
            between = b",\n"
        file.write(b"\n  ]\n}\n")


class _Bodies:
    """What was sent, wherever it lies."""

    def __init__(self, log: RunLog, used: UsedPayloads, opened: contextlib.ExitStack) -> None:
        self._log = log
        self._used = used
        self._opened = opened
        self._stores: dict[int, PayloadStore] = {}

    def sent(self, number: int) -> bytes | None:
        """None when a worker that was killed had not written it down."""
        build = self._used.build(number)
        if build is None:
            return self._log.payloads.body(number)
        try:
            return self._store(build[0]).body(build[1])
        except (LookupError, OSError):
            return None

    def _store(self, worker: int) -> PayloadStore:
        store = self._stores.get(worker)
        if store is None:
            store = self._stores[worker] = PayloadStore(self._log.folder, worker=worker)
            self._opened.callback(store.close)
        return store


def _as_json(body: bytes) -> bytes:
    """The body itself. One that is not JSON (a form, a raw payload) becomes a string, or the file could not be read."""
    return body if _is_json(body) else orjson.dumps(body.decode(errors="replace"))


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
        return True
    except msgspec.MsgspecError:
        pass
    # msgspec refuses lone surrogates, which the standard library takes.
    try:
        json.loads(body.decode())
        return True
    except ValueError:
        return False
