"""Parts that chat completions and completions share besides their streams: unstreamed replies, messages, tool calls."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.endpoints.json_replies import excerpt
from penstock.endpoints.openai_types import Message, ToolCall, chunk_failure, decode_body
from penstock.endpoints.reply import Failure, Reply
from penstock.endpoints.usage import read_usage


def read_choices_body(body: bytes) -> Reply:
    """Read an unstreamed reply."""
    chunk, failure = decode_body(body)
    if chunk is None:
        return Reply(failure)
    if chunk.error or chunk.object == "error":
        return Reply(chunk_failure(chunk))
    reply = Reply(failure)
    for choice in chunk.choices or []:
        text, reasoning = (choice.text or "", "") if choice.message is None else message_texts(choice.message)
        if text:
            reply.outputs.append(text)
        if reasoning:
            reply.reasonings.append(reasoning)
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


def texts_of(value: Any) -> list[str]:
    """Return a text, or the texts in a list, as the input of a request has them."""
    if isinstance(value, str):
        return [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def tool_texts(body: dict[str, Any]) -> list[str]:
    """Return the definitions of the tools in a request as JSON, as which the model reads them."""
    tools = body.get("tools")
    return [orjson.dumps(tool).decode() for tool in tools] if isinstance(tools, list) else []


def message_texts(message: Message) -> tuple[str, str]:
    """Return the visible text and the reasoning of a message or delta."""
    calls = message.tool_calls
    if calls is None and message.refusal is None and message.function_call is None:
        text = message.content or ""
    else:
        parts = [message.content or "", message.refusal or ""]
        for function in (message.function_call, *[call.function for call in calls or []]):
            if function is not None:
                parts += [function.name or "", function.arguments or ""]
        text = "".join(parts)
    return text, message.reasoning_content or message.reasoning or ""


def add_tool_calls(fragments: list[ToolCall], calls: dict[int, dict[str, Any]]) -> None:
    """Append fragments of tool calls to `calls`, in the form in which a later request contains them."""
    for position, fragment in enumerate(fragments):
        index = position if fragment.index is None else fragment.index
        call = calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = fragment.id or call["id"]
        if fragment.function is not None:
            call["function"]["name"] += fragment.function.name or ""
            call["function"]["arguments"] += fragment.function.arguments or ""


def set_stream_options(body: dict[str, Any], *, usage: bool = True, per_chunk: bool = False) -> None:
    """With `usage`, ask for usage at the end of a stream, or in every chunk; options that the user has set are kept. Remove
    options of null, by which the user asks to send none: some servers refuse the field."""
    options = body.get("stream_options", {})
    if options is None:
        del body["stream_options"]
    elif usage and body.get("stream") is True:
        body["stream_options"] = {
            "include_usage": True,
            **({"continuous_usage_stats": True} if per_chunk else {}),
            **(options if isinstance(options, dict) else {}),
        }
