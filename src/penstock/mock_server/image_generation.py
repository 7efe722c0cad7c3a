"""POST /v1/images/generations: one PNG of 1 by 1 pixel for each image. It is due `ttft` after the request."""

from __future__ import annotations

import msgspec

from penstock.mock_server.dialect import Dialect, Event, ParsedRequest, PlannedReply, check_choices, required
from penstock.mock_server.prompt_tokens import estimate_tokens

encode = msgspec.json.encode
PNG = b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # in base64
OUTPUT_TOKENS = 272
"""Tokens of an image in the usage block."""


class ImagesBody(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    n: int | None = None
    stream: bool | None = None
    response_format: str | None = None


class ImageGeneration(Dialect):
    name = "image_generation"
    path = "/images/generations"
    body = ImagesBody

    def read(self, fields: ImagesBody, model: str) -> ParsedRequest:
        tokens = estimate_tokens(required(fields.prompt, "prompt"))
        cached_fields = (check_choices(fields.n), fields.response_format == "url")
        return ParsedRequest(model, tokens, token_limit=0, include_usage=True, cached_fields=cached_fields)

    def usage_events(self, reply: PlannedReply) -> list[Event]:
        count, _ = reply.request.cached_fields
        kind = "image_generation.completed"
        usage = b',"usage":%b' % usage_json(reply, 1) if reply.sends_usage else b""
        return [Event(b'{"type":"%b","b64_json":"%b"%b}' % (kind.encode(), PNG, usage), kind.encode())] * count

    def body_prefix(self, reply: PlannedReply) -> bytes:
        count, as_url = reply.request.cached_fields
        image = b'{"url":"http://mock.invalid/image.png"}' if as_url else b'{"b64_json":"%b"}' % PNG
        return b'{"created":0,"data":[' + b",".join([image] * count) + b"]"

    def usage(self, reply: PlannedReply) -> bytes:
        count, _ = reply.request.cached_fields
        return usage_json(reply, count)


def usage_json(reply: PlannedReply, images: int) -> bytes:
    prompt, output = reply.request.prompt_tokens, OUTPUT_TOKENS * images
    return encode({"input_tokens": prompt, "output_tokens": output, "total_tokens": prompt + output})
