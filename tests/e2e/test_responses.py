"""`--endpoint-type responses` with the real command: the commands of the user's page, and every end of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.programs import MockServer, Program
from support.scripted_server import ScriptedServer, deltas, event, response_object

BUILTIN = ("--tokenizer", "builtin", "--random-seed", "1")
RESPONSES = ("--endpoint-type", "responses", "--endpoint", "/v1/responses")

PAGE = {
    "synthetic": "--streaming --synthetic-input-tokens-mean 100 --synthetic-input-tokens-stddev 0 --output-tokens-mean 20 "
    "--output-tokens-stddev 0 --request-count 6",
    "instructions": "--streaming --shared-system-prompt-length 50 --synthetic-input-tokens-mean 100 --output-tokens-mean 20 "
    "--request-count 6",
    "images": "--image-width-mean 512 --image-height-mean 512 --synthetic-input-tokens-mean 100 --streaming "
    "--request-count 6 --concurrency 4",
    "audio": "--streaming --audio-length-mean 5.0 --audio-format wav --audio-sample-rates 16 --request-count 6",
    "not streaming": "--synthetic-input-tokens-mean 100 --output-tokens-mean 20 --request-count 6",
    "concurrency": "--streaming --concurrency 3 --request-count 6",
    "rate": "--streaming --request-rate 50 --request-count 6",
    "multi-turn": "--streaming --conversation-num 2 --conversation-turn-mean 3 --synthetic-input-tokens-mean 100 "
    "--output-tokens-mean 20",
    "server tokens": "--streaming --use-server-token-count --request-count 6",
    "extras": "--streaming --extra-inputs temperature:0.7 --extra-inputs top_p:0.9 --request-count 6",
}


@pytest.mark.parametrize("name", PAGE)
def test_commands_of_the_page_succeed(name: str, mock: Callable[..., MockServer], program: Program) -> None:
    server = mock(ttft=10, itl=1, tokens=20)
    run = program.profile(server.url, *RESPONSES, *BUILTIN, *PAGE[name].split(), texts=None)
    assert run.status == 0, run
    assert run.summary["request_count"]["avg"] == 6
    assert run.summary["finish_reasons"] == {"completed": 6}
    assert "warnings" not in run.summary
    assert run.summary["output_sequence_length"]["avg"] == 20
    assert ("time_to_first_token" in run.summary) is (name != "not streaming")
    server_log = server.logged_requests()
    assert {line["path"] for line in server_log} == {"/v1/responses"}
    assert {line["status"] for line in server_log} == {200}
    for body in run.inputs:
        assert body["model"] == "mock-model"
        assert body["stream"] is (name != "not streaming")
        assert "messages" not in body
        assert "system" not in [item["role"] for item in body["input"]]
        assert body.get("max_output_tokens", 20) == 20
        assert ("stream_options" in body) is (name == "server tokens")
    if name in ("synthetic", "not streaming"):
        assert run.summary["input_sequence_length"]["avg"] == 100
    if name == "extras":
        assert {(body["temperature"], body["top_p"]) for body in run.inputs} == {(0.7, 0.9)}
    if name == "images":
        assert {line["images"] for line in server_log} == {1}
        assert run.inputs[0]["input"][0]["content"][1]["image_url"].startswith("data:image/jpeg;base64,")
    if name == "audio":
        assert {line["audios"] for line in server_log} == {1}
        assert run.inputs[0]["input"][0]["content"][1]["input_audio"]["format"] == "wav"
    if name == "server tokens":
        assert run.values("input_sequence_length") == [line["prompt_tokens"] for line in server_log]


def test_prompt_file_of_the_page_is_sent(mock: Callable[..., MockServer], program: Program) -> None:
    file = program.folder / "inputs.jsonl"
    file.write_text('{"texts": ["Explain quantum computing in simple terms."]}\n{"texts": ["What is a turbine?"]}\n')
    flags = ("--streaming", "--input-file", file, "--custom-dataset-type", "single_turn", "--request-count", 10)
    run = program.profile(mock(tokens=5).url, *RESPONSES, *flags, "--tokenizer", "builtin", texts=None)
    assert run.status == 0, run
    assert run.summary["request_count"]["avg"] == 10
    assert [body["input"][0]["content"] for body in run.inputs] == [
        "Explain quantum computing in simple terms.",
        "What is a turbine?",
    ]
    assert all("max_output_tokens" not in body for body in run.inputs)


@pytest.mark.slow
def test_shared_system_prompt_is_one_text_of_the_exact_length(
    mock: Callable[..., MockServer], program: Program
) -> None:
    from penstock.tokens.tiktoken_vocabulary import open_builtin

    flags = ("--shared-system-prompt-length", 50, "--isl", 100, "--request-count", 5)
    run = program.profile(mock(tokens=3).url, *RESPONSES, *BUILTIN, *flags, texts=None)
    texts = {body["instructions"] for body in run.inputs}
    assert len(texts) == 1
    assert open_builtin().count(texts.pop()) == 50
    for length, body in zip(run.values("input_sequence_length"), run.inputs, strict=True):
        assert length == open_builtin().count(f"{body['instructions']} {body['input'][0]['content']}")
    chat = program.profile(mock(tokens=3).url, *BUILTIN, *flags, texts=None)
    systems = {body["messages"][0]["content"] for body in chat.inputs if body["messages"][0]["role"] == "system"}
    assert len(systems) == 1
    assert [len(body["messages"]) for body in chat.inputs] == [2] * 5


@pytest.mark.slow
def test_each_session_has_its_own_user_context(mock: Callable[..., MockServer], program: Program) -> None:
    flags = ("--user-context-prompt-length", 30, "--shared-system-prompt-length", 10, "--isl", 20, "--request-count", 4)
    for kind in (RESPONSES, ()):
        run = program.profile(mock(tokens=3).url, *kind, *BUILTIN, *flags, texts=None)
        lists = [body.get("input") or body["messages"][1:] for body in run.inputs]
        assert [len(items) for items in lists] == [2] * 4
        assert {items[0]["role"] for items in lists} == {"user"}
        assert len({items[0]["content"] for items in lists}) == 4
        assert 57 <= run.summary["input_sequence_length"]["avg"] <= 61


@pytest.mark.slow
def test_time_to_first_output_token_excludes_reasoning(mock: Callable[..., MockServer], program: Program) -> None:
    for thoughts in ("summary", "text"):
        server = mock(ttft=40, itl=10, tokens=20, reasoning=12, thoughts=thoughts)
        run = program.profile(server.url, "--endpoint-type", "responses", "--streaming", "--osl", 20)
        first, visible = (run.summary[f"time_to_first_{kind}token"]["p50"] for kind in ("", "output_"))
        assert first >= 40
        assert visible - first > 100
        assert run.summary["reasoning_token_count"]["avg"] == 12
        assert run.summary["output_sequence_length"]["avg"] == 20
        assert run.values("output_token_count") == [8] * 3


@pytest.mark.parametrize("option", ["tools", "refusal"])
def test_tool_arguments_and_refusals_are_tokens(option: str, mock: Callable[..., MockServer], program: Program) -> None:
    server = mock(ttft=5, itl=2, **{option: True})
    run = program.profile(server.url, "--endpoint-type", "responses", "--streaming", "--osl", 15)
    assert run.status == 0, run
    assert [len(gaps) + 1 for gaps in run.values("inter_chunk_latency")] != []
    assert run.summary["output_sequence_length"]["avg"] == 15
    assert "time_to_first_token" in run.summary


@pytest.mark.parametrize(
    ("options", "flags", "kind", "message"),
    [
        (
            {"failed": 3},
            "--streaming",
            "ResponseFailed",
            "The response failed: the mock was told to fail (server_error)",
        ),
        ({"failed": 3}, "", "ResponseFailed", "The response failed: the mock was told to fail (server_error)"),
        ({"stream_error": 3}, "--streaming", "ErrorEvent", "the mock was told to fail here (server_error)"),
        ({"finish": False}, "--streaming", "TruncatedStream", "without response.completed"),
        ({"incomplete": "content_filter"}, "--streaming", "ResponseIncomplete", "content_filter"),
        ({"malformed": 3}, "--streaming", "MalformedEvent", "not JSON"),
        ({"error": 503}, "--streaming", "Service Unavailable", "the mock was told to answer with 503"),
        ({"cut": 3}, "--streaming", "", ""),
    ],
)
def test_failed_responses_are_reported_with_their_cause(
    options: dict[str, Any], flags: str, kind: str, message: str, mock: Callable[..., MockServer], program: Program
) -> None:
    run = program.profile(mock(tokens=6, **options).url, "--endpoint-type", "responses", *flags.split())
    assert run.status == 1, run
    errors = run.errors()
    assert sum(error["count"] for error in errors) == 3
    for error in errors:
        assert kind in error["type"]
        assert message in error["message"]
        assert error["fault"] in ("server", "network")
    assert "Requests Failed" in run.out


def test_reply_that_reached_max_output_tokens_is_a_success(mock: Callable[..., MockServer], program: Program) -> None:
    for flags in (("--streaming",), ()):
        server = mock(incomplete="max_output_tokens")
        run = program.profile(server.url, "--endpoint-type", "responses", "--osl", 9, *flags)
        assert run.status == 0, run
        assert run.summary["finish_reasons"] == {"max_output_tokens": 3}
        assert run.summary["output_sequence_length"]["avg"] == 9


def test_inconsistent_replies_are_counted_as_warnings(program: Program) -> None:
    def answer(body: dict[str, Any], number: int) -> bytes:
        odd = event("response.telepathy.delta", delta="?")
        end = event("response.completed", response=response_object("Something else", number))
        return event("response.created", response=response_object("", number)) + deltas("Yes", ".") + odd + odd + end

    with ScriptedServer(answer) as server:
        run = program.profile(server.url, "--endpoint-type", "responses", "--streaming")
    assert run.status == 0, run
    assert run.summary["warnings"] == {
        "Events of an unknown type, response.telepathy.delta": 6,
        "response.completed with another text than the deltas": 3,
    }
    assert "Events of an unknown type, response.telepathy.delta: 6." in run.out
    assert run.summary["request_count"]["avg"] == 3


def test_extra_inputs_keep_their_types_in_both_forms(program: Program) -> None:
    forms = (
        ["--extra-inputs", "temperature:0.7", "top_k:5", "store:false", "user:null", 'metadata:{"a":{"b":[1,2]}}'],
        ["--extra-inputs", '{"temperature":0.7,"top_k":5,"store":false,"user":null,"metadata":{"a":{"b":[1,2]}}}'],
    )
    for form in forms:
        with ScriptedServer(lambda body, number: response_object("Yes", number)) as server:
            run = program.profile(server.url, "--endpoint-type", "responses", *form)
        assert run.status == 0, run
        body = server.bodies[0]
        assert (body["temperature"], body["top_k"], body["store"], body["user"]) == (0.7, 5, False, None)
        assert body["metadata"] == {"a": {"b": [1, 2]}}
        assert isinstance(body["top_k"], int)


def test_use_legacy_max_tokens_is_refused(program: Program) -> None:
    run = program.profile("mock://", "--endpoint-type", "responses", "--use-legacy-max-tokens")
    assert run.status == 2
    assert "responses has one name for the length limit (max_output_tokens)" in run.err
    assert not run.folder.exists()


def test_server_token_counts_need_no_tokenizer(mock: Callable[..., MockServer], program: Program) -> None:
    server = mock(reasoning=4)
    run = program.profile(
        server.url, "--endpoint-type", "responses", "--streaming", "--osl", 12, "--tokenizer", "/no/such/tokenizer"
    )
    assert run.status == 0, run
    server_log = server.logged_requests()
    assert run.values("input_sequence_length") == [line["prompt_tokens"] for line in server_log]
    assert run.values("output_sequence_length") == [12] * 3
    assert run.values("reasoning_token_count") == [4] * 3
    assert run.summary["usage_prompt_cache_read_tokens"]["avg"] == 0


def test_base_url_may_end_in_v1(program: Program) -> None:
    with ScriptedServer(lambda body, number: response_object("Yes", number)) as server:
        assert program.profile(server.url, "--endpoint-type", "responses").status == 0
        assert program.profile(server.url + "/v1", "--endpoint-type", "responses").status == 0
    summary = json.loads((program.folder / "run-1" / "profile_export_aiperf.json").read_text())
    assert summary["input_config"]["endpoint"]["type"] == "responses"
