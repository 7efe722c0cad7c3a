"""Request bodies rendered from a template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.datasets.conversation import Media, Turn
from penstock.endpoints.base import History
from penstock.endpoints.reply import Reply
from penstock.endpoints.template import Template
from penstock.errors import UserError
from penstock.settings.pairs import extra_fields
from penstock.settings.schema import EndpointSettings

TURN = Turn(texts=('say "hi" <b>', "two"), images=(Media("data:image/png;base64,AA"),), output_tokens=5)


def build(template: str | None, **extra: Any) -> Any:
    fields = extra if template is None else {"payload_template": template, **extra}
    return Template().build(TURN, "m", EndpointSettings(type="template", streaming=True, extra=fields))


def test_template_variables_have_their_values() -> None:
    template = """
      {"a": {{ text|tojson }}, "b": {{ texts|tojson }}, "c": {{ image|tojson }}, "d": {{ audio|tojson }},
       "e": "{{ model }}", "f": {{ max_tokens }}, "g": {{ stream|lower }}, "h": "{{ role }}",
       "i": {{ request_info|tojson }}, "j": {{ turn.texts|length }}}
    """
    assert build(template, top_k=3, response_field="x") == {
        "a": 'say "hi" <b>',
        "b": ['say "hi" <b>', "two"],
        "c": "data:image/png;base64,AA",
        "d": None,
        "e": "m",
        "f": 5,
        "g": True,
        "h": "user",
        "i": {"model": "m", "stream": True, "max_tokens": 5},
        "j": 2,
        "top_k": 3,
    }


def test_turns_of_a_template_are_the_conversation_so_far() -> None:
    template, history, reply = Template(), History(), Reply()
    reply.outputs = ["Hello!"]
    text = '[{% for each in turns %}"{{ each.role }}: {{ each.texts[0] }}"{{ "," if not loop.last }}{% endfor %}]'
    settings = EndpointSettings(type="template", extra={"payload_template": text})
    assert template.build(Turn(texts=("Hi",)), "m", settings, history) == ["user: Hi"]
    template.remember(history, Turn(texts=("Hi",)), reply, settings)
    assert template.build(Turn(texts=("And?",)), "m", settings, history) == [
        "user: Hi",
        "assistant: Hello!",
        "user: And?",
    ]


def test_template_may_be_a_name_or_a_file(tmp_path: Path) -> None:
    assert build("nv-embedqa") == {"text": ['say "hi" <b>', "two"]}
    path = tmp_path / "t.j2"
    path.write_text("[{% for each in texts %}{{ each|tojson }}{{ ',' if not loop.last }}{% endfor %}]")
    assert build(str(path)) == ['say "hi" <b>', "two"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "needs to know what to send: add --extra-inputs payload_template:FILE"),
        ("no-such-file.j2", "The payload_template 'no-such-file.j2' cannot be read: No such file or directory."),
        ('{"a": {{ text }}}', "does not render to JSON"),
        ('{"a": {{ texts[ }}}', "is not a Jinja2 template: line 1:"),
        ('{"a": {{ query|tojson }}}', "cannot be rendered: 'query' is undefined. A template may use text, texts,"),
        ('{"a": {{ text.__class__.mro() }}}', "cannot be rendered"),
    ],
)
def test_invalid_template_is_refused(template: str | None, message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(template)
    assert message in str(caught.value)


def test_extra_fields_need_an_object() -> None:
    with pytest.raises(UserError, match="so --extra-inputs top_k cannot be merged into it"):
        build("[{{ text|tojson }}]", top_k=3)


def test_inline_template_keeps_its_commas_and_braces() -> None:
    text = 'a:1,payload_template: {"t": {{ text|tojson }}, "n": [1, 2]}'
    assert extra_fields(text, "--extra-inputs") == [
        ("a", 1),
        ("payload_template", '{"t": {{ text|tojson }}, "n": [1, 2]}'),
    ]
