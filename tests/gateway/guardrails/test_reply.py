"""Inspection of whole replies."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock.gateway.routes import Route
from support.guardrail_streams import guards, keyword, pii

BLOCK = keyword("FORBIDDEN")


def response(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": list(output), **more}


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": list(parts)}


def chat(**fields: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", **fields}}],
    }


REPLIES: dict[str, tuple[Route, dict[str, Any]]] = {
    "two parts": ("responses", response(message({"text": "FORB"}, {"text": "IDDEN"}))),
    "text": ("responses", response(message({"type": "output_text", "text": "a forbidden word"}))),
    "arguments": (
        "responses",
        response({"type": "function_call", "name": "f", "arguments": '{"q":"FORBIDDEN"}'}),
    ),
    "tool name": ("responses", response({"type": "function_call", "name": "forbidden", "arguments": "{}"})),
    "refusal": ("responses", response(message({"type": "refusal", "refusal": "FORBIDDEN"}))),
    "reasoning": (
        "responses",
        response({"type": "reasoning", "content": [{"type": "reasoning_text", "text": "FORBIDDEN"}]}),
    ),
    "summary": (
        "responses",
        response({"type": "reasoning", "summary": [{"type": "summary_text", "text": "FORBIDDEN"}]}),
    ),
    "custom input": ("responses", response({"type": "custom_tool_call", "input": "FORBIDDEN"})),
    "mcp": ("responses", response({"type": "mcp_call", "arguments": "{}", "output": "FORBIDDEN"})),
    "annotation": (
        "responses",
        response(message({"type": "output_text", "text": "x", "annotations": [{"title": "FORBIDDEN"}]})),
    ),
    "code": ("responses", response({"type": "code_interpreter_call", "code": "FORBIDDEN"})),
    "search": ("responses", response({"type": "web_search_call", "action": {"type": "search", "query": "FORBIDDEN"}})),
    "invented": ("responses", response({"type": "invented_tomorrow", "words": {"deep": ["FORBIDDEN"]}})),
    "chat content": ("chat", chat(content="FORBIDDEN")),
    "chat refusal": ("chat", chat(content=None, refusal="FORBIDDEN")),
    "chat reasoning": ("chat", chat(reasoning_content="FORBIDDEN")),
    "chat tool name": ("chat", chat(tool_calls=[{"id": "t", "type": "function", "function": {"name": "forbidden"}}])),
    "chat tool arguments": (
        "chat",
        chat(tool_calls=[{"id": "t", "function": {"name": "f", "arguments": "FORBIDDEN"}}]),
    ),
    "chat transcript": ("chat", chat(audio={"id": "a", "data": "x", "transcript": "FORBIDDEN"})),
    "second choice": ("chat", {"choices": [{"message": {"content": "x"}}, {"message": {"content": "FORBIDDEN"}}]}),
    "completion": ("completions", {"object": "text_completion", "choices": [{"index": 0, "text": "FORBIDDEN"}]}),
}


@pytest.mark.parametrize(("route", "body"), REPLIES.values(), ids=REPLIES)
def test_every_text_of_a_reply_is_inspected(route: Route, body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    inspection = guards(BLOCK).reply(route, body)
    assert inspection.blocked_by == "words"
    assert [(hit.hook, hit.action) for hit in inspection.hits] == [("output", "blocked")]
    assert body == before


@pytest.mark.parametrize(
    "body",
    [
        response(message({"type": "output_text", "text": "A clean text"})),
        response(instructions="Never say FORBIDDEN", tools=[{"description": "FORBIDDEN"}], metadata={"a": "FORBIDDEN"}),
        response({"type": "image_generation_call", "result": "FORBIDDEN"}),
        chat(audio={"id": "a", "data": "FORBIDDEN"}),
        {
            "object": "list",
            "data": [{"embedding": [0.5, 1], "index": 0}],
            "model": "forbidden",
            "usage": {"total_tokens": 1},
        },
    ],
)
def test_echoed_request_fields_and_encoded_data_are_not_inspected(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    inspection = guards(BLOCK).reply("responses", body)
    assert inspection.blocked_by is None
    assert not inspection.changed
    assert body == before


def test_enforcing_guardrail_empties_logprobs() -> None:
    part = {"type": "output_text", "text": "x", "logprobs": [{"top_logprobs": [{"token": "forbidden"}]}]}
    body = response(message(part))
    assert guards(BLOCK).reply("responses", body).blocked_by is None
    assert body["output"][0]["content"][0]["logprobs"] == []
    body = response(message(part))
    assert not guards(keyword("FORBIDDEN", enforcement="monitor")).reply("responses", body).changed


def test_masking_removes_logprobs() -> None:
    part = {"type": "output_text", "text": "to a@b.example", "logprobs": [{"token": "a@b"}]}
    body = response(message(part), {"type": "function_call", "arguments": '{"to":"a@b.example"}'})
    inspection = guards(pii("email")).reply("responses", body)
    assert inspection.changed
    assert body["output"][0]["content"][0] == {"type": "output_text", "text": "to [EMAIL_REDACTED]", "logprobs": []}
    assert body["output"][1]["arguments"] == '{"to":"[EMAIL_REDACTED]"}'
    chat_body = chat(content="a@b.example")
    chat_body["choices"][0]["logprobs"] = {"content": [{"token": "a@b"}]}
    guards(pii("email")).reply("chat", chat_body)
    assert chat_body["choices"][0]["logprobs"] is None
    assert chat_body["choices"][0]["message"]["content"] == "[EMAIL_REDACTED]"


@pytest.mark.parametrize("key", ["token_ids", "logprobs", "prompt_token_ids"])
def test_enforcing_guardrail_empties_the_tokens_of_a_reply(key: str) -> None:
    for content in ("to a@b.example", "clean"):
        body = chat(content=content)
        body["choices"][0][key] = [31373, 995]
        assert guards(pii("email")).reply("chat", body).changed
        assert body["choices"][0][key] == []
        monitored = chat(content=content)
        monitored["choices"][0][key] = [31373, 995]
        assert not guards(pii("email", enforcement="monitor")).reply("chat", monitored).changed


def test_tokens_are_emptied_in_completions_and_at_the_top_level() -> None:
    body: dict[str, Any] = {
        "choices": [{"text": "x", "token_ids": [1], "prompt_logprobs": [{"1": {"decoded_token": "x"}}]}]
    }
    body["prompt_token_ids"] = [2]
    guards(BLOCK).reply("completions", body)
    assert body == {"choices": [{"text": "x", "token_ids": [], "prompt_logprobs": []}], "prompt_token_ids": []}
