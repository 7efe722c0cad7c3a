"""POST /generate and /generate_stream, the API of Hugging Face text-generation-inference. The path decides about streams."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.mock_server.dialect import (
    Dialect,
    Event,
    ParsedRequest,
    PlannedReply,
    TokenRange,
    plain_text,
    required,
    token_limit,
)
from penstock.mock_server.prompt_tokens import estimate_tokens

encode = msgspec.json.encode


class Parameters(msgspec.Struct):
    max_new_tokens: int | None = None


class GenerateBody(msgspec.Struct):
    inputs: str | None = None
    parameters: Parameters | None = None


class HuggingFaceGenerate(Dialect):
    name = "huggingface_generate"
    path = "/generate"
    base = ""
    body = GenerateBody
    needs_model = False
    stream = False

    def read(self, fields: GenerateBody, model: str) -> ParsedRequest:
        tokens = estimate_tokens(required(fields.inputs, "inputs"))
        limit = token_limit({"max_new_tokens": fields.parameters.max_new_tokens if fields.parameters else None})
        return ParsedRequest(model, tokens, stream=self.stream, token_limit=limit, include_usage=True)

    def token_events(self, reply: PlannedReply, tokens: TokenRange) -> list[Event]:
        token = {
            "id": tokens.start,
            "text": plain_text(reply, tokens.start, tokens.size),
            "logprob": -0.5,
            "special": False,
        }
        return [Event(encode({"index": tokens.start + 1, "token": token, "generated_text": None, "details": None}))]

    def usage_events(self, reply: PlannedReply) -> list[Event]:
        """Return the end of the sequence, which carries the whole text and the token counts."""
        if not reply.behaviour.finish:
            return []
        token = {"id": 2, "text": "</s>", "logprob": -0.5, "special": True}
        whole = plain_text(reply, 0, reply.tokens)
        last = {"index": reply.tokens + 1, "token": token, "generated_text": whole, "details": details(reply)}
        return [Event(encode(last))]

    def body_prefix(self, reply: PlannedReply) -> bytes:
        return b'{"generated_text":' + encode(plain_text(reply, 0, reply.tokens))

    def body_suffix(self, reply: PlannedReply) -> bytes:
        return b',"details":%b}' % encode(details(reply)) if reply.sends_usage else b"}"

    def error_event(self, reply: PlannedReply, sent: int) -> Event:
        return Event(encode({"error": "the mock was told to fail here", "error_type": "generation"}))


class HuggingFaceGenerateStream(HuggingFaceGenerate):
    name = "huggingface_generate_stream"
    path = "/generate_stream"
    stream = True


def details(reply: PlannedReply) -> dict[str, Any] | None:
    if not reply.sends_usage:
        return None
    return {
        "finish_reason": "length" if reply.finish_reason == "length" else "eos_token",
        "generated_tokens": reply.completion_tokens,
        "seed": None,
        "input_length": reply.request.prompt_tokens,
    }
