"""Messages of the chat API as input items of the Responses API and as messages of Anthropic's API."""

from __future__ import annotations

from typing import Any

from openai.types.responses import ResponseInputParam
from pydantic import TypeAdapter

from penstock.endpoints.chat_messages import anthropic_messages, input_items, system_text

PIXEL = "data:image/png;base64,AAAA"
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "read", "arguments": "{}"}},
]
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}],
    },
    {"role": "assistant", "content": "Let me see.", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "call_1", "content": "found"},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "read"}]},
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": "Thanks."},
]


def test_input_items_are_those_of_the_responses_api() -> None:
    items = input_items(CHAT)
    assert items == [
        {"type": "message", "role": "developer", "content": "Be brief."},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PIXEL}],
        },
        {"type": "message", "role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "call_1", "name": "search", "arguments": '{"q": "x"}'},
        {"type": "function_call", "call_id": "call_2", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "found"},
        {"type": "function_call_output", "call_id": "call_2", "output": "read"},
        {"type": "message", "role": "assistant", "content": "A cat."},
        {"type": "message", "role": "user", "content": "Thanks."},
    ]
    plain = [item for item in items if not isinstance(item.get("content"), list)]
    TypeAdapter(ResponseInputParam).validate_python(plain)


def test_anthropic_messages_have_blocks_for_calls_and_results() -> None:
    assert system_text(CHAT) == "Be brief."
    messages = anthropic_messages(CHAT)
    assert messages == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "call_1", "name": "search", "input": {"q": "x"}},
                {"type": "tool_use", "id": "call_2", "name": "read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "found"},
                {"type": "tool_result", "tool_use_id": "call_2", "content": "read"},
            ],
        },
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Thanks."},
    ]


def test_messages_without_a_system_prompt_have_none() -> None:
    assert system_text([{"role": "user", "content": "x"}]) is None
