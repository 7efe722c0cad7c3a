"""POST /v1/images/generations. A reply holds images, as base64 or as URLs; a stream holds drafts of an image before it."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, Endpoint, History
from penstock.endpoints.json_replies import DONE, UNREADABLE, decode_reply, decode_typed, error_failure, malformed
from penstock.endpoints.messages_replies import read_any_usage
from penstock.endpoints.reply import Reply
from penstock.settings.schema import EndpointSettings
from penstock.wire import sse


class _Image(msgspec.Struct):
    b64_json: msgspec.Raw = msgspec.Raw()
    """Not decoded: an image has megabytes."""
    url: str | None = None


class _Images(msgspec.Struct):
    data: list[_Image]
    usage: Any = None


class _Event(_Image):
    type: str = ""
    usage: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Images)
_event_decoder = msgspec.json.Decoder(_Event)


class ImageGeneration(Endpoint):
    name = "image_generation"
    path = "/v1/images/generations"
    declaration = Declaration(
        inputs=frozenset(),
        body_key="prompt",
        output_tokens=False,
        title="Image Generation Metrics",
        operation="generate_content",
    )

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        body: Body = {"prompt": " ".join(turn.texts), "model": model, "response_format": "b64_json", "n": 1}
        if settings.streaming:
            body["stream"] = True
        return body | settings.extra | turn.extra

    def input_text(self, body: Body) -> list[str]:
        return [body["prompt"]]

    def read_stream(self, body: bytes, *, timed: bool) -> Reply:
        """Each event with an image is a piece; only those of type `….completed`, or without a type, are counted."""
        del timed  # the offsets cost nothing
        reply = Reply()
        events = sse.split(body)
        for data, end in zip(events.data, events.ends, strict=True):
            if data.strip() in (b"", DONE):
                continue
            try:
                event = decode_typed(data, _event_decoder)
            except UNREADABLE:
                reply.failure = malformed(data)
                break
            if event.error:
                reply.failure = error_failure(event.error)
                break
            reply.usage = read_any_usage(event.usage) or reply.usage
            if _has_image(event):
                reply.texts.append("image")
                reply.ends.append(end)
                reply.images += not event.type.endswith("partial_image")
        reply.vectors = reply.images
        reply.done = reply.images > 0
        return reply

    def read_body(self, body: bytes) -> Reply:
        return read_images(body)


def read_images(body: bytes) -> Reply:
    """Read an unstreamed list of images."""
    reply = Reply()
    decoded = decode_reply(body, _decoder, reply, "list of images")
    if decoded is not None:
        reply.images = reply.vectors = sum(map(_has_image, decoded.data))
        reply.usage = read_any_usage(decoded.usage)
    return reply


def _has_image(image: _Image) -> bool:
    return bool(image.url) or bytes(image.b64_json) not in (b"", b"null", b'""')
