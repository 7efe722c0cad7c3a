"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import Reply
from penstock.endpoints.openai import read_choices, read_whole, with_stream_options
from penstock.settings.model import EndpointSettings

__all__ = ["Chat"]


class Chat:
    name = "chat"
    path = "/v1/chat/completions"
    streams = True

    def build(self, turn: Turn, model: str, settings: EndpointSettings) -> dict[str, Any]:
        content: str | list[dict[str, str]]
        if len(turn.texts) == 1:
            content = turn.texts[0]
        else:
            content = [{"type": "text", "text": text} for text in turn.texts]
        body: dict[str, Any] = {
            "messages": [{"role": turn.role, "content": content}],
            "model": model,
            "stream": settings.streaming,
        }
        if turn.output_tokens is not None:
            body["max_tokens" if settings.legacy_max_tokens else "max_completion_tokens"] = turn.output_tokens
        body |= settings.extra
        body |= turn.extra
        with_stream_options(body)
        return body

    def input_text(self, body: dict[str, Any]) -> list[str]:
        texts: list[str] = []
        for message in body.get("messages") or []:
            content = message.get("content")
            if isinstance(content, str):
                texts.append(content)
            elif isinstance(content, list):
                texts += [part["text"] for part in content if isinstance(part.get("text"), str)]
        return texts

    def read_stream(self, body: bytes, *, timed: bool) -> Reply:
        return read_choices(body, b'"content":', timed=timed)

    def read_body(self, body: bytes) -> Reply:
        return read_whole(body)
