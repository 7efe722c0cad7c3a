"""POST /v1/embeddings, with texts, with messages as vLLM takes them, or with texts and images as NVIDIA's NIMs do."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import msgspec

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, Endpoint, History
from penstock.endpoints.chat import Chat, first_messages, user_message
from penstock.endpoints.json_replies import decode_reply
from penstock.endpoints.messages_replies import read_any_usage
from penstock.endpoints.openai_common import texts_of
from penstock.endpoints.reply import Reply
from penstock.settings.schema import EndpointSettings


class _Item(msgspec.Struct):
    embedding: msgspec.Raw
    """Numbers or base64, which are not decoded: a reply can hold megabytes of them."""


class _Embeddings(msgspec.Struct):
    data: list[_Item]
    usage: Any = None
    model: str | None = None


_decoder = msgspec.json.Decoder(_Embeddings)
_IMAGE = "data:image/"


class Embeddings(Endpoint):
    name = "embeddings"
    path = "/v1/embeddings"
    declaration = Declaration(
        streams=False,
        inputs=frozenset(),
        body_key="input",
        separate_texts=True,
        output_tokens=False,
        title="Embeddings Metrics",
        operation="embeddings",
    )

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        return {"model": model, "input": list(turn.texts)} | settings.extra | turn.extra

    def input_text(self, body: Body) -> list[str]:
        return texts_of(body.get("input"))

    def read_body(self, body: bytes) -> Reply:
        reply = Reply()
        decoded = decode_reply(body, _decoder, reply, "list of embeddings")
        if decoded is not None:
            reply.vectors = len(decoded.data)
            reply.usage = read_any_usage(decoded.usage)
            reply.model = decoded.model
        return reply


class ChatEmbeddings(Embeddings):
    """Embeds the messages of a chat, which can contain images, to one vector."""

    name = "chat_embeddings"
    declaration = Embeddings.declaration._replace(
        inputs=frozenset({"images", "system"}), body_key="messages", separate_texts=False
    )

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        body: Body = {"messages": [*first_messages(history), user_message(turn)], "model": model}
        return body | settings.extra | turn.extra

    def input_text(self, body: Body) -> list[str]:
        return Chat().input_text(body)


class NimEmbeddings(Embeddings):
    """Embeds texts, images, or a text and an image, which form one input with a space between them."""

    name = "nim_embeddings"
    declaration = Embeddings.declaration._replace(
        inputs=frozenset({"images"}), title="NIM Embeddings Metrics", provider="nvidia"
    )

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        pairs = zip_longest(turn.texts, [image.data for image in turn.images])
        inputs = [" ".join(part for part in pair if part) for pair in pairs]
        return {"model": model, "input": inputs} | settings.extra | turn.extra

    def input_text(self, body: Body) -> list[str]:
        texts = [text.partition(_IMAGE)[0] for text in texts_of(body.get("input"))]
        return [text.removesuffix(" ") for text in texts if text]
