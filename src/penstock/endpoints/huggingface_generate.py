"""POST /generate and /generate_stream, the API of Hugging Face text-generation-inference."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, Endpoint, History
from penstock.endpoints.json_replies import decode_all, decode_reply, decode_typed, error_failure
from penstock.endpoints.reply import Reply, Usage
from penstock.endpoints.usage import Count
from penstock.settings.schema import EndpointSettings
from penstock.wire import sse


class _Token(msgspec.Struct):
    text: str = ""
    special: bool = False
    """A mark such as the end of the sequence, which is no text."""


class _Details(msgspec.Struct):
    finish_reason: str | None = None
    generated_tokens: Count | None = None
    input_length: Count | None = None
    prefill: list[Any] | None = None


class _Event(msgspec.Struct):
    token: _Token | None = None
    generated_text: str | None = None
    """The whole text, in the last event."""
    details: _Details | None = None
    error: Any = None


class _Generated(msgspec.Struct):
    generated_text: str
    details: _Details | None = None


_decode_event = partial(decode_typed, decoder=msgspec.json.Decoder(_Event))
_decode_events = msgspec.json.Decoder(list[_Event]).decode
_decoder = msgspec.json.Decoder(_Generated | list[_Generated])


class HuggingFaceGenerate(Endpoint):
    name = "huggingface_generate"
    path = "/generate"
    declaration = Declaration(
        stream_path="/generate_stream",
        inputs=frozenset(),
        length_limits=("max_new_tokens",),
        body_key="inputs",
        operation="text_completion",
        provider="huggingface",
    )

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        parameters: dict[str, Any] = {}
        if turn.output_tokens is not None:
            parameters["max_new_tokens"] = turn.output_tokens
        if settings.server_token_count:
            parameters["details"] = True  # has the token counts
        return {"inputs": " ".join(turn.texts), "parameters": parameters | settings.extra | turn.extra}

    def input_text(self, body: Body) -> list[str]:
        return [body["inputs"]]

    def read_stream(self, body: bytes, *, timed: bool) -> Reply:
        del timed  # the offsets cost nothing
        reply = Reply()
        split = sse.split(body)
        events, reply.failure = decode_all(split.data, _decode_events, _decode_event)
        for event, end in zip(events, split.ends, strict=False):
            if event.error:
                reply.failure = error_failure(event.error)
                break
            text = "" if event.token is None or event.token.special else event.token.text
            if event.generated_text and not reply.texts:
                text = text or event.generated_text
            if text:
                reply.texts.append(text)
                reply.ends.append(end)
            if event.generated_text is not None or event.details is not None:
                reply.done = True
                _read_details(reply, event.details)
        reply.outputs = ["".join(reply.texts)] if reply.texts else []
        return reply

    def read_body(self, body: bytes) -> Reply:
        reply = Reply()
        decoded = decode_reply(body, _decoder, reply, "generated_text")
        if decoded is not None:
            choices = decoded if isinstance(decoded, list) else [decoded]
            reply.outputs = [choice.generated_text for choice in choices if choice.generated_text]
            for choice in choices:
                _read_details(reply, choice.details)
        return reply


def _read_details(reply: Reply, details: _Details | None) -> None:
    if details is None:
        return
    if details.finish_reason:
        reply.finish.append(details.finish_reason)
    prompt = details.input_length if details.input_length is not None else len(details.prefill or ()) or None
    completion = details.generated_tokens
    if prompt is not None or completion is not None:
        total = None if prompt is None or completion is None else prompt + completion
        reply.usage = Usage(prompt=prompt, completion=completion, total=total)
