"""Builders for streams of chat completions and completions."""

from __future__ import annotations

import json
from typing import Any

Body = dict[str, Any]


def event(data: Any, name: str = "") -> bytes:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + b"data: " + text.encode() + b"\n\n"


DONE = event("[DONE]")


def chunk(delta: Any = None, *, index: Any = 0, finish: Any = None, **fields: Any) -> Body:
    """Build one chunk of a chat stream."""
    choice = {"index": index, "delta": {} if delta is None else delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": [choice], **fields}


def delta(text: Any, **fields: Any) -> Body:
    return chunk({"content": text}, **fields)


def text_chunk(text: Any, *, index: int = 0, finish: str | None = None) -> Body:
    """Build one chunk of a completions stream."""
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    return {**head, "choices": [{"index": index, "text": text, "logprobs": None, "finish_reason": finish}]}


def usage(prompt: int = 3, completion: int = 2, **details: Any) -> Body:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [],
        "usage": counts | details,
    }


def stream(*events: Any, done: bool = True) -> bytes:
    parts = [part if isinstance(part, bytes) else event(part) for part in events]
    return b"".join(parts) + (DONE if done else b"")


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")
