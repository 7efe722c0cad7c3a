"""What was sent: which bodies in which order, from the digests of the records alone, in little memory.

Sessions that sent the same bodies are one sequence; what tells sequences apart is a hash over the digests of their bodies. All
that is kept of a session is 44 bytes, and 8 for each of its bodies, in files that are thrown away afterwards.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.metrics.summary import Proof
from penstock.records.log import RunLog
from penstock.records.record import Record

__all__ = ["SentBodies", "Sequence", "plan_key"]

_ROW = struct.Struct("<QQqqIIi")
_ROWS = np.dtype(
    [("a", "<u8"), ("b", "<u8"), ("start", "<i8"), ("at", "<i8"), ("turns", "<u4"), ("talk", "<u4"), ("worker", "<i4")]
)
_STORED = -1
_SEEN = 65_536
_BLOCK = 65_536
_BUFFER = 1 << 20


class Sequence(NamedTuple):
    """The bodies of a session, in order."""

    name: str
    worker: int | None
    """Who built them; None when they were sent as stored."""
    bodies: list[int]
    """Their numbers in that worker's store, or in the run's."""


def plan_key(phase: int, number: int, turn: int) -> int:
    """Sorts requests in the order of the plan."""
    return phase << 58 | number << 20 | turn


class _Session:
    __slots__ = ("bodies", "chain", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.chain = b""
        self.bodies: list[int] = []


class SentBodies:
    """Takes every record of a run once, those of one worker in their order."""

    def __init__(self, log: RunLog, scratch: str) -> None:
        self._log = log
        self._open: dict[int, _Session] = {}
        self._owner: dict[int, tuple[int, int]] = {}
        self._seen: dict[tuple[int, int], int] = {}
        self._names = {part: os.path.join(scratch, f"sent-{part}") for part in ("keys", "digests", "rows", "bodies")}
        self._files = {part: open(path, "wb", buffering=_BUFFER) for part, path in self._names.items()}  # noqa: SIM115
        self._count = 0
        self._placed = 0

    def add(self, record: Record) -> None:
        if not record.digest:
            return  # nothing of it was handed to a socket
        key = plan_key(record.phase, record.number, record.turn)
        self._files["keys"].write(key.to_bytes(8, "little"))
        self._files["digests"].write(record.digest)
        self._count += 1
        number = key >> 20
        session = self._open.get(number)
        if session is None:
            session = self._open[number] = _Session(record.start)
            self._owner[number] = record.conversation, _STORED if record.built is None else record.worker
        session.chain = sha256(session.chain + record.digest).digest()
        session.bodies.append(record.payload if record.built is None else record.built)
        if record.turn + 1 >= len(self._log.payloads.turns(record.conversation)):
            self._close(number)

    def _close(self, number: int) -> None:
        session = self._open.pop(number)
        conversation, worker = self._owner.pop(number)
        key = (int.from_bytes(session.chain[:8], "little"), int.from_bytes(session.chain[8:16], "little"))
        if self._seen.get(key, session.start + 1) <= session.start:
            return
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen[key] = session.start
        row = _ROW.pack(*key, session.start, self._placed, len(session.bodies), conversation, worker)
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
        """SHA-256 over the digests of all bodies, in the order of the plan."""
        root = sha256()
        if self._count:
            order = np.argsort(self._mapped("keys", np.dtype("<i8")), kind="stable")
            digests = self._mapped("digests", np.dtype("V32"))
            for first in range(0, self._count, _BLOCK):
                root.update(digests[order[first : first + _BLOCK]].tobytes())
        return Proof(self._count, root.hexdigest())

    def sequences(self) -> Iterator[Sequence]:
        """Each distinct sequence of bodies once, in the order of its first use."""
        if not os.path.getsize(self._names["rows"]):
            return
        rows = self._mapped("rows", _ROWS)
        bodies = self._mapped("bodies", np.dtype("<i8"))
        order = np.lexsort((rows["start"], rows["b"], rows["a"]))
        a, b = rows["a"][order], rows["b"][order]
        first = np.ones(len(order), bool)
        first[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
        kept = order[first]
        kept = kept[np.argsort(rows["start"][kept], kind="stable")]
        named: dict[int, int] = {}
        for i in kept:
            row = rows[i]
            talk, at, worker = int(row["talk"]), int(row["at"]), int(row["worker"])
            named[talk] = named.get(talk, 0) + 1
            # The same conversation with other bodies, because other replies came or because it was cut short.
            name = self._log.payloads.session_name(talk) + (f"#{named[talk]}" if named[talk] > 1 else "")
            yield Sequence(name, None if worker == _STORED else worker, bodies[at : at + int(row["turns"])].tolist())

    def _mapped(self, part: str, kind: np.dtype[Any]) -> NDArray[Any]:
        mapped: NDArray[Any] = np.memmap(self._names[part], dtype=kind, mode="r")
        return mapped
