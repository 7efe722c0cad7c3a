"""POST /v1/completions: text completions."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.gateway.dialects.base import NO_RAW, Dialect, RequestMembers, StreamReader, positive
from penstock.gateway.dialects.chat import ChunkReader, ChunkTexts
from penstock.gateway.dialects.field_map import FieldMap
from penstock.gateway.dialects.openai import OpenAIReply, include_usage
from penstock.gateway.dialects.openai_fields import REPLY, REQUEST


class CompletionsBody(RequestMembers):
    max_tokens: Any = None
    n: Any = None
    stream_options: Any = None
    best_of: Any = None
    prompt: msgspec.Raw = NO_RAW


_decode_prompts = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Completions(Dialect):
    name = "completions"
    restores_model = True
    path = "/completions"
    body = CompletionsBody
    reply = OpenAIReply
    has_done_marker = True
    request_fields = FieldMap(REQUEST, text="prompt suffix")
    reply_fields = REPLY
    event_texts = ChunkTexts

    def output_limit(self, body: CompletionsBody, default: int) -> int:
        replies = max(positive(body.n), positive(body.best_of), 1)
        return (positive(body.max_tokens) or default) * replies * _prompts(bytes(body.prompt))

    def usage_request(self, body: CompletionsBody) -> dict[str, Any] | None:
        return include_usage(body.stream_options)

    def stream_reader(self) -> StreamReader:
        return ChunkReader()


def _prompts(prompt: bytes) -> int:
    """Return the number of prompts: texts, or lists of token ids. A list of token ids is one prompt."""
    if prompt[:1] != b"[":
        return 1
    prompts = _decode_prompts(prompt)
    return sum(bytes(item)[:1] in (b'"', b"[") for item in prompts) or 1
