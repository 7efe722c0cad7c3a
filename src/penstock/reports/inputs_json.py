"""`inputs.json`: the bodies that were really sent, each byte as it went out, by conversation in order of first use."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from typing import IO

import msgspec
import numpy as np
import orjson

from penstock.records.log import PayloadStore
from penstock.records.record import Record

__all__ = ["UsedPayloads", "write_inputs_json"]

_NEVER = (1 << 63) - 1


class UsedPayloads:
    """When each body was first sent: 8 bytes a body."""

    def __init__(self, payloads: int) -> None:
        self._first = array("q", [_NEVER]) * payloads

    def add(self, record: Record) -> None:
        first = self._first
        first[record.payload] = min(first[record.payload], record.start)

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


def write_inputs_json(file: IO[bytes], used: UsedPayloads, payloads: PayloadStore) -> None:
    file.write(b'{\n  "data": [')
    between = b"\n"
    for numbers in used.conversations(payloads):
        session = orjson.dumps(payloads.session(numbers[0]))
        file.write(between + b'    {\n      "session_id": ' + session + b',\n      "payloads": [\n        ')
        file.write(b",\n        ".join(_as_json(payloads.body(number)) for number in numbers))
        file.write(b"\n      ]\n    }")
        between = b",\n"
    file.write(b"\n  ]\n}\n")


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
