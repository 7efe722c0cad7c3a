"""The bodies that a run sent, in the order of the schedule, collected from the digests in its records.

Sessions that sent the same bodies form one sequence, identified by a hash over the digests of its bodies. Sessions are kept
in a scratch file, 48 bytes each and 8 for each body.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.records.payloads import PayloadStore
from penstock.records.record import Record
from penstock.records.root_hash import session_key
from penstock.scratch import Scratch, Spool

_BUFFER = 1 << 16
_KNOWN = 16_384
_STORED = 1_024
_SESSION = struct.Struct("<16sqqqq")
_ROW = np.dtype([("hash", "<u8", 2), ("number", "<i8"), ("conversation", "<i8"), ("worker", "<i8"), ("bodies", "<i8")])
"""A session as `_SESSION` packs it; worker -1 stands for none, and `bodies` is their number."""


class BodySequence(NamedTuple):
    """The bodies that a session sent, in order."""

    name: str
    worker: int | None
    """The worker that built the bodies; None if they were sent as stored."""
    bodies: tuple[int, ...]
    """Numbers of the bodies in the worker's payload store, or in the run's."""
    hash: bytes
    """The first 16 bytes of the `chained` digests, which tell whether the stored bodies have changed since."""


def chained(chain: bytes, digest: bytes) -> bytes:
    """Extend the hash of a sequence of bodies by the digest of its next body."""
    return sha256(chain + digest).digest()


class _Session:
    def __init__(self, conversation: int, worker: int | None, first_turn: int) -> None:
        self.conversation = conversation
        self.worker = worker
        self.first_turn = self.last_turn = first_turn
        self.turns: list[int] = []
        """The turns of the bodies; only of trees, whose turns end in any order."""
        self.digests: list[bytes] = []
        self.bodies: list[int] = []

    def sort(self) -> None:
        """Put the bodies of a tree into the order of its turns."""
        order = sorted(range(len(self.turns)), key=self.turns.__getitem__)
        self.digests = [self.digests[index] for index in order]
        self.bodies = [self.bodies[index] for index in order]

    def chain(self) -> bytes:
        chain = b""
        for digest in self.digests:
            chain = chained(chain, digest)
        return chain


class SentPart(NamedTuple):
    """The bodies of a section."""

    open: dict[int, _Session]
    """Sessions with turns in other sections."""
    sessions: Spool
    bodies: Spool
    """The other sessions, and their bodies."""


class SentBodies:
    """Collects the bodies of a run. Takes every record once, those of one worker in their order."""

    def __init__(self, payloads: PayloadStore, scratch: Scratch) -> None:
        self._payloads = payloads
        self._open: dict[int, _Session] = {}
        self._trees = payloads.has_trees
        self._single_turns = len(payloads) == payloads.conversations
        self._first_numbers: dict[bytes, int] = {}
        """The first use of sequences that are in the file, by their hash."""
        self._buffer, self._body_buffer = bytearray(), array("q")
        self._sessions, self._bodies = Spool(scratch), Spool(scratch)

    def add(self, record: Record) -> None:
        if not record.digest:
            return  # nothing of it was handed to a socket
        number = session_key(record.phase, record.number)
        session = self._open.get(number)
        if session is None:
            worker = None if record.built is None else record.worker
            session = self._open[number] = _Session(record.conversation, worker, record.turn)
        session.digests.append(record.digest)
        session.bodies.append(record.payload if record.built is None else record.built)
        session.last_turn = record.turn
        if self._trees:
            session.turns.append(record.turn)
        self._close_if_complete(number, session)

    def _close_if_complete(self, number: int, session: _Session) -> None:
        if self._trees:
            if len(session.bodies) == len(self._payloads.turns(session.conversation)):
                self._close(number)
            return
        if session.first_turn:
            return  # its first turns are in an earlier section
        if self._single_turns or session.last_turn + 1 >= len(self._payloads.turns(session.conversation)):
            self._close(number)

    def _close(self, number: int) -> None:
        session = self._open.pop(number)
        if self._trees:
            session.sort()
        chain = session.chain()
        if self._first_numbers.get(chain, number + 1) <= number:
            return  # only the first use of a sequence is written
        if len(self._first_numbers) >= _KNOWN:
            self._first_numbers.clear()
        self._first_numbers[chain] = number
        worker = -1 if session.worker is None else session.worker
        self._buffer += _SESSION.pack(chain[:16], number, session.conversation, worker, len(session.bodies))
        self._body_buffer.extend(session.bodies)
        if len(self._buffer) >= _BUFFER:
            self._flush()

    def part(self) -> SentPart:
        """Return what was collected from the records of a section. Add nothing after this call."""
        self._flush()
        return SentPart(self._open, self._sessions, self._bodies)

    def add_part(self, part: SentPart) -> None:
        """Take what was collected from the next section."""
        self._flush()
        self._sessions.merge(part.sessions)
        self._bodies.merge(part.bodies)
        for number, session in part.open.items():
            earlier = self._open.setdefault(number, session)
            if earlier is not session:
                earlier.digests += session.digests
                earlier.bodies += session.bodies
                earlier.turns += session.turns
                earlier.last_turn = session.last_turn
            self._close_if_complete(number, earlier)

    def _flush(self) -> None:
        self._sessions.write(self._buffer)
        self._bodies.write(self._body_buffer.tobytes())
        self._buffer, self._body_buffer = bytearray(), array("q")

    def finish(self) -> None:
        """Close the sessions that were cut short. Call this after the last record."""
        for number in list(self._open):
            self._close(number)
        self._flush()

    def sequences(self) -> Iterator[BodySequence]:
        """Yield each distinct sequence of bodies once, by first use in the schedule, so that a replay has the same root."""
        payloads = self._payloads
        uses = array("I", [0]) * payloads.conversations
        rows, bodies = self._sessions.as_array(_ROW), self._bodies.as_array(np.int64)
        ends = rows["bodies"].cumsum()
        chosen = _first_uses(rows["hash"], rows["number"])
        for first in range(0, len(chosen), _STORED):
            numbers = chosen[first : first + _STORED]
            stored = [rows[name][numbers].tolist() for name in ("conversation", "worker", "bodies")]
            digests = np.ascontiguousarray(rows["hash"][numbers]).view("V16")[:, 0].tolist()
            for digest, conversation, worker, count, end in zip(digests, *stored, ends[numbers].tolist(), strict=True):
                uses[conversation] += 1
                # A conversation with other bodies than before: the replies differed, or it was cut short.
                suffix = f"#{uses[conversation]}" if uses[conversation] > 1 else ""
                yield BodySequence(
                    payloads.session_name(conversation) + suffix,
                    None if worker < 0 else worker,
                    tuple(bodies[end - count : end].tolist()),
                    digest,
                )


def _first_uses(hashes: NDArray[np.uint64], numbers: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the indexes of the first session of each sequence, in the order of their numbers."""
    order = np.lexsort((numbers, hashes[:, 1], hashes[:, 0]))
    ordered = hashes[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    first: NDArray[np.intp] = order[is_first]
    return first[np.argsort(numbers[first], kind="stable")]
