"""Rankings of passages for a query, in three APIs: NVIDIA NIM, Cohere, and Hugging Face text-embeddings-inference."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, Endpoint, History
from penstock.endpoints.json_replies import decode_reply
from penstock.endpoints.messages_replies import read_any_usage
from penstock.endpoints.reply import Reply
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings


class _Ranked(msgspec.Struct):
    index: int


class _NimReply(msgspec.Struct, rename={"results": "rankings"}):
    results: list[_Ranked]
    usage: Any = None


class _CohereReply(msgspec.Struct):
    results: list[_Ranked]
    usage: Any = None
    """Cohere sends none; vLLM and others that speak its API do."""


_QUERY, _PASSAGES = ("query", "queries"), ("passage", "passages")
"""Names of texts."""


def _declaration(body_key: str, provider: str, title: str = "Ranking Metrics") -> Declaration:
    return Declaration(
        streams=False,
        inputs=frozenset({"passages"}),
        body_key=body_key,
        output_tokens=False,
        title=title,
        operation="rerank",
        provider=provider,
    )


class _Rankings(Endpoint):
    """The parts that the three APIs share."""

    reply: ClassVar[msgspec.json.Decoder[Any]]
    needs: str
    """What the reply must have."""

    def body(self, model: str, query: str, passages: list[str]) -> dict[str, Any]:
        """Return the body for a query and its passages."""
        raise NotImplementedError

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        return self.body(model, *_query_and_passages(turn)) | settings.extra | turn.extra

    def read_body(self, body: bytes) -> Reply:
        reply = Reply()
        decoded = decode_reply(body, self.reply, reply, self.needs)
        if isinstance(decoded, list):
            reply.vectors = len(decoded)
        elif decoded is not None:
            reply.vectors, reply.usage = len(decoded.results), read_any_usage(decoded.usage)
        return reply


class NimRankings(_Rankings):
    name = "nim_rankings"
    path = "/v1/ranking"
    declaration = _declaration("passages", "nvidia", "Rankings Metrics")
    reply = msgspec.json.Decoder(_NimReply)
    needs = "rankings"

    def body(self, model: str, query: str, passages: list[str]) -> dict[str, Any]:
        return {"model": model, "query": {"text": query}, "passages": [{"text": text} for text in passages]}

    def input_text(self, body: Body) -> list[str]:
        return [body["query"]["text"], *(passage["text"] for passage in body["passages"])]


class CohereRankings(_Rankings):
    name = "cohere_rankings"
    path = "/v2/rerank"
    declaration = _declaration("documents", "cohere")
    reply = msgspec.json.Decoder(_CohereReply)
    needs = "results"

    def body(self, model: str, query: str, passages: list[str]) -> dict[str, Any]:
        return {"model": model, "query": query, "documents": passages}

    def input_text(self, body: Body) -> list[str]:
        return [body["query"], *(_text(document) for document in body["documents"])]


class TeiRankings(_Rankings):
    name = "hf_tei_rankings"
    path = "/rerank"
    declaration = _declaration("texts", "huggingface")
    reply = msgspec.json.Decoder(list[_Ranked] | _CohereReply)  # AIPerf accepts both shapes
    needs = "list of ranks"

    def body(self, model: str, query: str, passages: list[str]) -> dict[str, Any]:
        del model  # the API has no model name
        return {"query": query, "texts": passages}

    def input_text(self, body: Body) -> list[str]:
        return [body["query"], *body["texts"]]


def _query_and_passages(turn: Turn) -> tuple[str, list[str]]:
    """Return the texts named `query` and `passages`; without these names, the first text and the others."""
    if not {*_QUERY, *_PASSAGES} & set(turn.text_names):
        queries, passages = list(turn.texts[:1]), list(turn.texts[1:])
    else:
        named = list(zip(turn.text_names, turn.texts, strict=True))
        queries = [text for name, text in named if name in _QUERY]
        passages = [text for name, text in named if name in _PASSAGES]
    if len(queries) != 1 or not passages:
        raise UserError(
            f"A ranking needs one query and at least one passage, and an entry of the data has {len(queries)} and "
            f'{len(passages)}; write it as {{"texts": [{{"name": "query", "contents": ["…"]}}, '
            '{"name": "passages", "contents": ["…", "…"]}]}.'
        )
    return queries[0], passages


def _text(document: Any) -> str:
    """Return the text of a document, which may be an object."""
    return document if isinstance(document, str) else str(document["text"])
