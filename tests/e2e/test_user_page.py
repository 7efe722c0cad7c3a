"""The commands of the user's page, unchanged."""

from __future__ import annotations

import socket

import pytest

PROMPTS = {
    "chat": '{"texts": ["Hello!"]}\n{"texts": ["Tell me a joke."]}\n',
    "completions": '{"texts": ["How are you?"]}\n{"texts": ["Give me a poem."]}\n',
}

COMMANDS = {
    "chat, synthetic": (
        "chat",
        20,
        """profile
        --model Qwen/Qwen3-0.6B
        --endpoint-type chat
        --endpoint /v1/chat/completions
        --streaming
        --synthetic-input-tokens-mean 100
        --synthetic-input-tokens-stddev 0
        --output-tokens-mean 200
        --output-tokens-stddev 0
        --url localhost:8000
        --request-count 20""",
    ),
    "chat, file": (
        "chat",
        10,
        """profile
        --model Qwen/Qwen3-0.6B
        --endpoint-type chat
        --endpoint /v1/chat/completions
        --streaming
        --input-file inputs.jsonl
        --custom-dataset-type single_turn
        --url localhost:8000
        --request-count 10""",
    ),
    "completions, synthetic": (
        "completions",
        32,
        """profile
        --model Qwen/Qwen3-0.6B
        --endpoint-type completions
        --endpoint /v1/completions
        --synthetic-input-tokens-mean 64
        --synthetic-input-tokens-stddev 4
        --output-tokens-mean 128
        --output-tokens-stddev 4
        --url localhost:8000
        --request-count 32""",
    ),
    "completions, file": (
        "completions",
        10,
        """profile
        --model Qwen/Qwen3-0.6B
        --endpoint-type completions
        --endpoint /v1/completions
        --input-file inputs.jsonl
        --custom-dataset-type single_turn
        --url localhost:8000
        --request-count 10""",
    ),
}


@pytest.fixture
def server(mock):
    """A mock on port 8000, as on the page, unless the port is in use."""
    options = {"ttft": 5, "itl": 0.05}
    try:
        with socket.create_server(("127.0.0.1", 8000)):
            pass
        return mock(port=8000, **options)
    except OSError:
        return mock(**options)


@pytest.mark.parametrize(("kind", "count", "command"), COMMANDS.values(), ids=COMMANDS.keys())
def test_command_of_the_page_writes_the_files_and_screen_that_it_describes(server, program, kind, count, command):
    (program.folder / "inputs.jsonl").write_text(PROMPTS[kind])
    outcome = program.run(*command.replace("localhost:8000", f"localhost:{server.port}").split())
    assert outcome.status == 0, outcome
    folder = f"artifacts/Qwen_Qwen3-0.6B-{kind}-concurrency1/"
    outcome.folder = program.folder / folder
    names = {path.name for path in outcome.folder.iterdir() if path.is_file()}
    assert {
        "profile_export_aiperf.json",
        "profile_export_aiperf.csv",
        "profile_export.jsonl",
        "inputs.json",
    } <= names
    lines = outcome.out.splitlines()
    assert f"Results saved to: {folder}" in outcome.out
    assert f"JSON Export: {folder}profile_export_aiperf.json" in lines
    assert any(f"{count}/{count}" in line and "100%" in line for line in lines)
    for row in ("Request Latency (ms)", "Output Token Count (tokens)", "Request Throughput (requests/sec)"):
        assert any(row in line for line in lines), row
    assert outcome.summary["request_count"]["avg"] == count
    assert len(outcome.records) == count
    server_log = server.logged_requests()
    assert len(server_log) == count
    assert {t["path"] for t in server_log} == {"/v1/chat/completions" if kind == "chat" else "/v1/completions"}


def test_synthetic_prompts_and_replies_have_the_requested_length(server, program):
    outcome = program.run(*COMMANDS["chat, synthetic"][2].replace(":8000", f":{server.port}").split())
    outcome.folder = program.folder / "artifacts/Qwen_Qwen3-0.6B-chat-concurrency1"
    assert outcome.values("input_sequence_length") == [100] * 20
    assert outcome.values("output_sequence_length") == [200] * 20
    assert all(body["max_completion_tokens"] == 200 for body in outcome.inputs)
    assert all(body["stream"] is True for body in outcome.inputs)


def test_lengths_vary_with_a_standard_deviation(server, program):
    outcome = program.run(*COMMANDS["completions, synthetic"][2].replace(":8000", f":{server.port}").split())
    outcome.folder = program.folder / "artifacts/Qwen_Qwen3-0.6B-completions-concurrency1"
    lengths = outcome.values("input_sequence_length")
    assert 61 <= sum(lengths) / 32 <= 68
    assert len(set(lengths)) > 3
    assert all(44 <= length <= 84 for length in lengths)
    assert len({body["max_tokens"] for body in outcome.inputs}) > 3


def test_file_shorter_than_the_run_is_repeated(server, program):
    (program.folder / "inputs.jsonl").write_text(PROMPTS["chat"])
    outcome = program.run(*COMMANDS["chat, file"][2].replace(":8000", f":{server.port}").split())
    outcome.folder = program.folder / "artifacts/Qwen_Qwen3-0.6B-chat-concurrency1"
    assert [body["messages"][0]["content"] for body in outcome.inputs] == ["Hello!", "Tell me a joke."]
    sessions = [r["metadata"]["conversation_id"] for r in outcome.records]
    assert sessions == sessions[:2] * 5
    assert len(set(sessions)) == 2
