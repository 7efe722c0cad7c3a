"""Any API: the bodies come from a file, the whole path from the URL, and replies are read by what they look like.

`--extra-inputs response_field:EXPRESSION` says with JMESPath where in a reply the text is. It is an instruction to us and
never sent.
"""

from __future__ import annotations

from typing import Any

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, History
from penstock.endpoints.detect_reply import Pick, read_any_body, read_any_stream, texts_in
from penstock.endpoints.reply import Reply
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings

__all__ = ["Raw"]


class Raw:
    name = "raw"
    path = ""
    streams = True
    must_match = False
    """A reply in which the expression finds nothing is read by its looks."""

    def __init__(self) -> None:
        self._pick: Pick | None = None

    def configure(self, settings: EndpointSettings) -> None:
        expression = settings.extra.get("response_field")
        self._pick = None if expression is None else _compiled(expression)

    def build(
        self,
        turn: Turn,  # noqa: ARG002
        model: str,  # noqa: ARG002
        settings: EndpointSettings,  # noqa: ARG002
        history: History = NO_HISTORY,  # noqa: ARG002
    ) -> dict[str, Any]:
        raise UserError(
            "--endpoint-type raw sends the bodies of a file as they are and builds none; give it an --input-file of "
            "raw_payload, inputs_json or mooncake_trace payloads, or take --endpoint-type template."
        )

    def remember(self, history: History, turn: Turn, reply: Reply, settings: EndpointSettings) -> None:
        """Each body holds its own history."""

    def input_text(self, body: dict[str, Any]) -> list[str]:
        return texts_in(body)

    def read_stream(self, body: bytes, *, timed: bool) -> Reply:
        return read_any_stream(body, self._pick, timed=timed, must_match=self.must_match and self._pick is not None)

    def read_body(self, body: bytes) -> Reply:
        return read_any_body(body, self._pick, must_match=self.must_match and self._pick is not None)


def _compiled(expression: Any) -> Pick:
    import jmespath  # a third of its users never need it
    from jmespath.exceptions import JMESPathError

    try:
        parsed = jmespath.compile(str(expression))
    except JMESPathError as error:
        why = " ".join(str(error).split("\n", 1)[0].split()).rstrip(":")
        raise UserError(
            f"The response_field {expression!r} in --extra-inputs is not a JMESPath expression ({why}); "
            "write it like choices[0].message.content."
        ) from None

    def pick(found: Any) -> Any:
        try:
            return parsed.search(found)
        except JMESPathError:
            return None

    return pick
