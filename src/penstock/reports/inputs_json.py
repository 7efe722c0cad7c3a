"""Write `inputs.json`: the bodies that were sent, byte for byte, by session in the order of first use.

The JSON around the bodies is indented; the bodies themselves are copied unchanged. The file can be replayed
(`--custom-dataset-type inputs_json`), and the server then receives the same bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from hashlib import sha256
from typing import IO, NamedTuple

import orjson

from penstock.datasets.json_text import is_json
from penstock.records.log import RunLog
from penstock.records.payloads import PayloadStore
from penstock.reports.sent_bodies import BodySequence, chained

__all__ = ["OmittedSessions", "write_inputs_json"]

_WHITESPACE = b" \t\r\n"


class OmittedSessions(NamedTuple):
    """Number of sessions that could not be written, by reason."""

    changed: int
    """The payload file has changed since the run."""
    unwritten: int
    """The worker that built the bodies was killed before it wrote all of them."""


def write_inputs_json(file: IO[bytes], sequences: Iterable[BodySequence], log: RunLog) -> OmittedSessions:
    changed = unwritten = 0
    with contextlib.ExitStack() as stack:
        stores: dict[int | None, PayloadStore] = {None: log.payloads}
        file.write(b'{\n  "data": [')
        separator = b"\n"
        for name, worker, numbers, expected in sequences:
            try:
                if worker not in stores:
                    stores[worker] = stack.enter_context(contextlib.closing(PayloadStore(log.folder, worker=worker)))
                sent = [stores[worker].body(number) for number in numbers]
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
    return OmittedSessions(changed, unwritten)


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
        if len(stripped) < len(body):
            start = body.find(stripped)
            padding[str(index)] = [body[:start].decode(), body[start + len(stripped) :].decode()]
    return b',\n      "padding": ' + orjson.dumps(padding) if padding else b""


def _as_json(body: bytes) -> bytes:
    """Return the body unchanged if it is JSON; write any other body (a form) as a JSON string."""
    stripped = body.strip(_WHITESPACE)
    return stripped if _is_json(stripped) else orjson.dumps(body.decode(errors="replace"))


def _is_json(body: bytes) -> bool:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            return False
    return is_json(body)
