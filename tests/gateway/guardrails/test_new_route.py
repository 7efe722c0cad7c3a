"""A new route brings the map of its fields: guardrails need no change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.gateway.dialects.base import Dialect, StreamReader
from penstock.gateway.dialects.field_map import FieldMap
from penstock.gateway.dialects.openai import OpenAIReply
from penstock.gateway.guardrails import LocalPolicy, SearchBudgets
from penstock.gateway.resources.config import GuardrailMode
from support.guardrail_streams import keyword, pii


class Rerank(Dialect):
    name = "rerank"
    path = "/rerank"
    reply = OpenAIReply
    request_fields = FieldMap(skip="model", text="query documents", settings="top_n", ids="trace", free="filter")
    reply_fields = FieldMap(ids="id", nested={"results": FieldMap(settings="index", text="document", tokens="ids")})

    def stream_reader(self) -> StreamReader:
        return StreamReader()


def inspected(body: Any, *, reply: bool = False) -> tuple[Any, str | None]:
    policy = LocalPolicy([keyword("BLOCKME"), pii("bank_card")], GuardrailMode())
    inspect = policy.inspect_reply if reply else policy.inspect_request
    inspection = inspect(Rerank(), json.dumps(body).encode(), SearchBudgets(1.0))
    return json.loads(inspection.body), inspection.blocked_by


CARD = 4111111111111111
MASK = "[BANK_CARD_REDACTED]"


@pytest.mark.parametrize(
    "body",
    [
        {"query": "BLOCKME"},
        {"documents": ["a", "BLOCKME"]},
        {"trace": "a-BLOCKME"},
        {"filter": {"BLOCKME": 1}},
        {"x": ["BLOCKME"]},
    ],
)
def test_fields_of_a_new_route_are_inspected(body: Any) -> None:
    assert inspected(body)[1] == "words"


def test_map_of_a_new_route_decides_what_is_masked() -> None:
    body = {
        "model": "BLOCKME",
        "top_n": CARD,
        "trace": f"t-{CARD}",
        "query": f"pay {CARD}",
        "filter": {"n": CARD},
        "x": CARD,
    }
    masked = {**body, "query": f"pay {MASK}", "filter": {"n": MASK}}
    assert inspected(body) == (masked, None)


def test_reply_of_a_new_route_is_inspected() -> None:
    body = {"id": "r", "results": [{"index": 0, "document": f"pay {CARD}", "ids": [1, 2]}]}
    assert inspected(body, reply=True)[0]["results"] == [{"index": 0, "document": f"pay {MASK}", "ids": []}]
