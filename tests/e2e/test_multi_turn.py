"""Conversations with the real command: order, history, delays, stop conditions and `inputs.json`."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from openai.types.responses import ResponseInputParam
from pydantic import TypeAdapter

from support.programs import MockServer, Outcome, Program
from support.scripted_server import ScriptedServer, deltas, event, response_object

BUILTIN = ("--tokenizer", "builtin", "--random-seed", "1", "--isl", "8", "--osl", "5")
RESPONSES = ("--endpoint-type", "responses")


def sessions(run: Outcome) -> list[list[dict[str, Any]]]:
    return [session["payloads"] for session in json.loads(run.text("inputs.json"))["data"]]


def numbered_reply(body: dict[str, Any], number: int) -> bytes:
    """Return a streamed reply that names the request which it answers."""
    text = f"Reply {number}."
    created = event("response.created", response=response_object("", number, status="in_progress", output=[]))
    return created + deltas(text[:3], text[3:]) + event("response.completed", response=response_object(text, number))


@pytest.mark.slow
def test_each_turn_contains_the_earlier_turns_and_replies(program: Program) -> None:
    with ScriptedServer(numbered_reply) as server:
        run = program.profile(
            server.url,
            *(*RESPONSES, *BUILTIN, "--streaming", "--conversation-num", 4, "--conversation-turn-mean", 3),
            *("--concurrency", 2, "--shared-system-prompt-length", 9, "--user-context-prompt-length", 7),
            texts=None,
        )
    assert run.status == 0, run
    assert run.summary["request_count"]["avg"] == 12
    conversations = server.conversations()
    assert [len(bodies) for bodies in conversations] == [3] * 4
    for bodies in conversations:
        items = bodies[-1]["input"]
        assert [item["role"] for item in items] == ["user", "user", "assistant", "user", "assistant", "user"]
        for earlier, later in itertools.pairwise(bodies):
            assert later["input"][: len(earlier["input"])] == earlier["input"]
            answered = server.bodies.index(earlier)
            assert later["input"][len(earlier["input"])] == response_object(f"Reply {answered}.", answered)["output"][0]
            TypeAdapter(ResponseInputParam).validate_python(later["input"])
        assert len({body["instructions"] for body in bodies}) == 1
        assert len({body["input"][0]["content"] for body in bodies}) == 1, "every turn starts with the user context"
    assert sorted(map(json.dumps, itertools.chain(*sessions(run)))) == sorted(map(json.dumps, server.bodies))
    lengths = run.values("input_sequence_length")
    turns = [record["metadata"]["turn_index"] for record in run.records]
    assert Counter(turns) == {0: 4, 1: 4, 2: 4}
    by_turn = [[n for n, turn in zip(lengths, turns, strict=True) if turn == index] for index in range(3)]
    assert max(by_turn[0]) < min(by_turn[1])
    assert max(by_turn[1]) < min(by_turn[2])


def test_chat_history_has_messages_with_tool_calls_and_without_reasoning(program: Program) -> None:
    def answer(body: dict[str, Any], number: int) -> dict[str, Any]:
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"}
        if number % 2:
            message = {"role": "assistant", "content": f"Reply {number}.", "reasoning_content": "hm"}
        return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    with ScriptedServer(answer) as server:
        run = program.profile(server.url, *BUILTIN, "--num-sessions", 1, "--session-turns-mean", 3, texts=None)
    assert run.status == 0, run
    (bodies,) = server.conversations()
    roles = [message["role"] for message in bodies[-1]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert bodies[-1]["messages"][1]["tool_calls"][0]["id"] == "call_0"
    assert bodies[-1]["messages"][1]["content"] is None
    assert bodies[-1]["messages"][3] == {"role": "assistant", "content": "Reply 1."}


def test_sessions_run_in_parallel_and_their_turns_in_order(mock: Callable[..., MockServer], program: Program) -> None:
    server = mock(ttft=200, itl=1)
    run = program.profile(
        server.url,
        *(
            *RESPONSES,
            *BUILTIN,
            "--streaming",
            "--conversation-num",
            6,
            "--conversation-turn-mean",
            2,
            "--concurrency",
            3,
        ),
        *("--conversation-turn-delay-mean", 60),
        texts=None,
    )
    assert run.status == 0, run
    by_session: dict[str, list[dict[str, Any]]] = {}
    for record in run.records:
        by_session.setdefault(record["metadata"]["x_correlation_id"], []).append(record["metadata"])
    assert len(by_session) == 6
    for first, second in by_session.values():
        assert (first["turn_index"], second["turn_index"]) == (0, 1)
        assert second["request_start_ns"] - first["request_end_ns"] >= 60e6
    assert run.summary["effective_concurrency"]["max"] <= 3
    assert run.summary["effective_concurrency"]["max"] >= 2


@pytest.mark.slow
def test_run_stops_at_the_number_of_conversations_or_requests(
    mock: Callable[..., MockServer], program: Program
) -> None:
    url = mock().url
    flags = (*RESPONSES, *BUILTIN, "--conversation-turn-mean", 3, "--concurrency", 2)
    both = program.profile(url, *flags, "--num-conversations", 5, "--request-count", 7, texts=None)
    assert both.summary["request_count"]["avg"] == 7
    none = program.profile(url, *flags, texts=None)
    assert none.summary["request_count"]["avg"] == 30, "ten complete conversations"
    more = program.profile(url, *flags, "--conversation-num", 4, "--num-prompts", 2, "--workers-max", 2, texts=None)
    assert more.summary["request_count"]["avg"] == 12
    first_turns = {bodies[0]["input"][0]["content"] for bodies in sessions(more)}
    assert len(first_turns) == 2, "two different conversations, each sent twice"


def test_stored_history_is_sent_as_previous_response_id(mock: Callable[..., MockServer], program: Program) -> None:
    with ScriptedServer(numbered_reply) as server:
        run = program.profile(
            server.url,
            *(*RESPONSES, *BUILTIN, "--streaming", "--conversation-num", 2, "--conversation-turn-mean", 3),
            *("--extra-inputs", "store:true", "--use-server-token-count", "--user-context-prompt-length", 5),
            texts=None,
        )
    assert run.status == 0, run
    for bodies in server.conversations():
        assert [len(body["input"]) for body in bodies] == [2, 1, 1]
        assert "previous_response_id" not in bodies[0]
        ids = [f"resp_{server.bodies.index(body)}" for body in bodies]
        assert [body["previous_response_id"] for body in bodies[1:]] == ids[:2]
        assert all(body["store"] is True for body in bodies)
    assert sorted(map(json.dumps, itertools.chain(*sessions(run)))) == sorted(map(json.dumps, server.bodies))
    mock_server = mock()
    chained = program.profile(
        mock_server.url,
        *(*RESPONSES, *BUILTIN, "--streaming", "--conversation-num", 1, "--conversation-turn-mean", 3),
        *("--extra-inputs", "store:true", "--use-server-token-count"),
        texts=None,
    )
    assert chained.status == 0, chained
    lengths = chained.values("input_sequence_length")
    assert lengths[0] < lengths[1] < lengths[2], "the server counts the stored history"
    assert chained.values("usage_prompt_cache_read_tokens")[0] == 0
    assert chained.values("usage_prompt_cache_read_tokens")[2] > 0
    again = program.profile(
        mock().url,
        *(*RESPONSES, "--streaming", "--input-file", chained.folder / "inputs.json", "--use-server-token-count"),
        texts=None,
    )
    assert "1 session with a previous_response_id, the id of a reply that the recorded server has stored" in again.err
    assert again.summary["error_request_count"]["avg"] == 2
    assert "not found" in again.errors()[0]["message"]


FILE = [
    {
        "session_id": "travel",
        "turns": [
            {"role": "system", "text": "You are terse."},
            {"text": "Where is Oslo?"},
            {"text": "And Bergen?", "delay": 80, "output_length": 3},
        ],
    },
    {"turns": [{"texts": ["One", "two"]}]},
]


@pytest.mark.parametrize("kind", ["responses", "chat"])
def test_multi_turn_file_is_sent_with_history_delays_and_lengths(kind: str, program: Program) -> None:
    file = program.folder / "chats.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in FILE))
    chat = {"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes"}}]}
    with ScriptedServer(lambda body, number: chat if kind == "chat" else response_object("Yes", number)) as server:
        run = program.profile(
            server.url, "--endpoint-type", kind, "--input-file", file, "--tokenizer", "builtin", texts=None
        )
    assert run.status == 0, run
    (first, second), (other,) = server.conversations()
    assert [json.loads(run.text("inputs.json"))["data"][0]["session_id"]] == ["travel"]
    start, end = (record["metadata"] for record in run.records[:2])
    assert end["request_start_ns"] - start["request_end_ns"] >= 80e6
    if kind == "chat":
        assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
        assert second["messages"][0]["content"] == "You are terse."
        assert second["max_completion_tokens"] == 3
        assert len(other["messages"][0]["content"]) == 2
    else:
        assert first["instructions"] == second["instructions"] == "You are terse."
        assert [item["role"] for item in second["input"]] == ["user", "assistant", "user"]
        assert second["max_output_tokens"] == 3
        assert "instructions" not in other


def test_failed_turn_ends_only_its_conversation(mock: Callable[..., MockServer], program: Program) -> None:
    server = mock(failed=2, failed_rate=0.3, seed=3)
    run = program.profile(
        server.url,
        *(
            *RESPONSES,
            *BUILTIN,
            "--streaming",
            "--conversation-num",
            8,
            "--conversation-turn-mean",
            3,
            "--concurrency",
            2,
        ),
        command="penstock",
        texts=None,
    )
    assert run.status == 1, run
    failed = run.summary["error_request_count"]["avg"]
    assert failed >= 2
    early = sum("error" in record and record["metadata"]["turn_index"] < 2 for record in run.records)
    assert run.summary["broken_conversations"] == early
    assert f"Conversations that ended early because a turn failed: {early}." in run.out
    for record in run.records:
        if "error" in record:
            session = record["metadata"]["x_correlation_id"]
            later = [
                other
                for other in run.records
                if other["metadata"]["x_correlation_id"] == session
                and other["metadata"]["turn_index"] > record["metadata"]["turn_index"]
            ]
            assert later == []
    assert len({record["metadata"]["x_correlation_id"] for record in run.records}) == 8


def test_turn_without_content_is_an_error_with_its_line(program: Program) -> None:
    file = program.folder / "chats.jsonl"
    file.write_text('{"turns": [{"text": "a"}]}\n{"turns": [{"text": "a"}, {"role": "user"}]}\n')
    run = program.profile("mock://", *RESPONSES, "--input-file", file, texts=None)
    assert run.status == 2
    assert "chats.jsonl:2: turn 2: it has no content: give it 'text', 'image' or 'audio'" in run.err


@pytest.mark.parametrize(
    ("turns", "noun", "types"),
    [
        (
            '[{"role": "system", "text": "Be brief."}, {"text": "Hi"}]',
            "system prompts",
            "chat, responses, messages or chat_embeddings",
        ),
        ('[{"text": "Hi"}, {"text": "And?"}]', "conversations of several turns", "chat, responses or messages"),
    ],
)
def test_content_that_an_endpoint_cannot_send_is_refused(program: Program, turns: str, noun: str, types: str) -> None:
    file = program.folder / "chats.jsonl"
    file.write_text(f'{{"turns": {turns}}}\n')
    run = program.profile("mock://", "--endpoint-type", "completions", "--input-file", file, texts=None)
    assert run.status == 2
    assert f"The dataset has {noun}, which --endpoint-type completions cannot carry; use {types}." in run.err
