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


class Rankings(Dialect):
    """`list_name` is the member with the ranked passages, `score_name` the one with a score."""

    base = ""
    list_name = b""
    score_name: str
    best_score = 1.0

    def ranked(self, reply: PlannedReply) -> bytes:
        """Return the passages with their scores, the best first."""
        passages, top = reply.request.cached_fields
        indexes = list(range(passages))
        random.Random(reply.behaviour.seed * VARIANTS + reply.variant).shuffle(indexes)
        scores = [{"index": index, self.score_name: self.best_score / rank} for rank, index in enumerate(indexes, 1)]
        return encode(scores[:top])

    def body_prefix(self, reply: PlannedReply) -> bytes:
        return b'{"%b":%b' % (self.list_name, self.ranked(reply))


def parsed(model: str, query: str | None, texts: list[str] | None, field: str, top: int | None = None) -> ParsedRequest:
    query, texts = required(query, "query"), required(texts, field, "one text")
    tokens = sum(map(estimate_tokens, (query, *texts)))
    return ParsedRequest(model, tokens, token_limit=0, cached_fields=(len(texts), top or len(texts)))


class NimRankings(Rankings):
    name = "nim_rankings"
    path = "/ranking"
    base = "/v1"
    body = NimBody
    list_name, score_name, best_score = b"rankings", "logit", 4.0

    def read(self, fields: NimBody, model: str) -> ParsedRequest:
        texts = [passage.text for passage in fields.passages or []]
        return parsed(model, fields.query.text if fields.query else None, texts, "passages")


class CohereRankings(Rankings):
    name = "cohere_rankings"
    path = "/v2/rerank"
    body = CohereBody
    list_name, score_name = b"results", "relevance_score"

    def read(self, fields: CohereBody, model: str) -> ParsedRequest:
        texts = [item if isinstance(item, str) else item.text for item in fields.documents or []]
        return parsed(model, fields.query, texts, "documents", fields.top_n)


class TeiRankings(Rankings):
    """The API has neither a model name nor usage."""

    name = "hf_tei_rankings"
    path = "/rerank"
    body = TeiBody
    needs_model = False
    score_name = "score"

    def read(self, fields: TeiBody, model: str) -> ParsedRequest:
        return parsed(model, fields.query, fields.texts, "texts")

    def body_prefix(self, reply: PlannedReply) -> bytes:
        return self.ranked(reply)

    def body_suffix(self, reply: PlannedReply) -> bytes:
        return b""
