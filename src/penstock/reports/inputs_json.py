"""`inputs.json`: the bodies that were really sent, each byte as it went out, by session in order of first use.

The frame is laid out for reading; a body stands in it as it is, whatever white space it has. So the file can be replayed
(`--custom-dataset-type inputs_json`), and the server receives the same bytes again.
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
from penstock.reports.sent_bodies import Sequence, chained

__all__ = ["Lost", "write_inputs_json"]

_BLANKS = b" \t\r\n"


class Lost(NamedTuple):
    """How many sessions had to be left out."""

    changed: int
    """The file with their bodies has changed since."""
    unwritten: int
    """The worker that built their bodies was killed before it had written all of them."""


def write_inputs_json(file: IO[bytes], sequences: Iterable[Sequence], log: RunLog) -> Lost:
    changed = unwritten = 0
    with contextlib.ExitStack() as opened:
        stores: dict[int | None, PayloadStore] = {None: log.payloads}
        file.write(b'{\n  "data": [')
        between = b"\n"
        for name, worker, numbers, expected in sequences:
            try:
                if worker not in stores:
                    stores[worker] = opened.enter_context(contextlib.closing(PayloadStore(log.folder, worker=worker)))
                sent = [stores[worker].body(number) for number in numbers]
            except OSError:
                sent = []
            if _hash(sent) != expected:
                changed += worker is None
                unwritten += worker is not None
                continue
            file.write(
                between + b'    {\n      "session_id": ' + orjson.dumps(name) + b',\n      "payloads": [\n        '
            )
            file.write(b",\n        ".join(map(_as_json, sent)))
            file.write(b"\n      ]" + _padding(sent) + b"\n    }")
            between = b",\n"
        file.write(b"\n  ]\n}\n")
    return Lost(changed, unwritten)


def _hash(bodies: list[bytes]) -> bytes:
    chain = b""
    for body in bodies:
        chain = chained(chain, sha256(body).digest())
    return chain[:16]


def _padding(bodies: list[bytes]) -> bytes:
    """White space around a body, which would be lost in the frame: by its place, what stood before and behind it."""
    found = {}
    for place, body in enumerate(bodies):
        bare = body.strip(_BLANKS)
        if len(bare) < len(body):
            at = body.find(bare)
            found[str(place)] = [body[:at].decode(), body[at + len(bare) :].decode()]
    return b',\n      "padding": ' + orjson.dumps(found) if found else b""


def _as_json(body: bytes) -> bytes:
    """The body itself. One that is not JSON (a form) becomes a string, or the file could not be read."""
    bare = body.strip(_BLANKS)
    return bare if _is_json(bare) else orjson.dumps(body.decode(errors="replace"))


def _is_json(body: bytes) -> bool:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            return False
    return is_json(body)
