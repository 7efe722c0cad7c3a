"""The dag_jsonl format: trees of conversations, and the errors of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.datasets.dag import Dag
from penstock.datasets.dataset import ReadOptions
from penstock.datasets.detect_format import detect
from penstock.errors import UserError
from penstock.settings.schema import InputSettings, ScheduleSettings
from penstock.trees import AT_START, Node
from support.prompts import read_whole

SETTINGS = InputSettings(seed=1)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write(*lines: Any) -> str:
        path = tmp_path / "agents.jsonl"
        path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
        return str(path)

    return write


def user(content: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


def line(name: str, *turns: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"session_id": name, "turns": list(turns) or [user(name)], **fields}


def error_of(path: str) -> str:
    with pytest.raises(UserError) as caught:
        read_whole(Dag(path, SETTINGS))
    return str(caught.value)


def test_a_root_is_read_with_all_conversations_that_it_starts(write: Callable[..., str]) -> None:
    path = write(
        line("child", user("c0"), user("c1", forks=["leaf"])),
        line(
            "root",
            user("r0", spawns=["child", {"children": ["other"], "join_at": 2}]),
            user("r1", forks=[{"child": "aside", "background": True}]),
            user("r2"),
            pre_session_spawns=["early"],
        ),
        line("leaf"),
        line("other"),
        line("aside"),
        line("early"),
        line("alone"),
    )
    root, alone = read_whole(Dag(path, SETTINGS))
    assert root.tree is not None
    assert list(root.tree.nodes) == [
        Node("root", 0, 3),
        Node("early", 3, 1, depth=1, after=AT_START),
        Node("child", 4, 2, parent=0, depth=1, after=0, joined_at=1),
        Node("other", 6, 1, parent=0, depth=1, after=0, joined_at=2),
        Node("aside", 7, 1, parent=0, depth=1, forked=True, after=1),
        Node("leaf", 8, 1, parent=2, depth=2, forked=True, replaces=True, after=5),
    ]
    texts = [turn.messages[0]["content"] for turn in root.turns]
    assert texts == ["r0", "r1", "r2", "early", "c0", "c1", "other", "aside", "leaf"]
    assert (alone.id, alone.tree) == ("alone", None)


def test_fields_of_a_turn_are_those_of_its_request(write: Callable[..., str]) -> None:
    tools = [{"type": "function", "function": {"name": "search"}}]
    path = write(line("a", user("x", model="big", max_tokens=9, tools=tools, extra={"temperature": 0}, delay=250)))
    (only,) = read_whole(Dag(path, SETTINGS))
    (turn,) = only.turns
    assert turn.extra == {"temperature": 0, "tools": tools, "model": "big"}
    assert (turn.output_tokens, turn.delay_ms) == (9, 250)


def test_a_template_is_sent_once_for_each_conversation_that_spawns_it(write: Callable[..., str]) -> None:
    path = write(
        line("root", user("r", spawns=["a", "b"])),
        line("a", user("a", spawns=["t"])),
        line("b", user("b", spawns=["t"])),
        line("t"),
    )
    (root,) = read_whole(Dag(path, SETTINGS))
    assert root.tree is not None
    assert [(node.name, node.parent) for node in root.tree.nodes] == [
        ("root", -1),
        ("a", 0),
        ("b", 0),
        ("t", 1),
        ("t", 2),
    ]


def test_children_before_the_first_turn_of_a_child_start_together_with_it(write: Callable[..., str]) -> None:
    path = write(line("root", user("r", spawns=["c"])), line("c", pre_session_spawns=["early"]), line("early"))
    (root,) = read_whole(Dag(path, SETTINGS))
    assert root.tree is not None
    assert root.tree.nodes[2] == Node("early", 2, 1, depth=2, after=0)


SYSTEM = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([line("a", user("x", spawns=["b"]))], "agents.jsonl:1: there is no session 'b'"),
        (
            [line("a", user("x", spawns=["b"])), line("b", user("y", spawns=["a"]))],
            "agents.jsonl:1: the sessions start one another in a circle: a > b > a",
        ),
        (
            [line("a", user("x", forks=["c"])), line("b", user("x", forks=["c"])), line("c")],
            "agents.jsonl:2: 'c' is forked by 'a' already, and a fork has one parent",
        ),
        (
            [line("a", user("x", forks=["b"]), user("y")), line("b")],
            "agents.jsonl:1: turn 1: the fork 'b' ends its parent, so it belongs to the last turn",
        ),
        (
            [line("a", user("x"), SYSTEM)],
            "agents.jsonl:1: turn 2: only the first turn of a conversation may have a system message",
        ),
        (
            [line("a", user("x", forks=["b"])), line("b", SYSTEM)],
            "agents.jsonl:2: a forked conversation has the system message of its parent",
        ),
        (
            [line("a", user("x", spawns=[{"children": ["b"], "join_at": 3}]), user("y")), line("b")],
            "agents.jsonl:1: turn 1: 'join_at' is 3, and should be the index of a later turn: 1 to 1",
        ),
        (
            [line("a", user("x"), pre_session_spawns=["b"]), line("c", user("x", forks=["b"])), line("b")],
            "agents.jsonl:2: 'b' starts before a session, so it cannot be forked, too",
        ),
        ([line("a"), line("a")], "agents.jsonl:2: the session_id 'a' is already that of line 1"),
        ([line("a", user("x", text="y"))], "agents.jsonl:1: Object contains unknown field 'text' - at '$.turns[0]'"),
        ([line("a", {"messages": []})], "agents.jsonl:1: turn 1: 'messages' is empty"),
        ([line("a", {"messages": [{"content": "x"}]})], "agents.jsonl:1: Object missing required field 'role'"),
        (
            [line("a", user("x", delay=-1))],
            "agents.jsonl:1: turn 1: 'delay' should be a number of milliseconds, 0 or more",
        ),
        ([{"session_id": "a", "turns": []}], "agents.jsonl:1: 'turns' is empty"),
        (['{"session_id": "a"'], "agents.jsonl:1: not valid JSON"),
    ],
)
def test_errors_name_file_and_line(lines: list[Any], message: str, write: Callable[..., str]) -> None:
    assert error_of(write(*lines)).startswith(message)


def test_trees_that_grow_without_bounds_are_refused(write: Callable[..., str]) -> None:
    lines = [line(f"n{n}", user("x", spawns=[f"n{n + 1}"] * 10)) for n in range(6)]
    assert "the tree of 'n0' has more than 100,000 conversations" in error_of(write(*lines, line("n6")))


def test_a_schedule_needs_times_that_the_format_does_not_have(write: Callable[..., str]) -> None:
    with pytest.raises(UserError, match="has no recorded times; leave out --fixed-schedule"):
        Dag(write(line("a")), SETTINGS).prepare(ReadOptions(schedule=ScheduleSettings()))


def test_the_format_is_detected_by_its_messages(write: Callable[..., str]) -> None:
    assert detect(write(line("a"))).name == "dag_jsonl"
    assert detect(write({"session_id": "a", "turns": [{"text": "Hello"}]})).name == "multi_turn"


def test_a_long_chain_and_a_wide_tree_are_read(write: Callable[..., str]) -> None:
    chain = [line(f"n{n}", user("x", forks=[f"n{n + 1}"])) for n in range(5000)]
    wide = line("wide", user("x", spawns=[f"w{n}" for n in range(5000)]))
    path = write(*chain, line("n5000"), wide, *[line(f"w{n}") for n in range(5000)])
    found = read_whole(Dag(path, SETTINGS))
    assert [len(each.tree.nodes) for each in found if each.tree is not None] == [5001, 5001]
