"""Verifies a run: every body is hashed again and compared with the digest in its record.

Against another file, a request is looked up by its session and turn (by its line, if sessions have no names) and, if the
bytes there differ, anywhere in the file.
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

from penstock.datasets.dataset import Dataset, ReadOptions
from penstock.datasets.detect_format import detect
from penstock.datasets.formats import lookup
from penstock.datasets.jsonl import FileErrors
from penstock.errors import UserError
from penstock.records.bodies import BodyReader
from penstock.records.log import RunLog
from penstock.records.payloads import PayloadFiles
from penstock.records.record import Record
from penstock.records.root_hash import RootHash, schedule_key
from penstock.records.section import Damage
from penstock.scratch import Scratch
from penstock.settings.schema import InputSettings

_CHANGED = "its body cannot be read any more: the file was changed since the run"
_UNWRITTEN = "its body is not in the run's folder: the worker that built it was killed before it had written it"
_MAX_DIFFERENCES = 20
_CACHED_DIGESTS = 65_536


class Difference(msgspec.Struct):
    session_num: int
    conversation_id: str
    turn_index: int
    x_request_id: str
    reason: str


class Verdict(msgspec.Struct):
    requests: int = 0
    """Requests whose body was written to a socket in full."""
    matched: int = 0
    elsewhere: int = 0
    """Matched requests whose body is at another position of the file."""
    unsent: int = 0
    """Requests whose body was not written to a socket in full: there is nothing to compare."""
    differing: int = 0
    differences: list[Difference] = []
    """The first 20 differences."""
    root: str = ""
    """The root hash, computed from the digests in the records."""
    reported_root: str | None = None
    """The root hash in the run's summary."""
    export: str | None = None
    """The error in the per-request file, if there is one."""
    inputs: str | None = None
    """The error in the run's own inputs.json, if there is one. The caller checks that file."""
    damaged_bytes: int = 0
    """Bytes of the log that cannot be read: the requests in them were not checked."""
    received: bool = False
    """Whether the compared file is a mock server's request log."""

    @property
    def holds(self) -> bool:
        intact = self.export is None and self.inputs is None
        return intact and not self.differing and self.reported_root in (None, self.root)


class _Received(msgspec.Struct):
    """A line of a mock server's request log."""

    request_id: str | None
    body_sha256: str | None


class _Exported(msgspec.Struct):
    """A line of the per-request file."""

    metadata: dict[str, Any]


Compare = Callable[[Record, str], tuple[str | None, bool]]
"""Takes a record and its session's name; returns the difference (None if the body is the same) and whether the body is at
another position of the file."""


def verify(
    log: RunLog,
    *,
    against: str | None = None,
    format_: str | None = None,
    reported_root: str | None = None,
    export: str | None = None,
) -> Verdict:
    """Verify a run. `against` is a file of payloads or a mock server's request log; `export` is the per-request file."""
    received = None if against is None or format_ is not None else _read_request_log(against)
    bodies, damage = BodyReader(log), Damage()
    if against is None:
        compare = _compare_with_run(bodies)
    elif received is None:
        compare = _compare_with_file(against, format_)
    else:
        compare = _compare_with_request_log(received, os.path.basename(against))
    verdict = Verdict(reported_root=reported_root, received=received is not None)
    export_check = _ExportCheck(export)
    with bodies, Scratch(tempfile.gettempdir()) as scratch:
        root = RootHash(scratch)
        for record in log.records(damage):
            export_check.check(record)
            if not record.digest:
                verdict.unsent += 1
                continue
            verdict.requests += 1
            root.add(schedule_key(record.phase, record.number, record.turn), record.digest)
            session = bodies.payloads.session_name(record.conversation)
            reason, elsewhere = compare(record, session)
            if reason is None:
                verdict.matched += 1
                verdict.elsewhere += elsewhere
                continue
            verdict.differing += 1
            if len(verdict.differences) < _MAX_DIFFERENCES:
                verdict.differences.append(Difference(record.number, session, record.turn, record.request_id, reason))
        verdict.root = root.root()
    verdict.export = export_check.finish()
    verdict.damaged_bytes = damage.torn_bytes + damage.skipped_bytes
    return verdict


def _compare_with_run(bodies: BodyReader) -> Compare:
    """Compare with the body to which the record refers."""
    digests: dict[int, bytes] = {}

    def compare(record: Record, _session: str) -> tuple[str | None, bool]:
        digest = digests.get(record.payload) if record.built is None else None
        if digest is None:
            try:
                digest = sha256(bodies.body(record)).digest()
            except OSError:
                return _CHANGED if record.built is None else _UNWRITTEN, False
            if record.built is None:
                if len(digests) >= _CACHED_DIGESTS:
                    digests.clear()
                digests[record.payload] = digest
        if digest == record.digest:
            return None, False
        return f"sent {_short(record.digest)}, but the file now holds {_short(digest)} there", False

    return compare


