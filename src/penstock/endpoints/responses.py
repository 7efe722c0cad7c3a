"""POST /v1/responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, Endpoint, History
from penstock.endpoints.chat_messages import input_items
from penstock.endpoints.openai_common import set_stream_options, tool_texts
from penstock.endpoints.reply import Reply
from penstock.endpoints.responses_replies import read_response, read_response_stream
from penstock.endpoints.responses_types import decode_item
from penstock.settings.schema import EndpointSettings

_NOT_SENT_BACK = frozenset(
    (
        "reasoning",
        "web_search_call",
        "file_search_call",
        "image_generation_call",
        "code_interpreter_call",
        "computer_call",
        "",  # not a valid item
    )
)
"""Output items that a later request must not contain: reasoning, and calls of the server's own tools."""


class Responses(Endpoint):
    name = "responses"
    path = "/v1/responses"
    declaration = Declaration(length_limits=("max_output_tokens",), body_key="input")

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        chained = history.previous_id is not None
        earlier = [] if chained else [*_context(history), *history.items]
        body: Body = {"input": [*earlier, *_items(turn)], "model": model, "stream": settings.streaming}
        if chained:
            body["previous_response_id"] = history.previous_id
        if history.system is not None:
            # A stored response does not include the instructions of its request.
            body["instructions"] = history.system
        if turn.output_tokens is not None:
            body["max_output_tokens"] = turn.output_tokens
        body |= settings.extra
        body |= turn.extra
        set_stream_options(body, usage=settings.server_token_count)
        return body

    def remember(self, history: History, turn: Turn, reply: Reply, settings: EndpointSettings) -> None:
        """Add the output items byte for byte as the server sent them, or only the id if the server stores them."""
        stored = (settings.extra | turn.extra).get("store") is True
        history.previous_id = reply.id if stored else None
        items = [orjson.Fragment(bytes(item)) for item in reply.items if decode_item(item).type not in _NOT_SENT_BACK]
        if not items:
            text = "".join(reply.outputs) or ("" if turn.messages else "".join(reply.reasonings))
            history.items += [*_items(turn), {"role": "assistant", "content": text, "type": "message"}]
            return
        history.items += [*_items(turn), *items]

    def input_text(self, body: Body) -> list[str]:
        instructions, input_ = body.get("instructions"), body.get("input")
        texts = [*tool_texts(body), *([instructions] if isinstance(instructions, str) else [])]
        if isinstance(input_, str):
            texts.append(input_)
        elif isinstance(input_, list):
            for item in input_:
                texts += _item_texts(item)
        return texts

    def read_stream(self, body: bytes, *, timed: bool) -> Reply:
        return read_response_stream(body, timed=timed)

    def read_body(self, body: bytes) -> Reply:
        return read_response(body)


def _items(turn: Turn) -> list[dict[str, Any]]:
    return input_items(turn.messages) if turn.messages else [_message(turn)]


def _message(turn: Turn) -> dict[str, Any]:
    # The system prompt is in `instructions`; the API's role for such a message within a conversation is `developer`.
    role = "developer" if turn.role == "system" else turn.role
    if len(turn.texts) == 1 and not turn.images and not turn.audios:
        return {"role": role, "content": turn.texts[0], "type": "message"}
    if role == "assistant":
        return {"role": role, "content": " ".join(turn.texts), "type": "message"}
    parts: list[dict[str, Any]] = [{"type": "input_text", "text": text} for text in turn.texts]
    parts += [{"type": "input_image", "image_url": image.data} for image in turn.images]
    for audio in turn.audios:
        parts.append({"type": "input_audio", "input_audio": {"data": audio.data, "format": audio.format}})
    return {"role": role, "content": parts, "type": "message"}


def _context(history: History) -> list[dict[str, Any]]:
    if history.context is None:
        return []
    return [{"type": "message", "role": "user", "content": history.context}]


def _item_texts(item: Any) -> Iterator[str]:
    """Yield the texts of an input item: of a message, a tool call, or the output of a tool."""
    if not isinstance(item, dict):
        return
    for field in ("name", "arguments", "input", "output", "content"):
        value = item.get(field)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list) and field in ("content", "output"):
            for part in value:
                text = part.get("text") or part.get("refusal") if isinstance(part, dict) else None
                if isinstance(text, str):
                    yield text
