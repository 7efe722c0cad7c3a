"""Builders for streams and bodies of the Responses API."""

from __future__ import annotations

import json
from typing import Any


def event(name: str, *, named: bool = True, end: str = "\n", **fields: Any) -> bytes:
    data = json.dumps({"type": name, "sequence_number": 0, **fields}, separators=(",", ":"))
    line = f"event: {name}{end}" if named else ""
    return f"{line}data: {data}{end}{end}".encode()


def message(text: str, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part], **more}


def response(status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": status, "output": [], **more}


USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 18,
}


def created(**form: Any) -> bytes:
    return event("response.created", response=response("in_progress"), **form)


def deltas(*texts: str, kind: str = "output_text", output_index: int = 0, **more: Any) -> bytes:
    indexes: dict[str, Any] = {"output_index": output_index, "item_id": "msg_1"}
    if kind == "reasoning_summary_text":
        indexes["summary_index"] = 0
    elif "call" not in kind:
        indexes["content_index"] = 0
    return b"".join(
        event(f"response.{kind}.delta", **{**indexes, **more, "delta": text, "sequence_number": number})
        for number, text in enumerate(texts)
    )


def completed(*output: dict[str, Any], **more: Any) -> bytes:
    return event("response.completed", response=response(output=list(output), usage=USAGE, **more))
