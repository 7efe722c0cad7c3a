"""The `mooncake_trace` format: rows with payloads (see `payload_trace`), or rows from which requests are built.

{"timestamp": 0, "input_length": 1200, "output_length": 50, "hash_ids": [7, 8, 9]}
{"timestamp": 250, "text_input": "Name three rivers.", "output_length": 20, "session_id": "s"}
{"delay": 1500, "messages": [{"role": "user", "content": "And lakes?"}], "session_id": "t"}
"""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import Annotated, Any

import msgspec

from penstock.datasets.conversation import Turn
from penstock.datasets.dataset import Dataset
from penstock.datasets.format import Format
from penstock.datasets.json_text import replace_lone_surrogates
from penstock.datasets.jsonl import BOM
from penstock.datasets.payload_trace import FORMS, PayloadTrace, decode_members
from penstock.datasets.row_file import Row, RowFile, prompt, session_name
from penstock.datasets.schedule_part import check_milliseconds
from penstock.settings.schema import InputSettings

_BLOCK_SIZE = 512
_TRIED_LINES = 100
"""Lines that are tried to find a row that can be read. The dataset reports the others."""


class _Line(msgspec.Struct):
    input_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    output_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    hash_ids: list[int] | None = None
    text_input: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    timestamp: float | None = None
    delay: float | None = None
    session_id: str | int | float | None = None
    extra: dict[str, Any] | None = None
    message_mode: str | None = None
    endpoint_type: str | None = None


_decode = msgspec.json.Decoder(_Line).decode


class MooncakeTrace(RowFile):
    """The requests of a trace without payloads."""

    session_key = b'"session_id"'

    def __init__(self, path: str, settings: InputSettings) -> None:
        super().__init__(path, settings.seed)
        self.block_size = settings.block_size or _BLOCK_SIZE
        self._forms: dict[str, str] = {}
        """The form of the rows of each session."""

    def parse(self, line: bytes, offset: int) -> Row:
        del offset
        fields = _decode(line)
        form = _form(fields)
        check_milliseconds(timestamp=fields.timestamp, delay=fields.delay)
        extra = fields.extra or {}
        if form == "messages":
            tools = {} if fields.tools is None else {"tools": fields.tools}
            extra = {"messages": fields.messages, **tools, **extra}
        shape = None if fields.input_length is None else prompt(fields.input_length, fields.hash_ids, self.block_size)
        turn = Turn(
            texts=() if fields.text_input is None else (fields.text_input,),
            prompt=shape,
            output_tokens=fields.output_length,
            extra=extra,
            delay_ms=fields.delay or 0.0,
            timestamp_ms=fields.timestamp,
        )
        return Row((turn,), session_name(fields.session_id), complete=form == "messages" or bool(fields.hash_ids))

    def link(self, row: Row) -> Row:
        if row.session is not None:
            turn = row.turns[0]
            form = "text_input" if turn.texts else "messages" if turn.prompt is None else "input_length"
            if self._forms.setdefault(row.session, form) != form:
                raise ValueError(
                    f"it has '{form}', but earlier rows of its session have '{self._forms[row.session]}'; a session has one "
                    "of them"
                )
        return row


def _form(fields: _Line) -> str:
    forms = [form for form in FORMS if getattr(fields, form) is not None]
    if fields.payload is not msgspec.UNSET:
        raise ValueError(
            "it has a 'payload', but the first row has none; put rows with payloads into a file of their own"
        )
    for name in ("message_mode", "endpoint_type"):
        if getattr(fields, name) is not None:
            raise ValueError(f"it has '{name}', which this version of Penstock does not support; remove it")
    if not forms:
        raise ValueError("it has no prompt: give it 'input_length', 'text_input', 'messages' or 'payload'")
    if len(forms) > 1:
        raise ValueError(f"it has both '{forms[0]}' and '{forms[1]}'; keep one")
    if fields.hash_ids and forms[0] != "input_length":
        raise ValueError(f"it has both '{forms[0]}' and 'hash_ids', which belong to an 'input_length'")
    if fields.tools is not None and forms[0] != "messages":
        raise ValueError("it has 'tools' without 'messages'")
    return forms[0]


def first_row_is_timed(path: str) -> bool:
    """Return whether the first row has a timestamp."""
    return bytes(_first_row(path).get("timestamp", b"null")) != b"null"


def _first_row(path: str) -> dict[str, msgspec.Raw]:
    """Return the fields of the first row that can be read; none if there is none."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for line in islice(file, _TRIED_LINES):
            with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                return decode_members(replace_lone_surrogates(line.removeprefix(BOM)))
    return {}


def _matches(first: dict[str, Any]) -> bool:
    return bool({"payload", *FORMS} & first.keys())


def _matches_scheduled(first: dict[str, Any]) -> bool:
    """Match messages with a timestamp as well, which are a line of `raw_payload` without a schedule."""
    return "timestamp" in first and isinstance(first.get("messages"), list)


def _read(path: str, settings: InputSettings) -> Dataset:
    first = _first_row(path)
    is_built = "payload" not in first and any(form in first for form in FORMS)
    return MooncakeTrace(path, settings) if is_built else PayloadTrace(path)


FORMAT = Format(
    name="mooncake_trace",
    needs="a trace: one object per line with 'input_length', 'text_input', 'messages' or 'payload', and 'timestamp' in ms",
    matches=_matches,
    read=_read,
    matches_scheduled=_matches_scheduled,
    has_times=first_row_is_timed,
)
