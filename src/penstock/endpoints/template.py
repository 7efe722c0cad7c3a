"""Any API whose bodies a Jinja2 template can render: `--extra-inputs payload_template:FILE`, or the template itself.

The template renders one turn to JSON; the other extra inputs are merged into it. Replies are parsed as by the raw
endpoint, except that a `response_field` that matches nothing is a failure.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, History
from penstock.endpoints.raw import Raw
from penstock.endpoints.reply import Reply
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings

if TYPE_CHECKING:
    from jinja2 import Template as Compiled

NAMED = {"nv-embedqa": '{"text": {{ texts|tojson }}}'}
_NOT_SENT = ("payload_template", "response_field")
_VARIABLES = (
    "text, texts, image, images, audio, audios, model, max_tokens, stream, role, turn, turns, system and request_info"
)


class Template(Raw):
    name = "template"
    declaration = Declaration(
        inputs=frozenset({"images", "audio", "system", "turns"}), reply_options=("response_field",)
    )
    must_match = True

    def __init__(self) -> None:
        super().__init__()
        self._template: Compiled | None = None

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        if self._template is None:
            self._template = _compile(settings.extra.get("payload_template"))
        from jinja2 import TemplateError

        try:
            text = self._template.render(_variables(turn, model, settings, history))
        except (TemplateError, TypeError, ValueError) as error:
            raise UserError(
                f"The payload_template cannot be rendered: {error}. A template may use {_VARIABLES}."
            ) from None
        try:
            body = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise UserError(
                f"The payload_template does not render to JSON ({error}): {text[:200]!r}; write each value as "
                "{{ name|tojson }}."
            ) from None
        extra = {name: value for name, value in settings.extra.items() if name not in _NOT_SENT} | turn.extra
        if not isinstance(body, dict):
            if extra:
                raise UserError(
                    "The payload_template renders to something that is not an object, so --extra-inputs "
                    f"{next(iter(extra))} cannot be merged into it."
                )
            other: dict[str, Any] = body  # the API of a template may take any JSON value
            return other
        return body | extra

    def remember(self, history: History, turn: Turn, reply: Reply, settings: EndpointSettings) -> None:
        """Add the turn and its reply to the variable `turns`."""
        text = "".join(reply.outputs[:1] or reply.reasonings[:1])
        history.items += [turn, Turn(texts=(text,), role="assistant")]


def _variables(turn: Turn, model: str, settings: EndpointSettings, history: History) -> dict[str, Any]:
    images = [image.data for image in turn.images]
    audios = [audio.data for audio in turn.audios]
    return {
        "text": turn.texts[0] if turn.texts else None,
        "texts": list(turn.texts),
        "image": images[0] if images else None,
        "images": images,
        "audio": audios[0] if audios else None,
        "audios": audios,
        "model": model,
        "max_tokens": turn.output_tokens,
        "stream": settings.streaming,
        "role": turn.role,
        "system": history.system,
        "turn": turn,
        "turns": [*history.items, turn],
        "request_info": {"model": model, "stream": settings.streaming, "max_tokens": turn.output_tokens},
    }


def _compile(template: Any) -> Compiled:
    from jinja2 import StrictUndefined, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    if template is None:
        raise UserError(
            "--endpoint-type template needs to know what to send: add --extra-inputs payload_template:FILE, where the "
            'file is a Jinja2 template such as {"prompt": {{ text|tojson }}}.'
        )
    text = NAMED.get(str(template), str(template))
    if "{" not in text:
        path = os.path.expanduser(text)
        try:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"The payload_template {path!r} cannot be read: {reason}.") from None
    # Jinja2's own `tojson` filter escapes < as \u003c for HTML.
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(text)
    except TemplateSyntaxError as error:
        raise UserError(
            f"The payload_template is not a Jinja2 template: line {error.lineno}: {error.message}."
        ) from None


def _to_json(value: Any) -> str:
    from jinja2 import Undefined

    if isinstance(value, Undefined):
        str(value)  # raises an error that names the undefined variable
    return msgspec.json.encode(value).decode()
