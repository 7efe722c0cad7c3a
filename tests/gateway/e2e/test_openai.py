"""The official `openai` package as a client of the gateway."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from support.gateway_process import ALIAS, CALLER, GatewayProcess, keyword, resources
from support.scripted_upstream import (
    CHAT_USAGE,
    ReceivedRequest,
    ScriptedConnection,
    Upstream,
    chat_body,
    chat_events,
    event,
    normal_reply,
    response_body,
)


@pytest.fixture
def client(gateway: GatewayProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=CALLER, max_retries=0, timeout=60)


def test_responses_create_returns_text_and_usage(client: openai.OpenAI, upstream: Upstream) -> None:
    response = client.responses.create(model=ALIAS, input="Say hello.", temperature=0.3, metadata={"a": "b"})
    assert response.output_text == "Hello from here."
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (17, 23)
    assert response.model == "gpt-4o-mini-2024-07-18"
    assert upstream.requests[0].json["metadata"] == {"a": "b"}


def test_responses_stream_yields_all_events(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    seen = []
    with client.responses.stream(model=ALIAS, input="Say hello.") as stream:
        for received in stream:
            seen.append(received.type)
        final = stream.get_final_response()
    assert final.output_text == "Hello from here."
    assert seen[0] == "response.created"
    assert seen[-1] == "response.completed"
    assert seen.count("response.output_text.delta") == 3


def test_responses_with_tools_round_trip(client: openai.OpenAI, upstream: Upstream) -> None:
    call = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "weather",
        "arguments": '{"city":"Bonn"}',
    }

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        outputs = [item for item in request.json["input"] if item.get("type") == "function_call_output"]
        connection.reply(
            200, response_body("Sunny.") if outputs else response_body(output=[{**call, "status": "completed"}])
        )

    upstream.use_script(script)
    tool: Any = {
        "type": "function",
        "name": "weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
    conversation: list[Any] = [{"role": "user", "content": "How is the weather in Bonn?"}]
    first = client.responses.create(model=ALIAS, input=conversation, tools=[tool])
    [tool_call] = first.output
    assert tool_call.type == "function_call"
    assert json.loads(tool_call.arguments) == {"city": "Bonn"}
    conversation += [call, {"type": "function_call_output", "call_id": tool_call.call_id, "output": "sunny"}]
    second = client.responses.create(model=ALIAS, input=conversation, tools=[tool])
    assert second.output_text == "Sunny."
    assert upstream.requests[1].json["tools"] == [tool]


def test_streamed_tool_arguments_arrive(client: openai.OpenAI, upstream: Upstream) -> None:
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "f",
        "arguments": "",
        "status": "in_progress",
    }
    done = {**item, "arguments": '{"a":1}', "status": "completed"}
    where = {"item_id": "fc_1", "output_index": 0}
    upstream.stream_with(
        [
            event("response.created", 0, response={**response_body(output=[]), "status": "in_progress", "usage": None}),
            event("response.output_item.added", 1, output_index=0, item=item),
            event("response.function_call_arguments.delta", 2, **where, delta='{"a"'),
            event("response.function_call_arguments.delta", 3, **where, delta=":1}"),
            event("response.function_call_arguments.done", 4, **where, arguments='{"a":1}', name="f"),
            event("response.output_item.done", 5, output_index=0, item=done),
            event("response.completed", 6, response=response_body(output=[done])),
        ]
    )
    arguments = ""
    for received in client.responses.create(model=ALIAS, input="x", stream=True):
        if received.type == "response.function_call_arguments.delta":
            arguments += received.delta
    assert arguments == '{"a":1}'


def test_chat_returns_alias_text_and_usage(client: openai.OpenAI, upstream: Upstream, gateway: GatewayProcess) -> None:
    completion = client.chat.completions.create(model=ALIAS, messages=[{"role": "user", "content": "Hi."}])
    assert completion.choices[0].message.content == "Hello from here."
    assert completion.model == ALIAS
    upstream.stream_with(chat_events(["Hel", "lo"], usage=CHAT_USAGE))
    chunks = list(
        client.chat.completions.create(
            model=ALIAS,
            messages=[{"role": "user", "content": "Hi."}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 23
    upstream.stream_with(chat_events(["Hel", "lo there"]))  # without usage
    stream = gateway.stream("/v1/chat/completions")
    stream.read_rest()
    entry = gateway.ledger_entry(stream)
    assert (entry["usage_source"], entry["finish"], entry["status"]) == ("estimated", "stop", 200)
    assert entry["output_tokens"] == 3


def test_chat_tool_calls_arrive(client: openai.OpenAI, upstream: Upstream) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    upstream.reply_with(chat_body("", tool_calls=[call]))
    completion = client.chat.completions.create(model=ALIAS, messages=[{"role": "user", "content": "Hi."}])
    [tool_call] = completion.choices[0].message.tool_calls or []
    assert tool_call.type == "function"
    assert tool_call.function.name == "f"


def test_completions_embeddings_and_models_work(client: openai.OpenAI, gateway: GatewayProcess) -> None:
    assert client.completions.create(model=ALIAS, prompt="Hi").choices[0].text == "Hello from here."
    embedded = client.embeddings.create(model=ALIAS, input=["a", "b"], encoding_format="float")
    assert embedded.data[0].embedding == [0.25, -0.5]
    assert [model.id for model in client.models.list()] == [ALIAS]
    entry = [row for row in _rows(gateway, 2) if row["route"] == "embeddings"][-1]
    assert (entry["input_tokens"], entry["output_tokens"], entry["usage_source"]) == (4, 0, "upstream")


def _rows(gateway: GatewayProcess, least: int) -> list[Any]:
    from support.programs import wait_for

    return wait_for(
        lambda: len(rows := gateway.ledger_rows()) >= least and rows and rows[-1]["route"] == "embeddings" and rows, 5
    )


def test_errors_become_the_matching_exceptions_of_the_library(
    client: openai.OpenAI, gateway: GatewayProcess, upstream: Upstream
) -> None:
    with pytest.raises(openai.AuthenticationError) as unknown:
        client.with_options(api_key="sk-wrong").responses.create(model=ALIAS, input="x")
    assert unknown.value.type == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="gpt-9", input="x")
    assert missing.value.type == "model_not_found"
    upstream.reply_with(
        {"error": {"message": "No.", "type": "invalid_request_error", "param": "input", "code": "bad"}}, 400
    )
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model=ALIAS, input="x")
    assert (bad.value.code, bad.value.param) == ("bad", "input")
    upstream.reply_with({}, 500)
    with pytest.raises(openai.InternalServerError):
        client.responses.create(model=ALIAS, input="x")
    gateway.reload(resources(upstream.url, guardrails=[keyword("words", "BLOCKME")]))
    with pytest.raises(openai.UnprocessableEntityError) as blocked:
        client.responses.create(model=ALIAS, input="BLOCKME")
    assert blocked.value.type == "content_filter"
    gateway.reload(resources(upstream.url, caller={"display_name": "once", "rate_limit": {"rpm": 1}}))
    upstream.use_script(normal_reply)
    client.responses.create(model=ALIAS, input="x")
    with pytest.raises(openai.RateLimitError) as limited:
        client.responses.create(model=ALIAS, input="x")
    assert int(limited.value.response.headers["retry-after"]) >= 1


def test_error_within_a_stream_raises_an_exception(client: openai.OpenAI, upstream: Upstream) -> None:
    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        connection.start()
        for piece in chat_events(["Hel", "lo"])[:2]:
            connection.chunk(piece)
        import time

        time.sleep(0.05)
        connection.reset()

    upstream.use_script(script)
    with pytest.raises(openai.APIError, match="ended before it was complete"):
        for _ in client.chat.completions.create(model=ALIAS, messages=[{"role": "user", "content": "x"}], stream=True):
            pass


def test_library_retries_a_429_with_retry_after(gateway: GatewayProcess, upstream: Upstream) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=CALLER, max_retries=1, timeout=60)
    statuses = iter([429, 200])

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        if next(statuses) == 429:
            connection.reply(429, {"error": {"message": "Later."}}, retry_after="1")
        else:
            normal_reply(request, connection)

    upstream.use_script(script)
    assert client.responses.create(model=ALIAS, input="x").output_text == "Hello from here."
