"""Rows of a trace with payloads, each of which is sent byte for byte: `{"timestamp": ms, "session_id"?: …, "payload": {…}}`."""

from __future__ import annotations

import os
import re

import msgspec

from penstock.datasets.conversation import BodyLocation, Turn
from penstock.datasets.json_text import address, replace_lone_surrogates
from penstock.datasets.jsonl import explain
from penstock.datasets.row_file import Row, RowFile, session_name
from penstock.datasets.schedule_part import check_milliseconds
from penstock.errors import UserError

FORMS = ("messages", "text_input", "input_length")
"""Fields that describe a prompt; a row has one of them or a payload."""
_PAYLOAD = re.compile(rb'"payload"[ \t\r\n]*:[ \t\r\n]*')


class _Line(msgspec.Struct):
    payload: msgspec.Raw
    timestamp: float | None = None
    delay: float | None = None
    session_id: str | int | float | None = None


decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode = msgspec.json.Decoder(_Line).decode


class PayloadTrace(RowFile):
    """The recorded bodies in a trace."""

    verbatim = True
    session_key = b'"session_id"'

    def __init__(self, path: str) -> None:
        super().__init__(path, None)

    def parse(self, line: bytes, offset: int) -> Row:
        try:
            fields = _decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            text = replace_lone_surrogates(line)
            if text != line:
                return self.parse(text, offset)
            raise ValueError(_explain(error, line)) from None
        payload = memoryview(fields.payload)
        if bytes(payload[:1]) != b"{":
            raise ValueError("'payload' should be a request body, a JSON object")
        guess = _PAYLOAD.search(line)
        begin = guess.end() if guess is not None else 0
        if not line.startswith(bytes(payload), begin):  # an earlier text or object has the same key
            begin = address(payload) - address(line)
        check_milliseconds(timestamp=fields.timestamp, delay=fields.delay)
        turn = Turn(
            body=BodyLocation(0, offset + begin, len(payload)),
            timestamp_ms=fields.timestamp,
            delay_ms=fields.delay or 0.0,
        )
        return Row((turn,), session_name(fields.session_id), complete=True)

    def empty(self) -> UserError:
        return UserError(f"{os.path.basename(self._path)}:1: the file is empty: each line should have a 'payload'.")


def _explain(error: Exception, line: bytes) -> str:
    try:
        members = decode_members(line)
    except (msgspec.MsgspecError, RecursionError) as syntax_error:
        return explain(syntax_error, line)
    if "payload" in members:
        return explain(error, line)
    if form := next((form for form in FORMS if form in members), None):
        return f"it has '{form}' and no 'payload', which the first row has; put rows of either kind into a file of their own"
    return "it has no 'payload', the request body to send"
