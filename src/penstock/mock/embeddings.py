"""POST /v1/embeddings: a vector for each input; it has no tokens to stream, so it arrives `ttft` after the request."""

from __future__ import annotations

import base64
import random
import struct
from functools import lru_cache
from typing import Literal

import msgspec

from penstock.mock.completions import Prompt, measure
from penstock.mock.dialect import Ask, BadRequest, BaseDialect, Event, Say, Span
from penstock.mock.vocabulary import VARIANTS

__all__ = ["Embeddings"]

encode = msgspec.json.encode
MAX_DIMENSIONS = 65_536


class EmbeddingsBody(msgspec.Struct):
    model: str | None = None
    input: Prompt | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None


decode = msgspec.json.Decoder(EmbeddingsBody).decode


class Embeddings(BaseDialect):
    name = "embeddings"
    path = "/embeddings"
    kinds = False
    done: Event | None = None

    def read(self, body: bytes) -> Ask:
        wanted = decode(body)
        if not wanted.model:
            raise BadRequest("model is required", "model")
        if wanted.input is None or wanted.input == []:
            raise BadRequest("input is required", "input")
        size = wanted.dimensions or 0
        if wanted.dimensions is not None and not 1 <= size <= MAX_DIMENSIONS:
            raise BadRequest(f"dimensions must be from 1 to {MAX_DIMENSIONS}, not {size}", "dimensions")
        inputs, tokens = measure(wanted.input)
        return Ask(wanted.model, tokens, limit=0, shape=(inputs, size, wanted.encoding_format or "float"))

    def opening(self, say: Say) -> list[Event]:  # noqa: ARG002 -- this dialect does not stream
        return []

    def piece(self, say: Say, span: Span) -> list[Event]:  # noqa: ARG002
        return []

    def closing(self, say: Say) -> list[Event]:  # noqa: ARG002
        return []

    def accounting(self, say: Say) -> list[Event]:  # noqa: ARG002
        return []

    def front(self, say: Say) -> bytes:
        inputs, size, form = say.ask.shape
        dimensions = int(size) or say.behaviour.dimensions
        rows = [
            b'{"object":"embedding","index":%d,"embedding":%b}'
            % (i, vector(say.behaviour.seed, (say.variant + i) % VARIANTS, dimensions, form == "base64"))
            for i in range(int(inputs))
        ]
        return b'{"object":"list","model":%b,"data":[' % encode(say.ask.model) + b",".join(rows) + b"]"

    def back(self, say: Say) -> bytes:
        if not say.usage:
            return b"}"
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (say.ask.prompt_tokens, say.ask.prompt_tokens)


@lru_cache(maxsize=256)
def vector(seed: int, variant: int, dimensions: int, packed: bool) -> bytes:
    """One vector as JSON. Its values are exact in 32 bits, so both encodings carry the same numbers."""
    draw = random.Random(seed * VARIANTS + variant)
    values = [draw.randrange(-(2**15), 2**15) / 2**16 for _ in range(dimensions)]
    if packed:
        return encode(base64.b64encode(struct.pack(f"<{dimensions}f", *values)).decode())
    return encode(values)
