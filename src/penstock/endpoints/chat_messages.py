"""Messages of the chat API as what other APIs take: input items of the Responses API, and messages of Anthropic's API.

Roles, texts, images, tool calls and tool results are translated. A part of another kind is passed on as it is, so that the
server decides about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

Message = dict[str, Any]


def input_items(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the messages as input items of the Responses API."""
    items: list[dict[str, Any]] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            output = _texts(content)
            items.append({"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output})
            continue
        if content:
            kind = "output_text" if role == "assistant" else "input_text"
            parts = content if isinstance(content, str) else [_input_part(part, kind) for part in content]
            items.append({"type": "message", "role": "developer" if role == "system" else role, "content": parts})
        for call in message.get("tool_calls") or []:
            function = call.get("function") or {}
            items.append({"type": "function_call", "call_id": call.get("id"), **function})
    return items


def _input_part(part: Any, text_type: str) -> Any:
    if not isinstance(part, dict):
        return part
    if part.get("type") == "text":
        return {"type": text_type, "text": part.get("text")}
    if part.get("type") == "image_url":
        image = part.get("image_url")
        return {"type": "input_image", "image_url": image.get("url") if isinstance(image, dict) else image}
    return part


def system_text(messages: Iterable[Message]) -> str | None:
    """Return the text of the system messages; None if there are none."""
    texts = [_texts(message.get("content")) for message in messages if message.get("role") in ("system", "developer")]
    return "\n\n".join(texts) if texts else None


def anthropic_messages(messages: Iterable[Message]) -> list[Message]:
    """Return the messages, without those of the system, as messages of Anthropic's API."""
    result: list[Message] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer"):
            continue
        if role == "tool":
            block = {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": _texts(content)}
            previous = result[-1]["content"] if result and result[-1]["role"] == "user" else None
            if isinstance(previous, list):  # results of several tools belong into one message
                previous.append(block)
            else:
                result.append({"role": "user", "content": [block]})
            continue
        calls = message.get("tool_calls") or []
        if isinstance(content, list) or calls:
            texts = [{"type": "text", "text": content}] if isinstance(content, str) and content else []
            blocks = texts if not isinstance(content, list) else [_block(part) for part in content]
            content = [*blocks, *map(_tool_use, calls)]
        result.append({"role": role, "content": content})
    return result


def _block(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return part
    image = part.get("image_url")
    return {"type": "image", "source": image_source(str(image.get("url") if isinstance(image, dict) else image))}


def image_source(url: str) -> dict[str, str]:
    """Return the source of an image as Anthropic's API has it."""
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    media_type, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "base64", "media_type": media_type, "data": data}


def _tool_use(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    try:
        arguments = msgspec.json.decode(function.get("arguments") or "{}")
    except msgspec.DecodeError:
        arguments = {}
    return {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": arguments}


def _texts(content: Any) -> str:
    """Return the text of a message."""
    if isinstance(content, str):
        return content
    return "".join([str(part.get("text") or "") for part in content or [] if isinstance(part, dict)])
