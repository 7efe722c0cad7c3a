"""POST /v1/completions."""

from __future__ import annotations

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, Endpoint, History
from penstock.endpoints.openai_common import read_choices_body, set_stream_options, texts_of
from penstock.endpoints.openai_streams import read_choices_stream
from penstock.endpoints.reply import Reply
from penstock.settings.schema import EndpointSettings


class Completions(Endpoint):
    name = "completions"
    path = "/v1/completions"
    declaration = Declaration(
        inputs=frozenset(), length_limits=("max_tokens",), body_key="prompt", operation="text_completion"
    )

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        body: Body = {
            "prompt": turn.texts[0] if len(turn.texts) == 1 else list(turn.texts),
            "model": model,
            "stream": settings.streaming,
        }
        if turn.output_tokens is not None:
            body["max_tokens"] = turn.output_tokens
        body |= settings.extra
        body |= turn.extra
        set_stream_options(body)
        return body

    def input_text(self, body: Body) -> list[str]:
        return texts_of(body.get("prompt"))

    def read_stream(self, body: bytes, *, timed: bool) -> Reply:
        return read_choices_stream(body, b'"text":', timed=timed)

    def read_body(self, body: bytes) -> Reply:
        return read_choices_body(body)
