"""Conversations that start others, with the real command: bodies, order, counts and the report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.programs import Outcome, Program
from support.scripted_server import ScriptedServer

BUILTIN = ("--tokenizer", "builtin", "--osl", 4)


def user(content: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


SYSTEM = {"role": "system", "content": "Be brief."}
AGENTS = [
    {
        "session_id": "main",
        "turns": [
            {"messages": [SYSTEM, {"role": "user", "content": "Plan."}], "spawns": ["search"]},
            user("Decide.", forks=["write", "test"], model="large", max_tokens=9, delay=80),
        ],
    },
    {"session_id": "search", "turns": [user("Search."), user("Search more.")]},
    {"session_id": "write", "turns": [user("Write.")]},
    {"session_id": "test", "turns": [user("Test.")]},
]


def agents(program: Program, lines: list[dict[str, Any]] = AGENTS) -> tuple[Any, ...]:
    path = program.folder / "agents.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ("--input-file", path, *BUILTIN)


def chat_reply(body: dict[str, Any], number: int) -> dict[str, Any]:
    del number
    asked = body["messages"][-1]["content"]
    message = {"role": "assistant", "content": f"Done: {asked}", "reasoning_content": "Hm."}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def places(run: Outcome) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the metadata of each request by conversation and turn."""
    return {(row["metadata"]["conversation_id"], row["metadata"]["turn_index"]): row["metadata"] for row in run.records}


def test_forks_go_on_from_the_history_and_spawns_begin_without_one(program: Program) -> None:
    with ScriptedServer(chat_reply) as server:
        run = program.profile(server.url, *agents(program), texts=None)
    assert run.status == 0, run
    bodies = {body["messages"][-1]["content"]: body for body in server.bodies}
    texts = {name: [message["content"] for message in body["messages"]] for name, body in bodies.items()}
    history = ["Be brief.", "Plan.", "Done: Plan.", "Decide."]
    assert texts == {
        "Plan.": history[:2],
        "Search.": ["Search."],
        "Search more.": ["Search.", "Done: Search.", "Search more."],
        "Decide.": history,
        "Write.": [*history, "Done: Decide.", "Write."],
        "Test.": [*history, "Done: Decide.", "Test."],
    }
    assert (bodies["Decide."]["model"], bodies["Decide."]["max_completion_tokens"]) == ("large", 9)
    assert len(bodies) == len(server.bodies)

    found = places(run)
    root = found["main", 0]["x_correlation_id"]
    assert {place: metadata["agent_depth"] for place, metadata in found.items()} == {
        ("main", 0): 0,
        ("main", 1): 0,
        ("search", 0): 1,
        ("search", 1): 1,
        ("write", 0): 1,
        ("test", 0): 1,
    }
    for (name, _), metadata in found.items():
        assert metadata["root_correlation_id"] == root
        assert metadata.get("parent_correlation_id") == (None if name == "main" else root)
    joined = found["main", 1]["request_start_ns"]
    assert joined >= found["search", 1]["request_end_ns"] + 80_000_000, "it waits for the child, then for its delay"
    assert found["write", 0]["request_start_ns"] >= found["main", 1]["request_end_ns"]
    assert run.summary["branch_stats"] == {
        "profiling": {
            "children_spawned": 3,
            "children_completed": 3,
            "children_failed": 0,
            "children_truncated": 0,
            "joins_fired": 1,
            "joins_suppressed": 0,
        }
    }
    (session,) = json.loads(run.text("inputs.json"))["data"]
    assert [payload["messages"][-1]["content"] for payload in session["payloads"]] == [
        *("Plan.", "Decide.", "Search.", "Search more.", "Write.", "Test.")
    ]
    assert program.run("verify", run.folder, command="penstock").status == 0


def test_a_failed_child_releases_its_parent_and_is_counted(program: Program) -> None:
    def reply(body: dict[str, Any], number: int) -> dict[str, Any]:
        if body["messages"][-1]["content"] == "Search.":
            return {"error": {"message": "no", "type": "server_error"}}
        return chat_reply(body, number)

    with ScriptedServer(reply) as server:
        run = program.profile(server.url, *agents(program), texts=None)
    assert sorted(places(run)) == [("main", 0), ("main", 1), ("search", 0), ("test", 0), ("write", 0)]
    stats = run.summary["branch_stats"]["profiling"]
    assert (stats["children_failed"], stats["children_completed"], stats["joins_fired"]) == (1, 2, 1)
    assert run.summary["broken_conversations"] == 1


def test_a_failed_root_starts_nothing_more(program: Program) -> None:
    with ScriptedServer(lambda body, number: {"error": {"message": "no", "type": "server_error"}}) as server:
        run = program.profile(server.url, *agents(program), texts=None)
    assert sorted(places(run)) == [("main", 0)]
    assert set(run.summary["branch_stats"]["profiling"].values()) == {0}


def test_request_count_counts_children_and_conversation_num_counts_roots(mock, program: Program) -> None:
    url = mock(ttft=5, tokens=2).url
    cut = program.profile(url, *agents(program), "--request-count", 9, "--concurrency", 2, texts=None)
    assert len(cut.records) == 9
    stats = cut.summary["branch_stats"]["profiling"]
    assert stats["children_spawned"] == stats["children_completed"] + stats["children_truncated"]
    whole = program.profile(url, *agents(program), "--conversation-num", 4, "--concurrency", 2, texts=None)
    assert len(whole.records) == 24
    assert whole.summary["branch_stats"]["profiling"]["children_completed"] == 12


@pytest.mark.parametrize("endpoint", ["responses", "messages"])
def test_other_apis_carry_the_same_conversation(mock, program: Program, endpoint: str) -> None:
    server = mock(ttft=1, tokens=2)
    flags = ("--endpoint-type", endpoint, "--streaming", "--export-level", "raw")
    run = program.profile(server.url, *agents(program), *flags, texts=None)
    assert run.status == 0, run
    assert len(run.records) == 6
    (session,) = json.loads(run.text("inputs.json"))["data"]
    write = session["payloads"][4]
    messages = write["messages" if endpoint == "messages" else "input"]
    roles = ["user", "assistant", "user", "assistant", "user"]
    assert [message["role"] for message in messages] == (roles if endpoint == "messages" else ["developer", *roles])
    if endpoint == "messages":
        assert write["system"] == "Be brief."


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--endpoint-type", "completions"), "turns with 'messages', which --endpoint-type completions cannot carry"),
        (("--user-centric-rate", 5, "--num-users", 2), "and conversations in"),
        (("--fixed-schedule",), "has no recorded times; leave out --fixed-schedule."),
    ],
)
def test_what_a_tree_cannot_do_is_one_sentence(program: Program, flags: tuple[Any, ...], sentence: str) -> None:
    run = program.profile("http://127.0.0.1:9", *agents(program), *flags, texts=None)
    assert run.status == 2, run
    assert sentence in run.err
