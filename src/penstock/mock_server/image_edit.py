"""POST /v1/images/edits: a form with a prompt and images. The reply is that of image generation."""

from __future__ import annotations

from penstock.mock_server.audio_transcription import form_fields, text_field
from penstock.mock_server.dialect import BadRequest, ParsedRequest, check_choices, required
from penstock.mock_server.image_generation import ImageGeneration
from penstock.mock_server.media import IMAGE_SIGNATURES, IMAGE_TOKENS, image_tokens
from penstock.mock_server.prompt_tokens import estimate_tokens


class ImageEdit(ImageGeneration):
    name = "image_edit"
    path = "/images/edits"

    def parse(self, body: bytes) -> ParsedRequest:
        fields = form_fields(body)
        model = required(text_field(fields, b"model"), "model")
        prompt = required(text_field(fields, b"prompt"), "prompt")
        count = text_field(fields, b"n")
        if not (count or "1").isdecimal():
            raise BadRequest(f"n must be a number, not {count!r}", "n")
        files = [*fields.get(b"image", []), *fields.get(b"image[]", [])]
        if not all(file.startswith(IMAGE_SIGNATURES) for file in files):
            raise BadRequest("image must be an image of a known format", "image")
        urls = [url.decode("utf-8", "replace") for url in fields.get(b"url", [])]
        required(files + urls, "image", "one image")
        tokens = estimate_tokens(prompt) + IMAGE_TOKENS * len(files) + sum(image_tokens(url, "url") for url in urls)
        cached_fields = (check_choices(int(count or 1)), text_field(fields, b"response_format") == "url")
        return ParsedRequest(
            model, tokens, token_limit=0, include_usage=True, cached_fields=cached_fields, images=len(files) + len(urls)
        )
