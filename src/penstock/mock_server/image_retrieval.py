"""POST /v1/infer, as NVIDIA's NIMs for object detection have it: one bounding box for each image, `ttft` after the request."""

from __future__ import annotations

import msgspec

from penstock.mock_server.dialect import BadRequest, Dialect, ParsedRequest, PlannedReply, required
from penstock.mock_server.media import image_tokens

encode = msgspec.json.encode
_BOX = {"x_min": 0.1, "y_min": 0.1, "x_max": 0.9, "y_max": 0.5, "confidence": 0.97}


class Image(msgspec.Struct):
    type: str | None = None
    url: str | None = None


class DetectionBody(msgspec.Struct):
    input: list[Image] | None = None


class ImageRetrieval(Dialect):
    name = "image_retrieval"
    path = "/infer"
    body = DetectionBody
    needs_model = False

    def read(self, fields: DetectionBody, model: str) -> ParsedRequest:
        images = required(fields.input, "input", "one image")
        if any(image.type != "image_url" for image in images):
            raise BadRequest("the only type of an input is image_url", "input")
        tokens = sum(image_tokens(image.url, "input") for image in images)
        size = sum(len(image.url or "") for image in images)
        return ParsedRequest(model, tokens, token_limit=0, cached_fields=(len(images), size), images=len(images))

    def body_prefix(self, reply: PlannedReply) -> bytes:
        count, _ = reply.request.cached_fields
        return b'{"data":' + encode([{"index": index, "bounding_boxes": {"title": [_BOX]}} for index in range(count)])

    def usage(self, reply: PlannedReply) -> bytes:
        _, size = reply.request.cached_fields
        return encode({"images_size_mb": size / 1e6})
