"""Whether a run sent what its files say: every body is hashed again and compared with the digest in its record.

Against another file, a request is looked up by its session and turn (by its line, where sessions have no names) and, when the
bytes there are others, anywhere in the file.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from penstock.datasets.detect_format import detect
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.recording import Recording, RecordingOptions
from penstock.datasets.registry import lookup
from penstock.errors import UserError
from penstock.records.log import RunLog
from penstock.records.payloads import Files
from penstock.records.proof import RootHash, plan_key
from penstock.records.record import Record
from penstock.settings.schema import InputSettings

__all__ = ["Difference", "Verdict", "verify"]

_CHANGED = "its body cannot be read any more: the file was changed since the run"
_UNWRITTEN = "its body is not in the run's folder: the worker that built it was killed before it had written it"
_SHOWN = 20
_KEPT = 65_536


class Difference(msgspec.Struct):
    session_num: int
    conversation_id: str
    turn_index: int
    x_request_id: str
    reason: str


class Verdict(msgspec.Struct):
    requests: int = 0
    """Whose body was handed to a socket."""
    matched: int = 0
    elsewhere: int = 0
    """Of the matched: the body stands at another place of the file."""
    unsent: int = 0
    """Requests whose body was not handed whole to a socket: there is nothing to compare."""
    differing: int = 0
    differences: list[Difference] = []
    """The first of them."""
    root: str = ""
    """Computed now, from the digests in the records."""
    reported_root: str | None = None
    """What the run's summary says."""
    export: str | None = None
    """What is wrong with the per-request file, when something is."""
    received: bool = False
    """The file is what the server logged."""

    @property
    def holds(self) -> bool:
        return not self.differing and self.export is None and self.reported_root in (None, self.root)


class _Received(msgspec.Struct):
    """A line of a mock server's log."""

    request_id: str | None
    body_sha256: str | None


class _Exported(msgspec.Struct):
    """A line of the per-request file."""

    metadata: dict[str, Any]


Find = Callable[[Record, str], tuple[str | None, bool]]
"""For a record and its session's name: why the body is not the same (None: it is), and whether it is at another place."""


def verify(
    log: RunLog,
    *,
    against: str | None = None,
    format_: str | None = None,
    reported_root: str | None = None,
    export: str | None = None,
) -> Verdict:
    """`against` is a file of payloads or a log of the mock server; `export` the per-request file to check as well."""
    received = None if against is None or format_ is not None else _received(against)
    if against is None:
        find = _in_the_run(log)
    else:
        find = _in_file(against, format_) if received is None else _by_request(received, os.path.basename(against))
    verdict = Verdict(reported_root=reported_root, received=received is not None)
    lines = _Export(export)
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as scratch:
        root = RootHash(scratch)
        for record in log.records():
            lines.check(record)
            if not record.digest:
                verdict.unsent += 1
                continue
            verdict.requests += 1
            root.add(plan_key(record.phase, record.number, record.turn), record.digest)
            session = log.payloads.session_name(record.conversation)
            reason, elsewhere = find(record, session)
            if reason is None:
                verdict.matched += 1
                verdict.elsewhere += elsewhere
                continue
            verdict.differing += 1
            if len(verdict.differences) < _SHOWN:
                verdict.differences.append(Difference(record.number, session, record.turn, record.request_id, reason))
        verdict.root = root.root()
    verdict.export = lines.finish()
    return verdict


def _in_the_run(log: RunLog) -> Find:
    """Hash the body anew where the log says that it lies."""
    known: dict[int, bytes] = {}

    def find(record: Record, _session: str) -> tuple[str | None, bool]:
        digest = known.get(record.payload) if record.built is None else None
        if digest is None:
            try:
                digest = sha256(log.body(record)).digest()
            except OSError:
                return _CHANGED if record.built is None else _UNWRITTEN, False
            if record.built is None:
                if len(known) >= _KEPT:
                    known.clear()
                known[record.payload] = digest
        if digest == record.digest:
            return None, False
        return f"sent {_short(record.digest)}, but the file now holds {_short(digest)} there", False

    return find


def _in_file(path: str, format_: str | None) -> Find:
    table = _Table(path, format_)

    def find(record: Record, session: str) -> tuple[str | None, bool]:
        there, where = table.at(session, record.conversation, record.turn)
        if there == record.digest:
            return None, False
        if table.has(record.digest):
            return None, there is not None
        if there is None:
            return f"sent {_short(record.digest)}, but {table.name} has no {where}, and these bytes nowhere", False
        return f"sent {_short(record.digest)}, but {table.name} has {_short(there)} for {where}", False

    return find


