"""POST /v1/embeddings."""

from __future__ import annotations

from penstock.gateway.dialects.base import Dialect, RequestMembers, StreamReader
from penstock.gateway.dialects.chat import ChunkReader, ChunkTexts
from penstock.gateway.dialects.field_map import FieldMap
from penstock.gateway.dialects.openai import OpenAIReply
from penstock.gateway.dialects.openai_fields import REPLY, REQUEST


class Embeddings(Dialect):
    name = "embeddings"
    restores_model = True
    path = "/embeddings"
    reply = OpenAIReply
    request_fields = FieldMap(REQUEST, text="input")
    reply_fields = FieldMap(REPLY, nested={"data": FieldMap(settings="object index", skip="embedding")})
    event_texts = ChunkTexts

    def output_limit(self, body: RequestMembers, default: int) -> int:
        """Embeddings are no output tokens."""
        del body, default
        return 0

    def output_tokens(self, body: bytes) -> int:
        del body
        return 0

    def stream_reader(self) -> StreamReader:
        return ChunkReader()
