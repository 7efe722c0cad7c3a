"""What was sent: which bodies in which order, from the digests of the records alone, in little memory.

Sessions that sent the same bodies are one sequence; what tells sequences apart is a hash over the digests of their bodies. All
that is kept of a session is 44 bytes, and 8 for each of its bodies, in files that are thrown away afterwards.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from penstock.metrics.summary import Proof
from penstock.records.log import RunLog
from penstock.records.record import Record
from penstock.records.root_hash import RootHash, memory_map, schedule_key

__all__ = ["SentBodies", "Sequence", "chained"]

_ROW = struct.Struct("<QQqqIIi")
_ROWS = np.dtype(
    [("a", "<u8"), ("b", "<u8"), ("number", "<i8"), ("at", "<i8"), ("turns", "<u4"), ("talk", "<u4"), ("worker", "<i4")]
)
_STORED = -1
_SEEN = 65_536
_BUFFER = 1 << 20


class Sequence(NamedTuple):
    """The bodies of a session, in order."""

    name: str
    worker: int | None
    """Who built them; None when they were sent as stored."""
    bodies: list[int]
    """Their numbers in that worker's store, or in the run's."""
    hash: bytes
    """The first half of their `chained` digests: whoever reads the bodies can tell whether they are still the same."""


def chained(chain: bytes, digest: bytes) -> bytes:
    """The hash of a sequence of bodies, from that of the sequence without its last one."""
    return sha256(chain + digest).digest()


class _Session:
    __slots__ = ("bodies", "chain")

    def __init__(self) -> None:
        self.chain = b""
        self.bodies: list[int] = []


class SentBodies:
    """Takes every record of a run once, those of one worker in their order."""

    def __init__(self, log: RunLog, scratch: str) -> None:
        self._log = log
        self._open: dict[int, _Session] = {}
        self._owner: dict[int, tuple[int, int]] = {}
        self._seen: dict[tuple[int, int], int] = {}
        self._names = {part: os.path.join(scratch, f"sent-{part}") for part in ("rows", "bodies")}
        self._files = {part: open(path, "wb", buffering=_BUFFER) for part, path in self._names.items()}  # noqa: SIM115
        self._root = RootHash(scratch)
        self._placed = 0

    def add(self, record: Record) -> None:
        if not record.digest:
            return  # nothing of it was handed to a socket
        key = schedule_key(record.phase, record.number, record.turn)
        self._root.add(key, record.digest)
        number = key >> 20
        session = self._open.get(number)
        if session is None:
            session = self._open[number] = _Session()
            self._owner[number] = record.conversation, _STORED if record.built is None else record.worker
        session.chain = chained(session.chain, record.digest)
        session.bodies.append(record.payload if record.built is None else record.built)
        if record.turn + 1 >= len(self._log.payloads.turns(record.conversation)):
            self._close(number)

    def _close(self, number: int) -> None:
        session = self._open.pop(number)
        conversation, worker = self._owner.pop(number)
        key = (int.from_bytes(session.chain[:8], "little"), int.from_bytes(session.chain[8:16], "little"))
        if self._seen.get(key, number + 1) <= number:
            return
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen[key] = number
        row = _ROW.pack(*key, number, self._placed, len(session.bodies), conversation, worker)
        self._files["rows"].write(row)
        self._files["bodies"].write(struct.pack(f"<{len(session.bodies)}q", *session.bodies))
        self._placed += len(session.bodies)

    def finish(self) -> None:
        """All records are in."""
        for number in list(self._open):
            self._close(number)  # it was cut short
        for file in self._files.values():
            file.close()

    def proof(self) -> Proof:
        return Proof(self._root.requests, self._root.root())

    def sequences(self) -> Iterator[Sequence]:
        """Each distinct sequence of bodies once, in the order of its first use: that of the plan, so that a replay of the
        file has the same root."""
        if not os.path.getsize(self._names["rows"]):
            return
        rows = memory_map(self._names["rows"], _ROWS)
        bodies = memory_map(self._names["bodies"], np.dtype("<i8"))
        order = np.lexsort((rows["number"], rows["b"], rows["a"]))
        a, b = rows["a"][order], rows["b"][order]
        first = np.ones(len(order), bool)
        first[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
        kept = order[first]
        kept = kept[np.argsort(rows["number"][kept], kind="stable")]
        named = np.zeros(self._log.payloads.conversations, np.uint32)
        for i in kept:
            row = rows[i]
            talk, at, worker = int(row["talk"]), int(row["at"]), int(row["worker"])
            named[talk] += 1
            # The same conversation with other bodies, because other replies came or because it was cut short.
            name = self._log.payloads.session_name(talk) + (f"#{named[talk]}" if named[talk] > 1 else "")
            yield Sequence(
                name,
                None if worker == _STORED else worker,
                bodies[at : at + int(row["turns"])].tolist(),
                struct.pack("<QQ", int(row["a"]), int(row["b"])),
            )
