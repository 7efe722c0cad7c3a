"""Write `inputs.json`: the bodies that were sent, byte for byte, by session in the order of first use.

The JSON around the bodies is indented; the bodies themselves are copied unchanged. The file can be replayed
(`--custom-dataset-type inputs_json`), and the server then receives the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from typing import IO, NamedTuple

import msgspec
import orjson

from penstock.datasets.json_text import is_json
from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.summary import Summary
from penstock.plural import counted
from penstock.records.bodies import BodyReader
from penstock.reports.artifacts import Draft
from penstock.reports.check_inputs_json import OtherBody, check_inputs_json
from penstock.reports.sent_bodies import BodySequence, SentBodies, SentPart, chained
from penstock.reports.sink import ReportContext, Sink

_WHITESPACE = b" \t\r\n"


class InputsJson(Sink):
    def __init__(self, context: ReportContext, path: str) -> None:
        super().__init__(context, path)
        self._sent = SentBodies(context.bodies.payloads, context.scratch)

    def add_batch(self, batch: Batch, _table: MeasureTable) -> None:
        for record in batch.records:
            self._sent.add(record)

    def section_part(self) -> SentPart:
        return self._sent.part()

    def add_part(self, part: SentPart) -> None:
        self._sent.add_part(part)

    def finish(self, summary: Summary) -> None:
        """Write the file, unless that would omit sessions that the existing file contains."""
        self._sent.finish()
        draft = Draft(self.path)
        try:
            summary.note = _omission_note(_write(draft.file, self._sent.sequences(), self.context.bodies))
            if summary.note is not None and self._existing_is_complete():
                summary.note = (
                    "inputs.json was kept: it contains bodies that cannot be read from their source any more."
                )
            else:
                draft.commit()
        finally:
            draft.discard()

    def _existing_is_complete(self) -> bool:
        return (
            os.path.exists(self.path)
            and check_inputs_json(self.path, self.context.log, self.context.bodies.payloads) is None
        )


class _OmittedSessions(NamedTuple):
    """Number of sessions that could not be written, by reason."""

    changed: int
    """The payload file has changed since the run."""
    unwritten: int
    """The worker that built the bodies was killed before it wrote all of them."""


def _omission_note(omitted: _OmittedSessions) -> str | None:
    reasons = (
        (omitted.changed, "the file with their payloads has changed since they were sent"),
        (omitted.unwritten, "a worker was killed before it had written their payloads"),
    )
    notes = [f"inputs.json omits {counted(count, 'session')}: {reason}." for count, reason in reasons if count]
    return " ".join(notes) or None


def _write(file: IO[bytes], sequences: Iterable[BodySequence], bodies: BodyReader) -> _OmittedSessions:
    changed = unwritten = 0
    file.write(b'{\n  "data": [')
    separator = b"\n"
    for name, worker, numbers, expected in sequences:
        try:
            store = bodies.payloads if worker is None else bodies.built_by(worker)
            sent = [store.body(number) for number in numbers]
        except OSError:
            sent = []
        if _hash(sent) != expected:
            changed += worker is None
            unwritten += worker is not None
            continue
        file.write(
            separator + b'    {\n      "session_id": ' + orjson.dumps(name) + b',\n      "payloads": [\n        '
        )
        file.write(b",\n        ".join(map(_as_json, sent)))
        file.write(b"\n      ]" + _padding(sent) + b"\n    }")
        separator = b",\n"
    file.write(b"\n  ]\n}\n")
    return _OmittedSessions(changed, unwritten)


def _hash(bodies: list[bytes]) -> bytes:
    chain = b""
    for body in bodies:
        chain = chained(chain, sha256(body).digest())
    return chain[:16]


def _padding(bodies: list[bytes]) -> bytes:
    """Return the `padding` field: by index of the body, the whitespace before and after it, which JSON would drop."""
    padding = {}
    for index, body in enumerate(bodies):
        stripped = body.strip(_WHITESPACE)
        if len(stripped) < len(body) and _is_json(stripped):
            start = body.find(stripped)
            padding[str(index)] = [body[:start].decode(), body[start + len(stripped) :].decode()]
    return b',\n      "padding": ' + orjson.dumps(padding) if padding else b""


def _as_json(body: bytes) -> bytes:
    """Return the body unchanged if it is JSON; write any other (a form) as an `OtherBody`."""
    stripped = body.strip(_WHITESPACE)
    if _is_json(stripped):
        return stripped
    try:
        return msgspec.json.encode(OtherBody(body=body.decode()))
    except UnicodeDecodeError:
        return msgspec.json.encode(OtherBody(body_b64=body))


def _is_json(body: bytes) -> bool:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            return False
    return is_json(body)
