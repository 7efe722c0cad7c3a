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

from penstock.records.log import RunLog
from penstock.records.record import Record
from penstock.records.root_hash import schedule_key

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
    __slots__ = ("bodies", "chain", "conversation", "worker")

    def __init__(self, conversation: int, worker: int | None) -> None:
        self.conversation = conversation
        self.worker = worker
        self.chain = b""
        self.bodies: list[int] = []


class SentBodies:
    """Collects the bodies of a run. Takes every record once, those of one worker in their order."""

    def __init__(self, log: RunLog, scratch: str) -> None:
        """Open a database in the folder `scratch`, which the caller deletes."""
        self._log = log
        self._open: dict[int, _Session] = {}
        self._single_turns = len(log.payloads) == log.payloads.conversations
        self._first_numbers: dict[bytes, int] = {}
        """The first use of sequences that are in the database, by their hash."""
        self._rows: list[tuple[bytes, int, int, int | None, bytes]] = []
        self._database = sqlite3.connect(os.path.join(scratch, "sessions.sqlite"), isolation_level=None)
        self._database.executescript(_SCHEMA)

    def add(self, record: Record) -> None:
        if not record.digest:
            return  # nothing of it was handed to a socket
        number = schedule_key(record.phase, record.number, record.turn) >> 20
        session = self._open.get(number)
        if session is None:
            worker = None if record.built is None else record.worker
            session = self._open[number] = _Session(record.conversation, worker)
        session.chain = chained(session.chain, record.digest)
        session.bodies.append(record.payload if record.built is None else record.built)
        if self._single_turns or record.turn + 1 >= len(self._log.payloads.turns(record.conversation)):
            self._close(number)

    def _close(self, number: int) -> None:
        session = self._open.pop(number)
        if self._first_numbers.get(session.chain, number + 1) <= number:
            return  # only the first use of a sequence is written
        if len(self._first_numbers) >= _KNOWN:
            self._first_numbers.clear()
        self._first_numbers[session.chain] = number
        bodies = struct.pack(f"<{len(session.bodies)}q", *session.bodies)
        self._rows.append((session.chain[:16], number, session.conversation, session.worker, bodies))
        if len(self._rows) >= _BATCH:
            self._flush()

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
        payloads = self._log.payloads
        uses = array("I", [0]) * payloads.conversations
        for digest, _, conversation, worker, bodies in self._database.execute(_FIRST_USES):
            uses[conversation] += 1
            # A conversation with other bodies than before: the replies differed, or it was cut short.
            suffix = f"#{uses[conversation]}" if uses[conversation] > 1 else ""
            numbers = struct.unpack(f"<{len(bodies) // 8}q", bodies)
            yield BodySequence(payloads.session_name(conversation) + suffix, worker, numbers, digest)

    def close(self) -> None:
        self._database.close()
