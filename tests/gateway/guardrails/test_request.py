"""Inspection and masking of requests."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from penstock.gateway.dialects.texts import TextRef, walk
from penstock.gateway.resources.snapshot import GuardrailSpec, Pattern
from penstock.gateway.routes import BY_NAME, Route
from support.guardrail_streams import BodyInspection, guards, keyword, pii

BLOCK = keyword("BLOCKME")


def responses_request(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": list(items), **more}


def user(*parts: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(parts)}


TOOL = {
    "type": "function",
    "name": "f",
    "description": "d",
    "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "say blockme"}}},
}

RESPONSES: dict[str, dict[str, Any]] = {
    "string": {"input": "please blockMe now"},
    "message part": responses_request(user({"type": "input_text", "text": "BLOCKME"})),
    "message string": responses_request({"role": "user", "content": "BLOCKME"}),
    "function_call_output": responses_request({"type": "function_call_output", "call_id": "c", "output": "BLOCKME"}),
    "function_call_output parts": responses_request(
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "BLOCKME"}]}
    ),
    "instructions": {"input": "hi", "instructions": "BLOCKME"},
    "mcp_approval_response": responses_request(
        {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True, "reason": "BLOCKME"}
    ),
    "function_call.arguments": responses_request(
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"q": "BLOCKME"}'}
    ),
    "function_call.name": responses_request(
        {"type": "function_call", "call_id": "c", "name": "blockme", "arguments": "{}"}
    ),
    "arguments as an object": responses_request(
        {"type": "function_call", "call_id": "c", "arguments": {"id": ["BLOCKME"]}}
    ),
    "custom tool input": responses_request(
        {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "BLOCKME"}
    ),
    "reasoning summary": responses_request(
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "BLOCKME"}]}
    ),
    "reasoning content": responses_request(
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "BLOCKME"}]}
    ),
    "prompt variable": {"prompt": {"id": "p", "variables": {"model": "BLOCKME"}}},
    "prompt variable part": {"prompt": {"id": "p", "variables": {"v": {"type": "input_text", "text": "BLOCKME"}}}},
    "prompt variable name": {"prompt": {"id": "p", "variables": {"BLOCKME": "x"}}},
    "tool description": {"input": "hi", "tools": [{**TOOL, "description": "BLOCKME"}]},
    "parameter description": {"input": "hi", "tools": [TOOL]},
    "parameter name": {"input": "hi", "tools": [{**TOOL, "parameters": {"properties": {"blockme": {}}}}]},
    "parameter choices": {
        "input": "hi",
        "tools": [{**TOOL, "parameters": {"properties": {"type": {"enum": ["a", "BLOCKME"]}}}}],
    },
    "metadata value": {"input": "hi", "metadata": {"id": "BLOCKME"}},
    "metadata key": {"input": "hi", "metadata": {"BLOCKME": "1"}},
    "schema of the reply": {"input": "hi", "text": {"format": {"type": "json_schema", "schema": {"title": "BLOCKME"}}}},
    "nested content": responses_request(
        user({"type": "x", "content": [{"type": "y", "content": [{"text": "BLOCKME"}]}]})
    ),
    "content as an object": responses_request({"role": "user", "content": {"whatever": {"deep": "BLOCKME"}}}),
    "unknown item": responses_request({"type": "invented_tomorrow", "words": ["a", "BLOCKME"]}),
    "file name": responses_request(user({"type": "input_file", "filename": "BLOCKME.pdf", "file_data": "data:…"})),
    "user": {"input": "hi", "user": "BLOCKME"},
    "parts without a gap": responses_request(
        user({"type": "input_text", "text": "BLO"}, {"type": "input_text", "text": "CKME"})
    ),
    "parts without a message": {
        "input": [{"type": "input_text", "text": "BLO"}, {"type": "input_text", "text": "CKME"}]
    },
    "parts in an unknown field": {"input": "x", "invented": [{"text": "BLO"}, {"text": "CKME"}]},
    "parts around an image": responses_request(
        user({"type": "input_text", "text": "BLOCK"}, {"type": "input_image"}, {"type": "input_text", "text": "ME"})
    ),
}

CHAT: dict[str, dict[str, Any]] = {
    **{
        role: {"messages": [{"role": role, "content": "BLOCKME"}]}
        for role in ("system", "developer", "user", "assistant", "tool")
    },
    "content part": {"messages": [{"role": "user", "content": [{"type": "text", "text": "BLOCKME"}]}]},
    "tool call": {
        "messages": [
            {"role": "assistant", "tool_calls": [{"id": "t", "function": {"name": "f", "arguments": '"BLOCKME"'}}]}
        ]
    },
    "old function call": {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": "BLOCKME"}}]},
    "refusal": {"messages": [{"role": "assistant", "refusal": "BLOCKME"}]},
    "reasoning": {"messages": [{"role": "assistant", "reasoning_content": "BLOCKME"}]},
    "participant": {"messages": [{"role": "user", "name": "blockme", "content": "hi"}]},
    "tool description": {
        "messages": [],
        "tools": [{"type": "function", "function": {"name": "f", "description": "BLOCKME"}}],
    },
    "old functions": {"messages": [], "functions": [{"name": "f", "description": "BLOCKME"}]},
}

OTHERS: dict[tuple[Route, str], dict[str, Any]] = {
    ("completions", "string"): {"prompt": "x BLOCKME y"},
    ("completions", "list"): {"prompt": ["x", "BLOCKME"]},
    ("completions", "suffix"): {"prompt": "x", "suffix": "BLOCKME"},
    ("embeddings", "string"): {"input": "BLOCKME"},
    ("embeddings", "list"): {"input": ["x", "BLOCKME"]},
}

CASES = [
    *((("responses", body), name) for name, body in RESPONSES.items()),
    *((("chat", body), f"chat {name}") for name, body in CHAT.items()),
    *(((route, body), f"{route} {name}") for (route, name), body in OTHERS.items()),
]


@pytest.mark.parametrize(("route", "body"), [case for case, _ in CASES], ids=[name for _, name in CASES])
def test_every_text_of_a_request_is_inspected(route: Route, body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    inspection = guards(BLOCK).request(route, body)
    assert inspection.blocked_by == "words"
    assert [(hit.guardrail, hit.hook, hit.action, hit.count) for hit in inspection.hits] == [
        ("words", "input", "blocked", 1)
    ]
    assert body == before
    assert not inspection.changed


CLEAN: dict[str, dict[str, Any]] = {
    "no match": responses_request(user({"type": "input_text", "text": "good day"})),
    "the model's name": {"model": "blockme", "input": "hi"},
    "an image": responses_request(user({"type": "input_image", "image_url": "data:image/png;base64,BLOCKME"})),
    "a chat's image": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "BLOCKME"}}]}]
    },
    "sound": {
        "messages": [{"content": [{"type": "input_audio", "input_audio": {"data": "BLOCKME", "format": "wav"}}]}]
    },
    "encrypted reasoning": responses_request({"type": "reasoning", "summary": [], "encrypted_content": "BLOCKME"}),
    "a tool server's credentials": {
        "tools": [{"type": "mcp", "headers": {"Authorization": "BLOCKME"}, "authorization": "BLOCKME"}]
    },
    "token ids": {"prompt": [[1, 2, 3], [4, 5, 6]], "max_tokens": 123456},
    "a match across two messages": responses_request(
        {"role": "user", "content": "BLO"}, {"role": "user", "content": "CKME"}
    ),
    "two prompts": {"prompt": ["BLO", "CKME"]},
}


@pytest.mark.parametrize("body", CLEAN.values(), ids=CLEAN)
def test_clean_request_has_no_hits(body: dict[str, Any]) -> None:
    route = "chat" if "messages" in body else "responses"
    inspection = guards(keyword("BLOCKME", "123456")).request(route, body)
    assert inspection.blocked_by is None
    assert inspection.hits == []


CARD = "4111 1111 1111 1111"
UNKNOWN_VALUES: dict[str, dict[str, Any]] = {
    "a role": {"messages": [{"role": f"user {CARD}", "content": "hi"}]},
    "a role of digits": {"messages": [{"role": "4111-1111-1111-1111", "content": "hi"}]},
    "a role with digits after a word": {"messages": [{"role": "user:4111-1111-1111-1111", "content": "hi"}]},
    "a type": {"messages": [{"role": "user", "content": [{"type": CARD, "text": "hi"}]}]},
    "a format in a schema": {"tools": [{"parameters": {"properties": {"a": {"type": "string", "format": CARD}}}}]},
    "a detail": responses_request(user({"type": "input_image", "detail": CARD})),
}


@pytest.mark.parametrize("body", UNKNOWN_VALUES.values(), ids=UNKNOWN_VALUES)
def test_unknown_protocol_value_is_inspected(body: dict[str, Any]) -> None:
    assert guards(pii("bank_card", action="block")).request("chat", body).blocked_by == "private"
    phrase = json.loads(json.dumps(body).replace(CARD, "the secret phrase"))
    assert (guards(keyword("secret phrase")).request("chat", phrase).blocked_by is None) == (phrase == body)


@pytest.mark.parametrize("value", ["user", "date-time", "web_search_20250305", "image/png", "MAX_TOKENS", "gpt.x:y"])
def test_protocol_values_are_not_inspected(value: str) -> None:
    body = {
        "messages": [{"role": value, "content": [{"type": value, "format": value, "status": value}]}],
        "object": value,
    }
    assert guards(keyword(value, value[:3])).request("chat", body).blocked_by is None


def test_text_nested_deeper_than_the_recursion_limit_is_found() -> None:
    body: dict[str, Any] = {"text": "BLOCKME"}
    for _ in range(20_000):
        body = {"content": [body]}
    assert [
        ref.text
        for ref in walk({"messages": [body]}, BY_NAME["chat"].request_fields, "request").complete
        if isinstance(ref, TextRef)
    ] == ["BLOCKME"]


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("straße", "STRASSE"),
        ("STRASSE", "straße"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("ﬁnal", "FINAL"),
        ("界", "世界"),
        ("a\x01b", "A\x01B"),
    ],
)
def test_literals_ignore_case_in_every_script(literal: str, text: str) -> None:
    assert guards(keyword(literal)).request("responses", {"input": f"x{text}y"}).blocked_by == "words"


@pytest.mark.parametrize(
    ("value", "blocked"), [("Block[a-z]+", False), ("(?i)Block[a-z]+", True), (r"\p{Lu}{5}", True)]
)
def test_regexes_are_case_sensitive_by_default(value: str, blocked: bool) -> None:
    inspection = guards(keyword(regexes=[value])).request("responses", {"input": "BLOCKME"})
    assert (inspection.blocked_by is not None) == blocked


def test_regex_does_not_match_across_texts() -> None:
    harness = guards(keyword(regexes=[r"one\s*two", "^two"]))
    assert harness.request("responses", responses_request({"content": "one"}, {"content": " two"})).blocked_by is None
    assert harness.request("responses", responses_request({"content": "one"}, {"content": "two"})).blocked_by == "words"


def hits(inspection: BodyInspection) -> list[tuple[str, str, int]]:
    return [(hit.guardrail, hit.action, hit.count) for hit in inspection.hits]


def test_first_block_in_file_order_ends_the_inspection() -> None:
    specs = [
        keyword("one", name="monitor", enforcement="monitor"),
        pii("email", name="mask"),
        keyword("nothing", name="silent"),
        keyword("two", name="first"),
        keyword("one", name="second"),
    ]
    body = {"input": "two one one a@b.example"}
    inspection = guards(*specs).request("responses", body)
    assert inspection.blocked_by == "first"
    assert hits(inspection) == [("monitor", "would_block", 2), ("mask", "masked", 1), ("first", "blocked", 1)]
    assert body == {"input": "two one one a@b.example"}


def test_monitor_neither_blocks_nor_masks() -> None:
    specs = [
        keyword("one", enforcement="monitor"),
        pii("email", "us_ssn", enforcement="monitor"),
        pii("jwt", action="block", name="j", enforcement="monitor"),
    ]
    body = {"input": "one a@b.example c@d.example 123-45-6789 eyJhbGciOiJI.eyJzdWIi.x"}
    before = dict(body)
    inspection = guards(*specs).request("responses", body)
    assert inspection.blocked_by is None
    assert not inspection.changed
    assert body == before
    assert hits(inspection) == [("words", "would_block", 1), ("private", "would_mask", 3), ("j", "would_block", 1)]


def test_masks_replace_matches_in_the_body() -> None:
    body = {
        "model": "m",
        "instructions": "Write to a.b@example.com or c@example.org.",
        "input": [
            user({"type": "input_text", "text": "me: a.b@example.com"}),
            {"type": "function_call", "call_id": "x@y.example", "arguments": '{"to":"c@example.org"}'},
        ],
        "metadata": {"c@example.org": "c@example.org", "n": "1"},
    }
    inspection = guards(pii("email")).request("responses", body)
    assert inspection.changed
    assert inspection.blocked_by is None
    assert hits(inspection) == [("private", "masked", 6)]
    assert body == {
        "model": "m",
        "instructions": "Write to [EMAIL_REDACTED] or [EMAIL_REDACTED].",
        "input": [
            user({"type": "input_text", "text": "me: [EMAIL_REDACTED]"}),
            {"type": "function_call", "call_id": "x@y.example", "arguments": '{"to":"[EMAIL_REDACTED]"}'},
        ],
        "metadata": {"[EMAIL_REDACTED]": "[EMAIL_REDACTED]", "n": "1"},
    }


def test_match_across_content_parts_is_masked() -> None:
    body = responses_request(
        user({"type": "input_text", "text": "to joe@exam"}, {"type": "input_text", "text": "ple.com, x@y.example"})
    )
    assert guards(pii("email")).request("responses", body).changed
    assert [part["text"] for part in body["input"][0]["content"]] == ["to [EMAIL_REDACTED]", ", [EMAIL_REDACTED]"]


def test_match_within_a_part_is_masked_even_if_joining_parts_destroys_it() -> None:
    body = responses_request(
        user({"type": "input_text", "text": "13800138000"}, {"type": "input_text", "text": "1 apple"})
    )
    guards(pii("china_mobile")).request("responses", body)
    assert [part["text"] for part in body["input"][0]["content"]] == ["[CHINA_MOBILE_REDACTED]", "1 apple"]


def test_integers_in_text_fields_are_masked() -> None:
    body: dict[str, Any] = {
        "input": [{"content": 4111111111111111}],
        "metadata": {"card": 4111111111111111},
        "seed": 4111111111111111,
    }
    guards(pii("bank_card")).request("responses", body)
    assert body == {
        "input": [{"content": "[BANK_CARD_REDACTED]"}],
        "metadata": {"card": "[BANK_CARD_REDACTED]"},
        "seed": 4111111111111111,
    }


@pytest.mark.parametrize(
    ("pattern", "text", "masked"),
    [
        (
            Pattern(kind="regex", value=r"EMP-\d+", name="employee_id", action="mask"),
            "EMP-12 EMP-3",
            "[EMPLOYEE_ID_REDACTED] [EMPLOYEE_ID_REDACTED]",
        ),
        (Pattern(kind="regex", value=r"EMP-\d+", name="e", replacement="someone", action="mask"), "EMP-12", "someone"),
        (
            Pattern(kind="regex", value=r"password: (\S+)", name="pw", action="mask"),
            "password: hunter2!",
            "password: [PW_REDACTED]",
        ),
        (
            Pattern(kind="regex", value=r"(?:pin|code) (\d+)?", name="pin"),
            "pin 12, code x",
            "pin [PIN_REDACTED], [PIN_REDACTED]x",
        ),
        (Pattern(kind="regex", value="(?i)falcon", name="project"), "project FALCON", "project [PROJECT_REDACTED]"),
        (Pattern(kind="regex", value="x", replacement=""), "axb", "ab"),
    ],
)
def test_custom_pattern_masks_with_its_replacement(pattern: Pattern, text: str, masked: str) -> None:
    body = {"input": text}
    guards(pii(patterns=[pattern])).request("responses", body)
    assert body["input"] == masked


def test_custom_pattern_with_block_action_blocks() -> None:
    spec = pii("email", patterns=[Pattern(kind="regex", value="EMP-[0-9]+", action="block")])
    body = {"input": "a@b.example EMP-1"}
    assert guards(spec).request("responses", body).blocked_by == "private"
    assert body == {"input": "a@b.example EMP-1"}


def test_first_of_overlapping_masks_inserts_its_token() -> None:
    patterns = [
        Pattern(kind="regex", value="b.example/[a-z]+", name="path"),
        Pattern(kind="regex", value="x", name="x"),
    ]
    body = {"input": "x a@b.example/secret x"}
    guards(pii("email", patterns=patterns)).request("responses", body)
    assert body["input"] == "[X_REDACTED] [EMAIL_REDACTED] [X_REDACTED]"


@pytest.mark.slow
def test_timed_out_pattern_blocks_only_if_enforced() -> None:
    text = {"input": "a" * 60 + "b"}
    slow = [r"(a|aa)+$"]
    assert guards(keyword(regexes=slow)).request("responses", dict(text)).blocked_by == "words"
    monitored = guards(keyword(regexes=slow, enforcement="monitor")).request("responses", dict(text))
    assert monitored.blocked_by is None


def test_hook_and_enabled_select_the_inspections() -> None:
    harness = guards(keyword("x", name="i", hook="input"), keyword("x", name="o", hook="output"))
    assert harness.request("responses", {"input": "x"}).blocked_by == "i"
    assert harness.reply("responses", {"output": [{"content": [{"text": "x"}]}]}).blocked_by == "o"
    assert (harness.has_input, harness.has_output) == (True, True)
    for spec, expected in [
        (keyword("x", hook="input"), (True, False)),
        (keyword("x", hook="output"), (False, True)),
        (keyword("x", enabled=False), (False, False)),
    ]:
        harness = guards(spec)
        assert (harness.has_input, harness.has_output) == expected
        assert (harness.stream("chat") is not None) == expected[1]
    assert guards().request("responses", {"input": "x"}).blocked_by is None


def test_matched_text_and_patterns_are_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    spec: GuardrailSpec = keyword("s3cr3t-word", regexes=["s3cr3t-[a-z]+"])
    harness = guards(spec, pii("email"))
    inspection = harness.request("responses", {"input": "s3cr3t-word a@b.example"})
    output = json.dumps([repr(harness), repr(inspection), repr(inspection.hits), str(vars(harness))])
    assert "s3cr3t" not in output
    assert "a@b" not in output
