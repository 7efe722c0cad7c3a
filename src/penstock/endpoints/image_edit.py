"""POST /v1/images/edits. The request is a form with a prompt and images; the reply has the edited images."""

from __future__ import annotations

from typing import Any

from penstock.datasets.conversation import Media, Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, History
from penstock.endpoints.form import CONTENT_TYPE, FormEndpoint, form_file
from penstock.endpoints.image_generation import read_images
from penstock.endpoints.reply import Reply
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings


class ImageEdit(FormEndpoint):
    name = "image_edit"
    path = "/v1/images/edits"
    declaration = Declaration(
        content_type=CONTENT_TYPE,
        streams=False,
        inputs=frozenset({"images"}),
        body_key="prompt",
        output_tokens=False,
        title="Image Edit Metrics",
        operation="generate_content",
    )

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        body: Body = {"prompt": " ".join(turn.texts), "model": model, "response_format": "b64_json", "n": 1}
        return body | settings.extra | turn.extra | _images(turn)

    def input_text(self, body: Body) -> list[str]:
        return [body["prompt"]]

    def read_body(self, body: bytes) -> Reply:
        return read_images(body)


def _images(turn: Turn) -> dict[str, Any]:
    """Return the fields of the images: bytes in a file for each, or the URL of one. OpenAI has no URLs in forms, other servers
    do."""
    urls = [image.data for image in turn.images if image.data.startswith(("http://", "https://"))]
    if not turn.images or (urls and len(turn.images) > 1):
        raise UserError(
            f"--endpoint-type image_edit sends images or the URL of one in each request, not {len(turn.images)} images with "
            f"{len(urls)} URLs; give --image-width-mean and --image-height-mean, or a file with lines such as "
            '{"text": "Add snow.", "image": "photo.png"}.'
        )
    if urls:
        return {"url": urls[0]}
    files = [_file(image) for image in turn.images]
    return {"image": files[0]} if len(files) == 1 else {"image[]": files}


def _file(image: Media) -> dict[str, str]:
    head, _, data = image.data.partition(";base64,")
    type_ = head.removeprefix("data:")
    return form_file(f"image.{type_.rpartition('/')[2]}", type_, data)
