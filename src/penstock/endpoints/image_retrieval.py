"""POST /v1/infer of NVIDIA's NIMs for object detection. The reply has the bounding boxes of each image."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, Endpoint, History
from penstock.endpoints.json_replies import decode_reply
from penstock.endpoints.reply import Reply
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings


class _Detections(msgspec.Struct):
    data: list[dict[str, Any]]
    """One for each image."""


_decoder = msgspec.json.Decoder(_Detections)


class ImageRetrieval(Endpoint):
    name = "image_retrieval"
    path = "/v1/infer"
    declaration = Declaration(
        streams=False,
        inputs=frozenset({"images"}),
        body_key="input",
        input_tokens=False,
        output_tokens=False,
        title="Image Retrieval Metrics",
        operation="object_detection",
        provider="nvidia",
    )

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        if not turn.images:
            raise UserError(
                "--endpoint-type image_retrieval sends images; give --image-width-mean and --image-height-mean, or a file with "
                'lines such as {"image": "page.png"}.'
            )
        images = [{"type": "image_url", "url": image.data} for image in turn.images]
        return {"input": images} | settings.extra | turn.extra

    def input_text(self, body: Body) -> list[str]:
        return []

    def read_body(self, body: bytes) -> Reply:
        reply = Reply()
        decoded = decode_reply(body, _decoder, reply, "list of detections")
        if decoded is not None:
            reply.vectors = len(decoded.data)
        return reply
