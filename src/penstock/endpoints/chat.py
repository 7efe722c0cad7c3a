"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.datasets.conversation import Media, Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, Endpoint, History
from penstock.endpoints.openai_common import read_choices_body, set_stream_options, tool_texts
from penstock.endpoints.openai_streams import read_choices_stream
from penstock.endpoints.reply import Reply
from penstock.settings.schema import EndpointSettings


class Chat(Endpoint):
    name = "chat"
    path = "/v1/chat/completions"
    declaration = Declaration(
        length_limits=("max_completion_tokens", "max_tokens"), chunk_usage=True, body_key="messages"
    )

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        body: Body = {
            "messages": [*first_messages(history), *history.items, *_messages(turn)],
            "model": model,
            "stream": settings.streaming,
        }
        if turn.output_tokens is not None:
            body["max_tokens" if settings.legacy_max_tokens else "max_completion_tokens"] = turn.output_tokens
        body |= settings.extra
        body |= turn.extra
        if isinstance(messages := turn.extra.get("messages"), list):  # the whole prompt of a row of a trace
            body["messages"] = [*first_messages(history), *messages]
        set_stream_options(body, per_chunk=settings.per_chunk_usage)
        return body

    def remember(self, history: History, turn: Turn, reply: Reply, settings: EndpointSettings) -> None:
        """Add the reply's text and tool calls; its reasoning only if it has neither, and never after recorded messages."""
        answer: dict[str, Any] = {"role": "assistant"}
        if reply.items:
            answer |= {"content": reply.content or None, "tool_calls": reply.items}
        else:
            reasoning = [] if turn.messages else reply.reasonings[:1]
            answer["content"] = "".join(reply.outputs[:1] or reasoning) or None
        history.items += [*_messages(turn), answer]

    def input_text(self, body: Body) -> list[str]:
        texts = tool_texts(body)
        for message in body.get("messages") or []:
            content = message.get("content")
            if isinstance(content, str):
                texts.append(content)
            elif isinstance(content, list):
                texts += [part["text"] for part in content if isinstance(part.get("text"), str)]
            for call in message.get("tool_calls") or []:
                function = call.get("function") or {}
                texts += [function[field] for field in ("name", "arguments") if isinstance(function.get(field), str)]
        return texts

    def read_stream(self, body: bytes, *, timed: bool) -> Reply:
        return read_choices_stream(body, b'"content":', timed=timed)

    def read_body(self, body: bytes) -> Reply:
        return read_choices_body(body)


def _messages(turn: Turn) -> Sequence[dict[str, Any]]:
    return turn.messages or (user_message(turn),)


def user_message(turn: Turn) -> dict[str, Any]:
    if len(turn.texts) == 1 and not turn.images and not turn.audios:
        return {"role": turn.role, "content": turn.texts[0]}
    parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in turn.texts]
    parts += [{"type": "image_url", "image_url": {"url": image.data}} for image in turn.images]
    parts += [_audio_part(audio) for audio in turn.audios]
    return {"role": turn.role, "content": parts}


def _audio_part(audio: Media) -> dict[str, Any]:
    if audio.data.startswith(("http://", "https://")):
        # OpenAI accepts audio only as data; vLLM and others accept a URL in this form.
        return {"type": "audio_url", "audio_url": {"url": audio.data}}
    return {"type": "input_audio", "input_audio": {"data": audio.data, "format": audio.format}}


def first_messages(history: History) -> list[dict[str, Any]]:
    """Return the messages at the beginning of every turn: the system prompt and the user context."""
    messages = [("system", history.system), ("user", history.context)]
    return [{"role": role, "content": text} for role, text in messages if text is not None]