def _received(path: str) -> dict[str, str] | None:
    """Digests by request id, when the file is what a mock server logged."""

    decode = msgspec.json.Decoder(_Received).decode
    found: dict[str, str] = {}
    try:
        with open(path, "rb") as file:
            for line in file:
                seen = decode(line)
                if seen.request_id is not None and seen.body_sha256 is not None:
                    found[seen.request_id] = seen.body_sha256
    except (OSError, msgspec.MsgspecError):
        return None
    return found or None


def _by_request(received: dict[str, str], name: str) -> Find:
    def find(record: Record, _session: str) -> tuple[str | None, bool]:
        there = received.get(record.request_id)
        if there == record.digest.hex():
            return None, False
        if there is None:
            return f"{name} has no request with this id: the server never received it whole", False
        return f"sent {_short(record.digest)}, but the server received {there[:12]}…", False

    return find


class _Table:
    """The digests of a file of payloads, by session and turn: 40 bytes a payload and the names."""

    def __init__(self, path: str, format_: str | None) -> None:
        self.name = os.path.basename(path.rstrip("/"))
        self._digests = bytearray()
        self._first = array("q")
        self._by_name: dict[str, int] = {}
        problems = FileErrors(path)
        recording = _recording(path, format_)
        files = Files([file.path for file in recording.files])
        # Not with the endpoint of the run: this is about bytes, and any object will do.
        for number, recorded in enumerate(recording.scan(RecordingOptions("raw"), problems)):
            self._first.append(len(self._digests) // 32)
            if recorded.session is not None:
                self._by_name.setdefault(recorded.session, number)
            for place in recorded.bodies:
                before, behind = place.padding or (b"", b"")
                body = files.read(place.file, place.length, place.offset)
                self._digests += sha256(before + body + behind).digest()
        files.close()
        problems.raise_any()
        self._first.append(len(self._digests) // 32)
        heads = np.frombuffer(self._digests, "<u8")[::4]
        self._order = np.argsort(heads, kind="stable")
        self._heads = heads[self._order]

    def at(self, session: str, conversation: int, turn: int) -> tuple[bytes | None, str]:
        """The digest for that turn, and what the place is called."""
        if self._by_name:
            number, where = self._by_name.get(session), f"session '{session}', turn {turn}"
        else:
            number, where = conversation, f"payload number {conversation + 1}"
        if number is None or number + 1 >= len(self._first):
            return None, where
        place = self._first[number] + turn
        return (self._digest(place) if place < self._first[number + 1] else None), where

    def has(self, digest: bytes) -> bool:
        head = int.from_bytes(digest[:8], "little")
        place = int(np.searchsorted(self._heads, np.uint64(head)))
        while place < len(self._heads) and int(self._heads[place]) == head:
            if self._digest(int(self._order[place])) == digest:
                return True
            place += 1
        return False

    def _digest(self, place: int) -> bytes:
        return bytes(self._digests[place * 32 : place * 32 + 32])


def _recording(path: str, format_: str | None) -> Recording:
    if not os.path.exists(path):
        raise UserError(f"--against '{path}' does not exist.")
    found = detect(path) if format_ is None else lookup(format_)
    recording = found.read(path, InputSettings(file=path)).recording
    if recording is None:
        raise UserError(
            f"--against '{path}' looks like {found.name}, from which bodies are built; compare with a file that holds "
            "bodies: raw_payload, inputs_json, mooncake_trace payloads, or the log of a mock server."
        )
    return recording


class _Export:
    """The per-request file, whose lines stand in the order of the log."""

    def __init__(self, path: str | None) -> None:
        self._lines: Iterator[dict[str, Any]] | None = None if path is None else _metadata(path)
        self._name = "" if path is None else os.path.basename(path)
        self._line = 0
        self._wrong: str | None = None

    def check(self, record: Record) -> None:
        if self._lines is None or self._wrong is not None:
            return
        self._line += 1
        found = next(self._lines, None)
        if found is None:
            self._wrong = f"{self._name} ends before line {self._line:,}, and the log goes on."
        elif found.get("x_request_id") != record.request_id:
            self._wrong = f"{self._name}:{self._line}: it is about another request than the log's."
        elif found.get("body_sha256", "") != record.digest.hex():
            self._wrong = f"{self._name}:{self._line}: its body_sha256 is not the one in the log."

    def finish(self) -> str | None:
        if self._lines is not None and self._wrong is None and next(self._lines, None) is not None:
            self._wrong = f"{self._name} goes on behind line {self._line:,}, where the log ends."
        return self._wrong


def _metadata(path: str) -> Iterator[dict[str, Any]]:
    decode = msgspec.json.Decoder(_Exported).decode
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield decode(line).metadata
            except msgspec.MsgspecError as error:
                raise UserError(f"{path}:{number}: not a line of a per-request file ({error}).") from None


def _short(digest: bytes) -> str:
    return f"{digest.hex()[:12]}…"
