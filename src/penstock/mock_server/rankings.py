"""Rankings of passages in three APIs. The reply has no tokens, so it is due `ttft` after the request.

The scores fall from passage to passage in an order that depends on the seed, so that a reply looks like a ranking.
"""

from __future__ import annotations

import random

import msgspec

from penstock.mock_server.dialect import Dialect, ParsedRequest, PlannedReply, required
from penstock.mock_server.prompt_tokens import estimate_tokens
from penstock.mock_server.vocabulary import VARIANTS

encode = msgspec.json.encode


class Text(msgspec.Struct):
    text: str


class NimBody(msgspec.Struct):
    model: str | None = None
    query: Text | None = None
    passages: list[Text] | None = None


class CohereBody(msgspec.Struct):
    model: str | None = None
    query: str | None = None
    documents: list[str | Text] | None = None
    top_n: int | None = None


class TeiBody(msgspec.Struct):
    query: str | None = None
    texts: list[str] | None = None


decode_nim = msgspec.json.Decoder(NimBody).decode
decode_cohere = msgspec.json.Decoder(CohereBody).decode
decode_tei = msgspec.json.Decoder(TeiBody).decode


def parsed(model: str, query: str | None, texts: list[str] | None, field: str, top: int | None = None) -> ParsedRequest:
    query, texts = required(query, "query"), required(texts, field, "one text")
    tokens = sum(map(estimate_tokens, (query, *texts)))
    return ParsedRequest(model, tokens, token_limit=0, cached_fields=(len(texts), top or len(texts)))


def order(reply: PlannedReply) -> list[int]:
    """Return the indexes of the passages, the best first."""
    passages, top = reply.request.cached_fields
    indexes = list(range(passages))
    random.Random(reply.behaviour.seed * VARIANTS + reply.variant).shuffle(indexes)
    return indexes[:top]


def score(rank: int) -> float:
    return 1 / (rank + 1)


class NimRankings(Dialect):
    name = "nim_rankings"
    path = "/ranking"

    def parse(self, body: bytes) -> ParsedRequest:
        fields = decode_nim(body)
        model = required(fields.model, "model")
        texts = [passage.text for passage in fields.passages or []]
        return parsed(model, fields.query.text if fields.query else None, texts, "passages")

    def body_prefix(self, reply: PlannedReply) -> bytes:
        rankings = [{"index": index, "logit": 4 * score(rank)} for rank, index in enumerate(order(reply))]
        return b'{"rankings":' + encode(rankings)


class CohereRankings(Dialect):
    name = "cohere_rankings"
    path = "/v2/rerank"
    base = ""

    def parse(self, body: bytes) -> ParsedRequest:
        fields = decode_cohere(body)
        model = required(fields.model, "model")
        texts = [item if isinstance(item, str) else item.text for item in fields.documents or []]
        return parsed(model, fields.query, texts, "documents", fields.top_n)

    def body_prefix(self, reply: PlannedReply) -> bytes:
        results = [{"index": index, "relevance_score": score(rank)} for rank, index in enumerate(order(reply))]
        return b'{"results":' + encode(results)


class TeiRankings(Dialect):
    """The API has neither a model name nor usage."""

    name = "hf_tei_rankings"
    path = "/rerank"
    base = ""

    def parse(self, body: bytes) -> ParsedRequest:
        fields = decode_tei(body)
        return parsed("", fields.query, fields.texts, "texts")

    def body_prefix(self, reply: PlannedReply) -> bytes:
        return encode([{"index": index, "score": score(rank)} for rank, index in enumerate(order(reply))])

    def body_suffix(self, reply: PlannedReply) -> bytes:
        return b""
