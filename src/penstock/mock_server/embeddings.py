"""POST /v1/embeddings: one vector for each input, or for all messages, as vLLM has them. As in NVIDIA's NIMs, an input can have
an image as a data URL, alone or after a text and a space. The reply has no tokens, so it is due `ttft` after the request."""

from __future__ import annotations

import base64
import random
import struct
from functools import lru_cache
from typing import Literal

import msgspec

from penstock.mock_server.chat import Message, measure_messages
from penstock.mock_server.completions import Prompt, measure
from penstock.mock_server.dialect import BadRequest, Dialect, ParsedRequest, PlannedReply
from penstock.mock_server.media import image_tokens
from penstock.mock_server.vocabulary import VARIANTS

encode = msgspec.json.encode
MAX_DIMENSIONS = 65_536
IMAGE = "data:image/"


class EmbeddingsBody(msgspec.Struct):
    model: str | None = None
    input: Prompt | None = None
    messages: list[Message] | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None


class Embeddings(Dialect):
    name = "embeddings"
    path = "/embeddings"
    body = EmbeddingsBody

    def read(self, fields: EmbeddingsBody, model: str) -> ParsedRequest:
        if fields.input in (None, []) and not fields.messages:
            raise BadRequest("input is required", "input")
        dimensions = fields.dimensions
        if dimensions is not None and not 1 <= dimensions <= MAX_DIMENSIONS:
            raise BadRequest(f"dimensions must be from 1 to {MAX_DIMENSIONS}, not {dimensions}", "dimensions")
        if fields.messages:
            inputs, (tokens, images, _) = 1, measure_messages(fields.messages)
        else:
            inputs, tokens, images = measure_inputs(fields.input or "")
        cached_fields = (inputs, dimensions, fields.encoding_format == "base64")
        return ParsedRequest(model, tokens, token_limit=0, cached_fields=cached_fields, images=images)

    def body_prefix(self, reply: PlannedReply) -> bytes:
        inputs, dimensions, as_base64 = reply.request.cached_fields
        behaviour = reply.behaviour
        rows = [
            b'{"object":"embedding","index":%d,"embedding":%b}'
            % (i, vector(behaviour.seed, (reply.variant + i) % VARIANTS, dimensions or behaviour.dimensions, as_base64))
            for i in range(inputs)
        ]
        return b'{"object":"list","model":%b,"data":[' % encode(reply.request.model) + b",".join(rows) + b"]"


def measure_inputs(value: Prompt) -> tuple[int, int, int]:
    """Return the number of inputs, their tokens, and how many of them have an image."""
    texts: Prompt = [value] if isinstance(value, str) else value
    urls = [IMAGE + item.partition(IMAGE)[2] for item in texts if isinstance(item, str) and IMAGE in item]
    without = [item.partition(IMAGE)[0] if isinstance(item, str) else item for item in texts]
    inputs, tokens = measure(without)
    return inputs, tokens + sum(image_tokens(url, "input") for url in urls), len(urls)


@lru_cache(maxsize=256)
def vector(seed: int, variant: int, dimensions: int, as_base64: bool) -> bytes:
    """Return one vector as JSON. Its values are exact in 32 bits, so both encodings carry the same numbers."""
    draw = random.Random(seed * VARIANTS + variant)
    values = [draw.randrange(-(2**15), 2**15) / 2**16 for _ in range(dimensions)]
    if as_base64:
        return encode(base64.b64encode(struct.pack(f"<{dimensions}f", *values)).decode())
    return encode(values)
