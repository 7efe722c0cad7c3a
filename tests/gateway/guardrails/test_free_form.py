"""Free-form JSON and unknown fields: nothing in them is taken for a field of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from penstock.gateway.routes import Route
from support.guardrail_streams import event, guards, keyword, pii, run

WORDS = keyword("BLOCKME", "20260101")
CARD = 4111111111111111
MASK = "[BANK_CARD_REDACTED]"

NAMES = (
    *(
        "model",
        "signature",
        "authorization",
        "server_url",
        "encrypted_content",
        "b64_json",
        "partial_image_b64",
        "data",
    ),
    *("system_fingerprint", "obfuscation", "file_url", "image_url", "type", "role", "id", "call_id", "result"),
)
CONTAINERS = (
    *("headers", "usage", "bytes", "include", "modalities", "logprobs", "top_logprobs", "embedding", "token_ids"),
    *("stream_options", "prompt_token_ids", "image_url", "input_audio", "properties"),
)
PROBES: dict[str, Any] = {
    **{name: {name: "so BLOCKME now"} for name in NAMES},
    **{f"{name} as an object": {name: {"a": "BLOCKME"}} for name in CONTAINERS},
    **{f"{name} as a list": {name: ["a", "BLOCKME"]} for name in CONTAINERS},
    "a key": {"BLOCKME": True},
    "a key of an object in a list": {"a": [{"BLOCKME": None}]},
    "an integer": {"n": 20260101},
    "an integer in a list": {"include": [1, 20260101]},
    "an integer written as a float": {"n": 20260101.0},
    "a deep string": {"a": [[{"usage": {"b": [["BLOCKME"]]}}]]},
}

Probe = dict[str, Any]


def message_call(kind: str, arguments: Any) -> Any:
    return {"type": kind, "id": "toolu_1", "name": "f", "input": arguments}


def chat_call(arguments: Any) -> Any:
    return [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}]


def function_call(arguments: Any) -> Any:
    return {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": arguments}


def shell_call(env: Any) -> Any:
    return {
        "type": "local_shell_call",
        "id": "s_1",
        "call_id": "c",
        "action": {"type": "exec", "command": ["a"], "env": env},
    }


def chunk(**choice: Any) -> Any:
    return {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": None, **choice}]}


def message_request(block: Any) -> Any:
    return {"model": "m", "max_tokens": 9, "messages": [{"role": "assistant", "content": [block]}]}


def response(item: Any) -> Any:
    return {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [item]}


def tool(**members: Any) -> Any:
    return {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, **members}


REQUESTS: dict[str, tuple[Route, Callable[[Probe], Any]]] = {
    "tool_use": ("messages", lambda probe: message_request(message_call("tool_use", probe))),
    "server_tool_use": ("messages", lambda probe: message_request(message_call("server_tool_use", probe))),
    "input_examples": ("messages", lambda probe: {"tools": [{"name": "f", "input_examples": [probe]}]}),
    "messages, unknown": ("messages", lambda probe: {"messages": [], "invented": probe}),
    "messages, unknown in a block": ("messages", lambda probe: message_request({"type": "invented", "words": probe})),
    "tool_calls": ("chat", lambda probe: {"messages": [{"role": "assistant", "tool_calls": chat_call(probe)}]}),
    "chat_template_kwargs": ("chat", lambda probe: {"messages": [], "chat_template_kwargs": probe}),
    "chat, unknown": ("chat", lambda probe: {"messages": [], "invented": probe}),
    "chat, unknown in a message": ("chat", lambda probe: {"messages": [{"role": "user", "invented": probe}]}),
    "chat, examples in a schema": (
        "chat",
        lambda probe: {"tools": [{"type": "function", "function": tool(parameters={"examples": [probe]})}]},
    ),
    "function_call": ("responses", lambda probe: {"input": [function_call(probe)]}),
    "local_shell_call": ("responses", lambda probe: {"input": [shell_call(probe)]}),
    "a tool's default": ("responses", lambda probe: {"tools": [tool(parameters={"default": probe})]}),
    "metadata": ("responses", lambda probe: {"input": "hi", "metadata": probe}),
    "responses, unknown": ("responses", lambda probe: {"input": "hi", "invented": probe}),
    "responses, unknown in an item": ("responses", lambda probe: {"input": [{"type": "message", "invented": probe}]}),
    "completions, unknown": ("completions", lambda probe: {"prompt": "x", "invented": probe}),
    "embeddings, unknown": ("embeddings", lambda probe: {"input": "x", "invented": probe}),
}
REPLIES: dict[str, tuple[Route, Callable[[Probe], Any]]] = {
    "tool_use": ("messages", lambda probe: {"id": "m", "content": [message_call("tool_use", probe)]}),
    "server_tool_use": ("messages", lambda probe: {"id": "m", "content": [message_call("server_tool_use", probe)]}),
    "messages, unknown": ("messages", lambda probe: {"id": "m", "content": [], "invented": probe}),
    "tool_calls": ("chat", lambda probe: {"choices": [{"index": 0, "message": {"tool_calls": chat_call(probe)}}]}),
    "chat, unknown": ("chat", lambda probe: {"choices": [{"index": 0, "message": {"invented": probe}}]}),
    "function_call": ("responses", lambda probe: response(function_call(probe))),
    "local_shell_call": ("responses", lambda probe: response(shell_call(probe))),
    "responses, unknown": ("responses", lambda probe: response({"type": "invented", "words": probe})),
    "completions, unknown": ("completions", lambda probe: {"choices": [{"text": "x", "invented": probe}]}),
    "embeddings, unknown": ("embeddings", lambda probe: {"data": [{"index": 0, "invented": probe}]}),
}
STREAMS: dict[str, tuple[Route, Callable[[Probe], Any]]] = {
    "tool_use": (
        "messages",
        lambda probe: {"type": "content_block_start", "index": 0, "content_block": message_call("tool_use", probe)},
    ),
    "server_tool_use": (
        "messages",
        lambda probe: {
            "type": "content_block_start",
            "index": 0,
            "content_block": message_call("server_tool_use", probe),
        },
    ),
    "message_start": (
        "messages",
        lambda probe: {"type": "message_start", "message": {"id": "m", "content": [message_call("tool_use", probe)]}},
    ),
    "messages, unknown": (
        "messages",
        lambda probe: {"type": "content_block_delta", "index": 0, "delta": {"type": "invented", "words": probe}},
    ),
    "tool_calls": ("chat", lambda probe: chunk(delta={"tool_calls": chat_call(probe)})),
    "chat, unknown in a delta": ("chat", lambda probe: chunk(delta={"invented": probe})),
    "chat, unknown in a choice": ("chat", lambda probe: chunk(delta={}, invented=probe)),
    "chat, unknown in a chunk": ("chat", lambda probe: {**chunk(delta={}), "invented": probe}),
    "function_call": (
        "responses",
        lambda probe: {"type": "response.output_item.done", "output_index": 0, "item": function_call(probe)},
    ),
    "local_shell_call": (
        "responses",
        lambda probe: {"type": "response.output_item.added", "output_index": 0, "item": shell_call(probe)},
    ),
    "last event": (
        "responses",
        lambda probe: {"type": "response.completed", "response": response(function_call(probe))},
    ),
    "responses, unknown": ("responses", lambda probe: {"type": "response.invented", "words": probe}),
    "completions, unknown": ("completions", lambda probe: chunk(text="x", invented=probe)),
}

probes = pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
FREE = {"n": CARD, "list": [CARD, 5], str(CARD): "x", "model": f"pay {CARD}."}
MASKED_FREE = {"n": MASK, "list": [MASK, 5], MASK: "x", "model": f"pay {MASK}."}


@probes
@pytest.mark.parametrize(("route", "build"), REQUESTS.values(), ids=REQUESTS)
def test_request_with_a_literal_anywhere_in_free_form_json_is_blocked(
    route: Route, build: Callable[[Probe], Any], probe: Probe
) -> None:
    assert guards(WORDS).request(route, build(probe)).blocked_by == "words"


@probes
@pytest.mark.parametrize(("route", "build"), REPLIES.values(), ids=REPLIES)
def test_reply_with_a_literal_anywhere_in_free_form_json_is_blocked(
    route: Route, build: Callable[[Probe], Any], probe: Probe
) -> None:
    assert guards(WORDS).reply(route, build(probe)).blocked_by == "words"


@probes
@pytest.mark.parametrize(("route", "build"), STREAMS.values(), ids=STREAMS)
def test_stream_with_a_literal_anywhere_in_free_form_json_is_blocked(
    route: Route, build: Callable[[Probe], Any], probe: Probe
) -> None:
    modes: tuple[Literal["buffer", "window"], ...] = ("buffer", "window")
    for mode in modes:
        outcome = run(guards(WORDS, mode=mode).stream(route), [event(build(probe))])
        assert outcome.blocked is not None
        assert outcome.body == b""


@pytest.mark.parametrize("name", ["tool_use", "server_tool_use", "tool_calls", "function_call", "local_shell_call"])
def test_free_form_json_is_masked_with_its_keys_and_integers(name: str) -> None:
    route, build = REPLIES[name]
    body = build(FREE)
    guards(pii("bank_card")).reply(route, body)
    assert body == build(MASKED_FREE)
    route, build = STREAMS[name]
    outcome = run(guards(pii("bank_card")).stream(route), [event(build(FREE))])
    assert outcome.payloads == [build(MASKED_FREE)]


def test_integers_of_unknown_fields_are_not_masked() -> None:
    body = {"input": "hi", "invented": {"seed": CARD, "note": f"pay {CARD}"}}
    assert guards(pii("bank_card")).request("responses", body).changed
    assert body == {"input": "hi", "invented": {"seed": CARD, "note": f"pay {MASK}"}}


KNOWN: dict[str, tuple[Route, dict[str, Any]]] = {
    "a model": ("messages", {"model": "BLOCKME", "messages": []}),
    "a signature": ("messages", message_request({"type": "thinking", "thinking": "x", "signature": "BLOCKME"})),
    "redacted thinking": ("messages", message_request({"type": "redacted_thinking", "data": "BLOCKME"})),
    "a tool server": (
        "messages",
        {"mcp_servers": [{"type": "url", "url": "BLOCKME", "authorization_token": "BLOCKME"}]},
    ),
    "a search result": (
        "messages",
        message_request(
            {"type": "x_tool_result", "content": [{"type": "web_search_result", "encrypted_content": "BLOCKME"}]}
        ),
    ),
    "a limit": ("chat", {"messages": [], "max_tokens": 20260101, "logit_bias": {"20260101": 1}}),
}


@pytest.mark.parametrize(("route", "body"), KNOWN.values(), ids=KNOWN)
def test_known_fields_without_text_are_not_inspected(route: Route, body: dict[str, Any]) -> None:
    assert guards(WORDS).request(route, body).blocked_by is None


USUAL = keyword(
    "hate", "filtered", "severity", "payer", "timings", "prompt", "provider", "logprob", "tier", "choices", "delta"
)


def test_names_of_fields_that_servers_usually_send_are_not_inspected() -> None:
    """A literal may well be the name of a field."""
    verdict = {"hate": {"filtered": False, "severity": "safe"}}
    request = {"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 1, "n": 1}
    assert guards(USUAL).request("chat", request).blocked_by is None
    reply = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "provider": "x",
        "service_tier": "default",
        "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": verdict}],
        "timings": {"prompt_n": 1},
        "choices": [{"index": 0, "message": {"content": "hi"}, "content_filter_results": verdict, "logprobs": None}],
        "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
    }
    assert guards(USUAL).reply("chat", reply).blocked_by is None
    assert (
        guards(USUAL).reply("responses", {**response(function_call("{}")), "billing": {"payer": "x"}}).blocked_by
        is None
    )
    event_ = {
        **chunk(delta={"content": "hi"}, content_filter_results=verdict, logprobs=None),
        "usage": None,
        "provider": "x",
    }
    modes: tuple[Literal["buffer", "window"], ...] = ("buffer", "window")
    for mode in modes:
        assert run(guards(USUAL, mode=mode).stream("chat"), [event(event_)]).blocked is None
