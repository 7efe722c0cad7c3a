"""The bodies that a run sent, in the order of the schedule, collected from the digests in its records.

Sessions that sent the same bodies form one sequence, identified by a hash over the digests of its bodies. Sessions are kept
in a temporary SQLite database, so memory does not grow with their number. SQLite sorts in the system's temporary folder.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from array import array
from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from penstock.records.payloads import PayloadStore
from penstock.records.record import Record
from penstock.records.root_hash import session_key

__all__ = ["BodySequence", "SentBodies", "chained"]

_BATCH = 1_024
_KNOWN = 16_384
_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE session (hash BLOB, number INTEGER, conversation INTEGER, worker INTEGER, bodies BLOB);
"""
# With MIN(), SQLite takes the other columns from the row that has the minimum.
_FIRST_USES = "SELECT hash, MIN(number), conversation, worker, bodies FROM session GROUP BY hash ORDER BY 2"


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
    __slots__ = ("bodies", "conversation", "digests", "first_turn", "last_turn", "worker")

    def __init__(self, conversation: int, worker: int | None, first_turn: int) -> None:
        self.conversation = conversation
        self.worker = worker
        self.first_turn = self.last_turn = first_turn
        self.digests: list[bytes] = []
        self.bodies: list[int] = []

    def chain(self) -> bytes:
        chain = b""
        for digest in self.digests:
            chain = chained(chain, digest)
        return chain


class SentPart(NamedTuple):
    """The bodies of a section."""

    open: dict[int, _Session]
    """Sessions with turns in other sections."""
    database: str
    """Path of the database with the others."""


class SentBodies:
    """Collects the bodies of a run. Takes every record once, those of one worker in their order."""

    def __init__(self, payloads: PayloadStore, scratch: str) -> None:
        """Open a database in the folder `scratch`, which the caller deletes."""
        self._payloads = payloads
        self._open: dict[int, _Session] = {}
        self._single_turns = len(payloads) == payloads.conversations
        self._first_numbers: dict[bytes, int] = {}
        """The first use of sequences that are in the database, by their hash."""
        self._rows: list[tuple[bytes, int, int, int | None, bytes]] = []
        self._path = os.path.join(scratch, "sessions.sqlite")
        self._database = sqlite3.connect(self._path, isolation_level=None)
        self._database.executescript(_SCHEMA)

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
        self._close_if_complete(number, session)

    def _close_if_complete(self, number: int, session: _Session) -> None:
        if session.first_turn:
            return  # its first turns are in an earlier section
        if self._single_turns or session.last_turn + 1 >= len(self._payloads.turns(session.conversation)):
            self._close(number)

    def _close(self, number: int) -> None:
        session = self._open.pop(number)
        chain = session.chain()
        if self._first_numbers.get(chain, number + 1) <= number:
            return  # only the first use of a sequence is written
        if len(self._first_numbers) >= _KNOWN:
            self._first_numbers.clear()
        self._first_numbers[chain] = number
        bodies = struct.pack(f"<{len(session.bodies)}q", *session.bodies)
        self._rows.append((chain[:16], number, session.conversation, session.worker, bodies))
        if len(self._rows) >= _BATCH:
            self._flush()

    def part(self) -> SentPart:
        """Return what was collected from the records of a section. Add nothing after this call."""
        self._flush()
        return SentPart(self._open, self._path)

    def add_part(self, part: SentPart) -> None:
        """Take what was collected from the next section."""
        self._flush()
        self._database.execute("ATTACH ? AS part", (part.database,))
        self._database.execute("INSERT INTO session SELECT * FROM part.session")
        self._database.execute("DETACH part")
        for number, session in part.open.items():
            earlier = self._open.setdefault(number, session)
            if earlier is not session:
                earlier.digests += session.digests
                earlier.bodies += session.bodies
                earlier.last_turn = session.last_turn
            self._close_if_complete(number, earlier)

    def _flush(self) -> None:
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO session VALUES (?, ?, ?, ?, ?)", self._rows)
        self._database.execute("COMMIT")
        self._rows.clear()

    def finish(self) -> None:
        """Close the sessions that were cut short. Call this after the last record."""
        for number in list(self._open):
            self._close(number)
        self._flush()

    def sequences(self) -> Iterator[BodySequence]:
        """Yield each distinct sequence of bodies once, by first use in the schedule, so that a replay has the same root."""
        payloads = self._payloads
        uses = array("I", [0]) * payloads.conversations
        for digest, _, conversation, worker, bodies in self._database.execute(_FIRST_USES):
            uses[conversation] += 1
            # A conversation with other bodies than before: the replies differed, or it was cut short.
            suffix = f"#{uses[conversation]}" if uses[conversation] > 1 else ""
            numbers = struct.unpack(f"<{len(bodies) // 8}q", bodies)
            yield BodySequence(payloads.session_name(conversation) + suffix, worker, numbers, digest)

    def close(self) -> None:
        self._database.close()