def _compare_with_file(path: str, format_: str | None) -> Compare:
    table = _DigestTable(path, format_)

    def compare(record: Record, session: str) -> tuple[str | None, bool]:
        expected, where = table.lookup(session, record.conversation, record.turn)
        if expected == record.digest:
            return None, False
        if table.contains(record.digest):
            return None, expected is not None
        if expected is None:
            return (
                f"sent {_short(record.digest)}, but {table.name} has neither {where} nor these bytes anywhere else",
                False,
            )
        return f"sent {_short(record.digest)}, but {table.name} has {_short(expected)} for {where}", False

    return compare


def _read_request_log(path: str) -> dict[str, str] | None:
    """Return the digests by request id, or None if the file is not a mock server's request log."""
    decode = msgspec.json.Decoder(_Received).decode
    digests: dict[str, str] = {}
    try:
        with open(path, "rb") as file:
            for line in file:
                request = decode(line)
                if request.request_id is not None and request.body_sha256 is not None:
                    digests[request.request_id] = request.body_sha256
    except (OSError, msgspec.MsgspecError):
        return None
    return digests or None


def _compare_with_request_log(received: dict[str, str], name: str) -> Compare:
    def compare(record: Record, _session: str) -> tuple[str | None, bool]:
        digest = received.get(record.request_id)
        if digest == record.digest.hex():
            return None, False
        if digest is None:
            return f"{name} has no request with this id: the server never received it whole", False
        return f"sent {_short(record.digest)}, but the server received {digest[:12]}…", False

    return compare


class _DigestTable:
    """The digests of a file of payloads, by session and turn. It takes 40 bytes a payload, plus the session names."""

    def __init__(self, path: str, format_: str | None) -> None:
        self.name = os.path.basename(path.rstrip("/"))
        self._digests = bytearray()
        self._first = array("q")
        self._by_name: dict[str, int] = {}
        errors = FileErrors(path)
        recording = _open_recording(path, format_)
        files = PayloadFiles([file.path for file in recording.files])
        for number, conversation in enumerate(recording.read(errors)):
            self._first.append(len(self._digests) // 32)
            if conversation.id:
                self._by_name.setdefault(conversation.id, number)
            for place in [turn.body for turn in conversation.turns if turn.body is not None]:
                before, after = place.padding or (b"", b"")
                body = files.read(place.file, place.length, place.offset)
                self._digests += sha256(before + body + after).digest()
        files.close()
        errors.raise_any()
        self._first.append(len(self._digests) // 32)
        heads = np.frombuffer(self._digests, "<u8")[::4]
        self._order = np.argsort(heads, kind="stable")
        self._heads = heads[self._order]

    def lookup(self, session: str, conversation: int, turn: int) -> tuple[bytes | None, str]:
        """Return the digest of that turn (None if there is none) and a description of its position."""
        if self._by_name:
            number, where = self._by_name.get(session), f"session '{session}', turn {turn}"
        else:
            number, where = conversation, f"payload number {conversation + 1}"
        if number is None or number + 1 >= len(self._first):
            return None, where
        position = self._first[number] + turn
        return (self._digest(position) if position < self._first[number + 1] else None), where

    def contains(self, digest: bytes) -> bool:
        head = int.from_bytes(digest[:8], "little")
        rank = int(np.searchsorted(self._heads, np.uint64(head)))
        while rank < len(self._heads) and int(self._heads[rank]) == head:
            if self._digest(int(self._order[rank])) == digest:
                return True
            rank += 1
        return False

    def _digest(self, position: int) -> bytes:
        return bytes(self._digests[position * 32 : position * 32 + 32])


def _open_recording(path: str, format_: str | None) -> Dataset:
    if not os.path.exists(path):
        raise UserError(f"--against '{path}' does not exist.")
    dataset_format = detect(path) if format_ is None else lookup(format_)
    recording = dataset_format.read(path, InputSettings(file=path))
    if not recording.verbatim:
        raise UserError(
            f"--against '{path}' looks like {dataset_format.name}, from which bodies are built; compare with a file that "
            "holds bodies: raw_payload, inputs_json, mooncake_trace payloads, or the log of a mock server."
        )
    # Without a `body_key` any object is accepted: only the bytes matter here, not the endpoint of the run.
    recording.prepare(ReadOptions())
    return recording


class _ExportCheck:
    """Compares the per-request file with the log; its lines are in the order of the log."""

    def __init__(self, path: str | None) -> None:
        self._lines: Iterator[dict[str, Any]] | None = None if path is None else _metadata(path)
        self._name = "" if path is None else os.path.basename(path)
        self._line = 0
        self._error: str | None = None

    def check(self, record: Record) -> None:
        if self._lines is None or self._error is not None:
            return
        self._line += 1
        metadata = next(self._lines, None)
        if metadata is None:
            self._error = f"{self._name} ends before line {self._line:,}, but the log has more requests."
        elif metadata.get("x_request_id") != record.request_id:
            self._error = f"{self._name}:{self._line}: the line is for another request than the log has here."
        elif metadata.get("body_sha256", "") != record.digest.hex():
            self._error = f"{self._name}:{self._line}: its body_sha256 is not the one in the log."

    def finish(self) -> str | None:
        if self._lines is not None and self._error is None and next(self._lines, None) is not None:
            self._error = f"{self._name} has more lines than the log has requests ({self._line:,})."
        return self._error


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
