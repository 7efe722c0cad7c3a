"""Conversations with a connection of their own, and the header that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.worker_harness import (
    Connection,
    Harness,
    Outcome,
    Request,
    always,
    chat_reply,
    http_reply,
    make_phase,
)

CONVERSATIONS = [[{"id": number, "turn": turn} for turn in range(3)] for number in range(4)]


def run(harness: Harness, conversations: list[Any] | None = None, slots: int = 2, **settings: Any) -> Outcome:
    settings = {"connections": "sticky-user-sessions"} | settings
    return harness.run_phases(conversations or CONVERSATIONS, [make_phase(slots=slots)], **settings)


def connections(outcome: Outcome) -> dict[int, list[int]]:
    """Return the connections of each conversation, in the order of its turns."""
    found: dict[int, list[int]] = {}
    for request in outcome.requests:
        found.setdefault(request.body["id"], []).append(request.connection)
    return found


def test_every_conversation_has_one_connection_that_no_other_uses(tmp_path: Path) -> None:
    outcome = run(Harness(tmp_path, always(chat_reply())))
    by_conversation = connections(outcome)
    assert all(len(set(used)) == 1 for used in by_conversation.values())
    assert len({used[0] for used in by_conversation.values()}) == 4
    assert [record.reused for record in outcome.records if record.turn == 0] == [False] * 4
    assert all(record.reused for record in outcome.records if record.turn > 0)


def test_connection_is_replaced_after_an_error_or_a_close(tmp_path: Path) -> None:
    async def answer(request: Request, connection: Connection) -> None:
        if request.body == {"id": 0, "turn": 0}:
            await connection.send(http_reply(b"no", status="500 X"))
        elif request.body == {"id": 1, "turn": 0}:
            # The header makes the close known before the next turn is sent.
            await connection.send(chat_reply().replace(b" 200 OK\r\n", b" 200 OK\r\nConnection: close\r\n"))
            connection.close()
        else:
            await connection.send(chat_reply())

    outcome = run(Harness(tmp_path, answer), CONVERSATIONS[:2], slots=1)
    for first, second, third in connections(outcome).values():
        assert first != second == third
    assert [record.failure is None for record in outcome.records] == [False, *[True] * 5]


def test_redirected_request_stays_on_its_connection(tmp_path: Path) -> None:
    async def answer(request: Request, connection: Connection) -> None:
        moved = b"HTTP/1.1 307 Moved\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n"
        await connection.send(chat_reply() if request.path == "/there" else moved)

    outcome = run(Harness(tmp_path, answer), CONVERSATIONS[:1])
    assert len(outcome.requests) == 6
    assert len(set(connections(outcome)[0])) == 1


@pytest.mark.parametrize(
    ("name", "absent"), [("X-Chat-ID", "x-correlation-id"), ("x-session-affinity", "x-correlation-id")]
)
def test_session_header_carries_the_id_of_the_conversation(tmp_path: Path, name: str, absent: str) -> None:
    outcome = run(Harness(tmp_path, always(chat_reply())), session_header=name)
    ids: dict[int, set[str]] = {}
    for request in outcome.requests:
        ids.setdefault(request.body["id"], set()).add(request.headers[name.lower()])
        assert absent not in request.headers
        assert request.headers["x-session-affinity"] == request.headers[name.lower()]
    assert [len(found) for found in ids.values()] == [1] * 4
    assert set.union(*ids.values()) == {record.correlation_id for record in outcome.records}
