"""Rows of a `mooncake_trace` without payloads, from which requests are built.

{"timestamp": 0, "input_length": 1200, "output_length": 50, "hash_ids": [7, 8, 9]}
{"timestamp": 250, "text_input": "Name three rivers.", "output_length": 20, "session_id": "s"}
{"delay": 1500, "messages": [{"role": "user", "content": "And lakes?"}], "session_id": "t"}
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.datasets.conversation import Turn
from penstock.datasets.format import Contents
from penstock.datasets.trace_rows import TraceRow, check_milliseconds, prompt, read_trace
from penstock.settings.schema import InputSettings

__all__ = ["BLOCK_SIZE", "FORMS", "read_rows"]

BLOCK_SIZE = 512
FORMS = ("messages", "text_input", "input_length")
"""Fields that describe a prompt; a row has one of them or a payload."""


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


def read_rows(path: str, settings: InputSettings) -> Contents:
    block_size = settings.block_size or BLOCK_SIZE
    forms: dict[str, str] = {}
    """The form of the rows of each session."""

    def row(fields: _Line) -> TraceRow:
        return _row(fields, _form(fields), block_size)

    def link(fields: _Line, row: TraceRow) -> TraceRow:
        if row.session is not None and forms.setdefault(row.session, form := _form(fields)) != form:
            raise ValueError(
                f"it has '{form}', but earlier rows of its session have '{forms[row.session]}'; a session has one of them"
            )
        return row

    decode = msgspec.json.Decoder(_Line).decode
    return read_trace(path, settings, block_size, decode, row, link, session_key=b'"session_id"')


def _form(fields: _Line) -> str:
    forms = [form for form in FORMS if getattr(fields, form) is not None]
    if fields.payload is not msgspec.UNSET:
        raise ValueError(
            "it has a 'payload', but the first row has none; put rows with payloads into a file of their own"
        )
    if not forms:
        raise ValueError("it has no prompt: give it 'input_length', 'text_input', 'messages' or 'payload'")
    if len(forms) > 1:
        raise ValueError(f"it has both '{forms[0]}' and '{forms[1]}'; keep one")
    if fields.hash_ids and forms[0] != "input_length":
        raise ValueError(f"it has both '{forms[0]}' and 'hash_ids', which belong to an 'input_length'")
    if fields.tools is not None and forms[0] != "messages":
        raise ValueError("it has 'tools' without 'messages'")
    return forms[0]


def _row(fields: _Line, form: str, block_size: int) -> TraceRow:
    check_milliseconds(timestamp=fields.timestamp, delay=fields.delay)
    extra = dict(fields.extra or {})
    if form == "messages":
        tools = {} if fields.tools is None else {"tools": fields.tools}
        extra = {"messages": fields.messages, **tools, **extra}
    turn = Turn(
        texts=() if fields.text_input is None else (fields.text_input,),
        prompt=None if fields.input_length is None else prompt(fields.input_length, fields.hash_ids, block_size),
        output_tokens=fields.output_length,
        extra=extra,
        delay_ms=fields.delay or 0.0,
        timestamp_ms=fields.timestamp,
    )
    session = None if fields.session_id in (None, "") else str(fields.session_id)
    return TraceRow(turn, session, complete=form == "messages" or bool(fields.hash_ids))
