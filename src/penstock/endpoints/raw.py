"""Any API: bodies come from a file, the path from the URL, and the form of replies is detected.

`--extra-inputs response_field:EXPRESSION` is a JMESPath expression for the text of a reply. It is not sent to the server.
"""

from __future__ import annotations

from typing import Any

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, Endpoint, History
from penstock.endpoints.detect_reply import Extractor, input_texts, read_any_body, read_any_stream
from penstock.endpoints.reply import Reply
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings


class Raw(Endpoint):
    name = "raw"
    path = ""
    declaration = Declaration(inputs=frozenset({"system", "turns"}), reply_options=("response_field",))
    must_match = False
    """Whether a reply in which the expression matches nothing is a failure; if not, the form of the reply is detected."""

    def __init__(self) -> None:
        self._extract: Extractor | None = None

    def configure(self, settings: EndpointSettings) -> None:
        expression = settings.extra.get("response_field")
        self._extract = None if expression is None else _compile(expression)

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        raise UserError(
            "--endpoint-type raw sends the bodies of a file as they are and builds none; give it an --input-file of "
            "raw_payload, inputs_json or mooncake_trace payloads, or use --endpoint-type template."
        )

    def input_text(self, body: Body) -> list[str]:
        return input_texts(body)

    def read_stream(self, body: bytes, *, timed: bool) -> Reply:
        return read_any_stream(
            body, self._extract, timed=timed, must_match=self.must_match and self._extract is not None
        )

    def read_body(self, body: bytes) -> Reply:
        return read_any_body(body, self._extract, must_match=self.must_match and self._extract is not None)


def _compile(expression: Any) -> Extractor:
    import jmespath  # only needed with a response_field
    from jmespath.exceptions import JMESPathError

    try:
        parsed = jmespath.compile(str(expression))
    except JMESPathError as error:
        reason = " ".join(str(error).split("\n", 1)[0].split()).rstrip(":")
        raise UserError(
            f"The response_field {expression!r} in --extra-inputs is not a JMESPath expression ({reason}); "
            "write it like choices[0].message.content."
        ) from None

    def extract(value: Any) -> Any:
        try:
            return parsed.search(value)
        except JMESPathError:
            return None

    return extract
