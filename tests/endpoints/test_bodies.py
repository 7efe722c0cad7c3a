"""Request bodies: key order and content, byte for byte."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import History
from penstock.endpoints.base import endpoint_named as endpoint
from penstock.errors import UserError
from penstock.settings.endpoint_types import BUILTIN
from penstock.settings.flags import ENDPOINT_TYPES
from penstock.settings.schema import EndpointSettings


def body(name: str, turn: Turn, **settings: Any) -> str:
    built = endpoint(name).build(turn, "mock-model", EndpointSettings(type=name, **settings))
    return orjson.dumps(built).decode()


HELLO = Turn(texts=("Hello!",))
LIMITED = Turn(texts=("Hello!",), output_tokens=50)
USAGE = '"stream_options":{"include_usage":true}'


@pytest.mark.parametrize(
    ("turn", "settings", "expected"),
    [
        pytest.param(
            LIMITED,
            {"streaming": True},
            '{"messages":[{"role":"user","content":"Hello!"}],"model":"mock-model","stream":true,'
            f'"max_completion_tokens":50,{USAGE}}}',
            id="streaming",
        ),
        pytest.param(
            LIMITED,
            {},
            '{"messages":[{"role":"user","content":"Hello!"}],"model":"mock-model","stream":false,'
            '"max_completion_tokens":50}',
            id="not streaming",
        ),
        pytest.param(
            HELLO,
            {},
            '{"messages":[{"role":"user","content":"Hello!"}],"model":"mock-model","stream":false}',
            id="no length asked for",
        ),
        pytest.param(
            LIMITED,
            {"legacy_max_tokens": True},
            '{"messages":[{"role":"user","content":"Hello!"}],"model":"mock-model","stream":false,"max_tokens":50}',
            id="legacy name of the limit",
        ),
        pytest.param(
            Turn(texts=("one", "two")),
            {},
            '{"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}],'
            '"model":"mock-model","stream":false}',
            id="several texts are parts",
        ),
        pytest.param(
            Turn(texts=("Be brief.",), role="system"),
            {},
            '{"messages":[{"role":"system","content":"Be brief."}],"model":"mock-model","stream":false}',
            id="another role",
        ),
        pytest.param(
            Turn(texts=("with extras",), output_tokens=7, extra={"temperature": 0.1, "x": 1}),
            {"streaming": True, "extra": {"top_p": 0.5}},
            '{"messages":[{"role":"user","content":"with extras"}],"model":"mock-model","stream":true,'
            f'"max_completion_tokens":7,"top_p":0.5,"temperature":0.1,"x":1,{USAGE}}}',
            id="extra fields of the run, then of the turn, then stream_options",
        ),
        pytest.param(
            Turn(texts=("a",), extra={"temperature": 0.9}),
            {"extra": {"temperature": 0.1, "stop": ["x"], "flag": None}},
            '{"messages":[{"role":"user","content":"a"}],"model":"mock-model","stream":false,'
            '"temperature":0.9,"stop":["x"],"flag":null}',
            id="the turn overrides the run",
        ),
        pytest.param(
            HELLO,
            {"streaming": True, "extra": {"stream_options": {"include_usage": False, "mine": 1}}},
            '{"messages":[{"role":"user","content":"Hello!"}],"model":"mock-model","stream":true,'
            '"stream_options":{"include_usage":false,"mine":1}}',
            id="stream_options of the user are kept",
        ),
        pytest.param(
            HELLO,
            {"streaming": True, "per_chunk_usage": True},
            '{"messages":[{"role":"user","content":"Hello!"}],"model":"mock-model","stream":true,'
            '"stream_options":{"include_usage":true,"continuous_usage_stats":true}}',
            id="usage in every chunk",
        ),
        pytest.param(
            HELLO,
            {"streaming": True, "extra": {"stream_options": None, "other": None}},
            '{"messages":[{"role":"user","content":"Hello!"}],"model":"mock-model","stream":true,"other":null}',
            id="stream_options of null are not sent",
        ),
        pytest.param(
            HELLO,
            {"extra": {"stream": True}},
            f'{{"messages":[{{"role":"user","content":"Hello!"}}],"model":"mock-model","stream":true,{USAGE}}}',
            id="stream requested by an extra field",
        ),
        pytest.param(
            Turn(texts=('naïve "quotes" \\ 日本 🙂\n',)),
            {},
            '{"messages":[{"role":"user","content":"naïve \\"quotes\\" \\\\ 日本 🙂\\n"}],'
            '"model":"mock-model","stream":false}',
            id="UTF-8 is not escaped",
        ),
    ],
)
def test_chat_body_has_the_documented_form(turn, settings, expected):
    assert body("chat", turn, **settings) == expected


@pytest.mark.parametrize(
    ("turn", "settings", "expected"),
    [
        pytest.param(
            LIMITED,
            {"streaming": True},
            f'{{"prompt":"Hello!","model":"mock-model","stream":true,"max_tokens":50,{USAGE}}}',
            id="streaming",
        ),
        pytest.param(HELLO, {}, '{"prompt":"Hello!","model":"mock-model","stream":false}', id="not streaming"),
        pytest.param(
            Turn(texts=("one", "two"), output_tokens=3),
            {"extra": {"seed": 7}},
            '{"prompt":["one","two"],"model":"mock-model","stream":false,"max_tokens":3,"seed":7}',
            id="several texts are a list",
        ),
    ],
)
def test_completions_body_has_the_documented_form(turn, settings, expected):
    assert body("completions", turn, **settings) == expected


@pytest.mark.parametrize(
    ("name", "sent", "texts"),
    [
        ("chat", {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, ["a", "b"]),
        ("chat", {"messages": [{"content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]}, ["a"]),
        ("chat", {"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, []),
        ("chat", {"messages": [{"content": "a"}], "tools": [{"type": "function"}]}, ['{"type":"function"}', "a"]),
        ("responses", {"input": "a", "tools": [{"type": "function"}]}, ['{"type":"function"}', "a"]),
        ("messages", {"messages": [{"content": "a"}], "tools": [{"name": "f"}]}, ['{"name":"f"}', "a"]),
        ("chat", {"messages": [], "tools": None}, []),
        ("chat", {}, []),
        ("completions", {"prompt": "a"}, ["a"]),
        ("completions", {"prompt": ["a", "b"]}, ["a", "b"]),
        ("completions", {"prompt": [1, 2, 3]}, []),
        ("completions", {}, []),
    ],
)
def test_input_text_returns_the_texts_of_a_body(name, sent, texts):
    assert endpoint(name).input_text(sent) == texts


def test_system_prompt_is_sent_before_the_messages_of_a_trace() -> None:
    turn = Turn(extra={"messages": [{"role": "user", "content": "Hi"}], "tools": []})
    body = endpoint("chat").build(turn, "m", EndpointSettings(), History(system="Be brief."))
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(("name", "path"), [("chat", "/v1/chat/completions"), ("completions", "/v1/completions")])
def test_each_endpoint_has_its_path(name, path):
    built_in = endpoint(name)
    assert (built_in.name, built_in.path) == (name, path)


def test_unknown_endpoint_is_refused_with_the_known_names():
    with pytest.raises(UserError, match=r"no endpoint type 'chatt'; choose from chat, completions"):
        endpoint("chatt")


def test_plugin_is_found_by_its_entry_point(monkeypatch):
    class Mine:
        name = "mine"

    class Plugin:
        def load(self) -> type[Mine]:
            return Mine

    def entry_points(group: str, name: str) -> list[Plugin]:
        return [Plugin()] if (group, name) == ("penstock.endpoints", "mine") else []

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    assert isinstance(endpoint("mine"), Mine)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}


@pytest.mark.parametrize(
    ("message", "remembered"),
    [
        ({"content": "Yes", "reasoning_content": "hm"}, {"content": "Yes"}),
        ({"content": None, "reasoning_content": "hm"}, {"content": "hm"}),
        ({"content": None, "refusal": "No."}, {"content": "No."}),
        ({"content": None, "tool_calls": [CALL]}, {"content": None, "tool_calls": [CALL]}),
        ({"content": "", "tool_calls": [CALL], "reasoning_content": "hm"}, {"content": None, "tool_calls": [CALL]}),
        ({"content": "Let me see.", "tool_calls": [CALL]}, {"content": "Let me see.", "tool_calls": [CALL]}),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_reply_is_remembered_as_a_valid_assistant_message(
    message: dict[str, Any], remembered: dict[str, Any], streamed: bool
) -> None:
    chat, history, settings = endpoint("chat"), History(), EndpointSettings()
    choice = {"index": 0, "delta" if streamed else "message": message, "finish_reason": "stop"}
    body = orjson.dumps({"choices": [choice]})
    reply = chat.read_stream(b"data: " + body + b"\n\n", timed=True) if streamed else chat.read_body(body)
    chat.remember(history, HELLO, reply, settings)
    assert history.items == [{"role": "user", "content": "Hello!"}, {"role": "assistant", **remembered}]
    texts = chat.input_text({"messages": history.items})
    assert "".join(texts).count("f") == ("tool_calls" in remembered), "a call is counted once"


def test_flag_names_every_endpoint() -> None:
    assert tuple(BUILTIN) == ENDPOINT_TYPES
    assert [endpoint(name).name for name in ENDPOINT_TYPES] == list(ENDPOINT_TYPES)
