"""What chat completions and completions have in common besides their streams: whole replies, messages, tool calls."""

from __future__ import annotations

from typing import Any

from penstock.endpoints.openai_types import Message, ToolCall, decode_body, error_failure
from penstock.endpoints.reply import Failure, Reply
from penstock.endpoints.reply_errors import excerpt
from penstock.endpoints.usage import read_usage

__all__ = ["add_tool_calls", "message_pieces", "read_whole", "with_stream_options"]


def read_whole(body: bytes) -> Reply:
    """A reply that is not streamed."""
    reply = Reply()
    chunk, reply.failure = decode_body(body)
    if chunk is None:
        return reply
    if chunk.error or chunk.object == "error":
        reply.failure = error_failure(chunk)
        return reply
    for choice in chunk.choices or []:
        text, thought = (choice.text or "", "") if choice.message is None else message_pieces(choice.message)
        if text:
            reply.outputs.append(text)
        if thought:
            reply.reasonings.append(thought)
        if choice.finish_reason:
            reply.finish.append(choice.finish_reason)
        if choice.message is not None and choice.message.tool_calls and not reply.items:
            calls: dict[int, dict[str, Any]] = {}
            add_tool_calls(choice.message.tool_calls, calls)
            reply.items = list(calls.values())
            reply.content = choice.message.content or ""
    if not chunk.choices:
        reply.failure = Failure("InvalidReply", f"The reply has no choices: {excerpt(body)}", "server")
    if chunk.usage:
        reply.usage = read_usage(chunk.usage)
    reply.model = chunk.model
    reply.done = True
    return reply


def message_pieces(message: Message) -> tuple[str, str]:
    """(visible text, reasoning) of a message or delta."""
    calls = message.tool_calls
    if calls is None and message.refusal is None and message.function_call is None:
        text = message.content or ""
    else:
        parts = [message.content or "", message.refusal or ""]
        for called in (message.function_call, *[call.function for call in calls or []]):
            if called is not None:
                parts += [called.name or "", called.arguments or ""]
        text = "".join(parts)
    return text, message.reasoning_content or message.reasoning or ""


def add_tool_calls(calls: list[ToolCall], into: dict[int, dict[str, Any]]) -> None:
    """Put the fragments of tool calls together, as a history wants them."""
    for place, call in enumerate(calls):
        key = place if call.index is None else call.index
        whole = into.setdefault(key, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        whole["id"] = call.id or whole["id"]
        if call.function is not None:
            whole["function"]["name"] += call.function.name or ""
            whole["function"]["arguments"] += call.function.arguments or ""


def with_stream_options(body: dict[str, Any]) -> None:
    """Ask for usage at the end of a stream; what the user set stays."""
    if body.get("stream") is True:
        options = body.get("stream_options")
        body["stream_options"] = {"include_usage": True, **(options if isinstance(options, dict) else {})}
