"""POST /v1/messages, Anthropic's API."""

from __future__ import annotations

import json
from typing import Any

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, Endpoint, History
from penstock.endpoints.chat_messages import anthropic_messages, image_source, system_text
from penstock.endpoints.json_replies import DONE, UNREADABLE, error_failure, excerpt, malformed, not_json, parse_json
from penstock.endpoints.messages_replies import read_message, read_message_stream
from penstock.endpoints.openai_common import tool_texts
from penstock.endpoints.reply import Failure, Reply
from penstock.settings.schema import EndpointSettings
from penstock.wire import sse

_DEFAULT_LIMIT = 1024
"""The API requires a length limit."""


class Messages(Endpoint):
    name = "messages"
    path = "/v1/messages"
    declaration = Declaration(
        credential_header="x-api-key",
        credential="{}",
        headers=(("anthropic-version", "2023-06-01"),),
        inputs=frozenset({"images", "messages", "system", "turns"}),
        length_limits=("max_tokens",),
        body_key="messages",
        provider="anthropic",
    )

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        context = [] if history.context is None else [{"role": "user", "content": history.context}]
        body: Body = {
            "model": model,
            "messages": [*context, *history.items, *_messages(turn)],
            "max_tokens": _DEFAULT_LIMIT if turn.output_tokens is None else turn.output_tokens,
            "stream": settings.streaming,
        }
        system = system_text(turn.messages) or history.system
        if system is not None:
            body["system"] = system
        return body | settings.extra | turn.extra

    def remember(self, history: History, turn: Turn, reply: Reply, settings: EndpointSettings) -> None:
        """Add the reply's text and tool calls; its thinking only if it has neither, and never after recorded messages."""
        history.system = system_text(turn.messages) or history.system
        answer: str | list[Any] = "".join(reply.outputs or ([] if turn.messages else reply.reasonings))
        if reply.items:
            answer = [*([{"type": "text", "text": reply.content}] if reply.content else []), *reply.items]
        history.items += [*_messages(turn), {"role": "assistant", "content": answer}]

    def input_text(self, body: Body) -> list[str]:
        texts = tool_texts(body) + _texts(body.get("system"))
        for message in body.get("messages") or []:
            texts += _texts(message.get("content"))
        return texts

    def read_stream(self, body: bytes, *, timed: bool) -> Reply:
        del timed  # the offsets cost nothing
        events = sse.split(body)
        parsed, failure = _parse(events.data)
        reply = read_message_stream(parsed, events.ends[: len(parsed)])
        reply.failure = reply.failure or failure
        return reply

    def read_body(self, body: bytes) -> Reply:
        try:
            value = parse_json(body)
        except UNREADABLE:
            return Reply(not_json(body))
        if isinstance(value, dict) and isinstance(value.get("content"), list):
            return read_message(value)
        if isinstance(value, dict) and value.get("error"):
            return Reply(error_failure(value["error"]))
        return Reply(Failure("InvalidReply", f"The reply has no content blocks: {excerpt(body)}", "server"))


def _parse(data: list[bytes]) -> tuple[list[Any], Failure | None]:
    """Return the value of each event before the first that is not JSON, and the failure of that one."""
    parsed: list[Any] = []
    for event in data:
        try:
            parsed.append(None if event.strip() in (b"", DONE) else parse_json(event))
        except UNREADABLE:
            return parsed, malformed(event)
    return parsed, None


def _messages(turn: Turn) -> list[dict[str, Any]]:
    return anthropic_messages(turn.messages) if turn.messages else [_message(turn)]


def _message(turn: Turn) -> dict[str, Any]:
    if len(turn.texts) == 1 and not turn.images:
        return {"role": turn.role, "content": turn.texts[0]}
    parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in turn.texts]
    parts += [{"type": "image", "source": image_source(image.data)} for image in turn.images]
    return {"role": turn.role, "content": parts}


def _texts(content: Any) -> list[str]:
    """Return the texts of a system prompt or of a message: a text, or blocks."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    texts: list[str] = []
    for block in content:
        if block.get("type") == "tool_use":
            texts += [str(block.get("name") or ""), json.dumps(block.get("input") or {}, ensure_ascii=False)]
        elif block.get("type") == "tool_result":
            texts += _texts(block.get("content"))
        elif isinstance(block.get("text"), str):
            texts.append(block["text"])
    return texts
