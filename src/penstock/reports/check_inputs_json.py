"""Check that `inputs.json` still holds the bodies that the run sent."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from itertools import zip_longest

import msgspec

from penstock.datasets.json_window import Malformed, Truncated, Window
from penstock.records.log import RunLog
from penstock.records.payloads import PayloadStore
from penstock.reports.sent_bodies import BodySequence, SentBodies, chained
from penstock.scratch import Scratch


class OtherBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Stands for a body that is not JSON, such as a form. AIPerf requires an object."""

    body: str | None = None
    body_b64: bytes | None = None
    """A body that is not text, either."""


class _Session(msgspec.Struct):
    session_id: str
    payloads: list[msgspec.Raw]
    padding: dict[str, tuple[str, str]] = {}


def check_inputs_json(path: str, log: RunLog, payloads: PayloadStore) -> str | None:
    """Return a sentence about the first session that is not as the run sent it, or None."""
    name = os.path.basename(path)
    with Scratch(tempfile.gettempdir()) as scratch:
        sent = SentBodies(payloads, scratch)
        for record in log.records():
            sent.add(record)
        sent.finish()
        try:
            for sequence, session in zip_longest(sent.sequences(), _sessions(path)):
                if difference := _difference(sequence, session):
                    return f"{name} {difference}"
        except (Malformed, Truncated, msgspec.MsgspecError, UnicodeError):
            return f"{name} was changed since the run: it cannot be read as a list of sessions."
    return None


def _sessions(path: str) -> Iterator[_Session]:
    decode = msgspec.json.Decoder(_Session).decode
    with open(path, "rb", buffering=0) as file:
        window = Window(file)
        window.skip_space()
        if window.peek(1) != b"{":
            raise Malformed(0, "not a JSON object")
        for name in window.member_names():
            if name != "data" or window.peek(1) != b"[":
                raise Malformed(window.offset, "not a list of sessions")
            for begin, end in window.items():
                yield decode(window.data[begin:end])


def _difference(sequence: BodySequence | None, session: _Session | None) -> str | None:
    if session is None:
        assert sequence is not None
        return f"does not contain session '{sequence.name}', which was sent."
    if sequence is None:
        return f"contains session '{session.session_id}', which was not sent."
    if session.session_id != sequence.name:
        return f"has session '{session.session_id}' where the run sent session '{sequence.name}'."
    if sequence.hash not in (_hash(session, text=False), _hash(session, text=True)):
        return f"has other bytes for session '{session.session_id}' than were sent."
    return None


def _hash(session: _Session, *, text: bool) -> bytes:
    """Hash the bodies as `SentBodies` does. With `text`, an `OtherBody` stands for a body that is not JSON."""
    chain = b""
    for index, payload in enumerate(session.payloads):
        body = bytes(payload)
        if text:
            with contextlib.suppress(msgspec.ValidationError):
                other = msgspec.json.decode(body, type=OtherBody)
                body = (other.body_b64 or b"") if other.body is None else other.body.encode()
        before, after = session.padding.get(str(index), ("", ""))
        chain = chained(chain, sha256(before.encode() + body + after.encode()).digest())
    return chain[:16]
