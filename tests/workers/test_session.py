"""The bodies of a conversation's turns."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import endpoint_named as endpoint
from penstock.records.payloads import BodyParts, PayloadStore, PayloadWriter
from penstock.settings.schema import EndpointSettings
from penstock.workers.session import BodyBuilder, Session

SETTINGS = EndpointSettings()


def make_builder(folder: Path, *turns: bytes | BodyParts, **options: int) -> BodyBuilder:
    writer = PayloadWriter(str(folder))
    for turn in turns:
        if isinstance(turn, BodyParts):
            writer.add_parts(turn)
        else:
            writer.add_body(turn, delay_ms=5.0)
    writer.end_conversation(None)
    writer.close()
    return BodyBuilder(
        str(folder), PayloadStore(str(folder), ()), endpoint("chat", SETTINGS), SETTINGS, worker=0, **options
    )


def make_session(turns: int) -> Session:
    return Session(0, 0, range(turns), 0)


def test_stored_body_is_returned_unchanged(tmp_path: Path) -> None:
    builder = make_builder(tmp_path, b"first", b"second")
    session = make_session(2)
    assert builder.next(session).body == b"first"
    assert session.has_next
    assert not builder.waits_for_reply(session)
    session.turn = 1
    outgoing = builder.next(session)
    assert (outgoing.body, outgoing.payload, outgoing.built) == (b"second", 1, None)
    assert not session.has_next


def test_small_bodies_are_cached_up_to_the_limit(tmp_path: Path) -> None:
    builder = make_builder(tmp_path, b"a" * 400, b"b" * 400, cache_bytes=1000)
    first, second = make_session(2), make_session(2)
    second.turn = 1
    assert builder.next(first) is builder.next(first)
    assert builder.next(second) is not builder.next(second)


def test_built_body_contains_the_earlier_turns_and_replies(tmp_path: Path) -> None:
    turns = [BodyParts(Turn(texts=(text,)), "m", system="Be brief.") for text in ("one", "two")]
    builder = make_builder(tmp_path, *turns)
    session = make_session(2)
    assert builder.waits_for_reply(session)
    assert builder.next(session).built == 0
    reply = endpoint("chat", SETTINGS).read_body(b'{"choices": [{"message": {"content": "Yes"}}]}')
    builder.remember(session, reply)
    session.turn = 1
    outgoing = builder.next(session)
    builder.close()
    messages = json.loads(outgoing.body)["messages"]
    assert [(m["role"], m["content"]) for m in messages] == [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", "Yes"),
        ("user", "two"),
    ]
    assert outgoing.built == 1
    assert (tmp_path / "payloads-0.bin").read_bytes().endswith(outgoing.body)
