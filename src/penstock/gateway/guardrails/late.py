"""The event that tells a caller, in the middle of a stream, that the rest was blocked."""

from __future__ import annotations

import time

import orjson

from penstock.gateway.routes import Route

__all__ = ["block_message", "late_block_event"]


def block_message(side: str, guardrail: str | None) -> str:
    """`side` is "request" or "response"."""
    named = "" if guardrail is None else f" (guardrail '{guardrail}')"
    return f"The {side} was blocked by content policy{named}."


def late_block_event(
    route: Route, guardrail: str | None, response_id: str | None, sequence: int, *, model: str = ""
) -> bytes:
    message = block_message("response", guardrail)
    if route != "responses":
        return b"data: " + orjson.dumps({"error": {"message": message, "type": "content_filter"}}) + b"\n\n"
    response = {
        "id": response_id or "",
        "object": "response",
        "created_at": int(time.time()),
        "status": "failed",
        "error": {"code": "content_filter", "message": message, "type": "content_filter"},
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }
    event = {"type": "response.failed", "sequence_number": sequence, "response": response}
    return b"event: response.failed\ndata: " + orjson.dumps(event) + b"\n\n"
