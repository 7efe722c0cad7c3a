"""POST /v1/messages, Anthropic's API."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.mock_server.dialect import (
    ID_PLACEHOLDER,
    BadRequest,
    Dialect,
    Event,
    ParsedRequest,
    PlannedReply,
    TokenRange,
    plain_text,
    required,
    token_limit,
)
from penstock.mock_server.prompt_tokens import estimate_tokens

encode = msgspec.json.encode


class Block(msgspec.Struct):
    type: str | None = None
    text: str | None = None


Content = str | list[Block]


class Message(msgspec.Struct):
    content: Content | None = None


class MessagesBody(msgspec.Struct):
    model: str | None = None
    messages: list[Message] | None = None
    system: Content | None = None
    stream: bool | None = None
    max_tokens: int | None = None


class Messages(Dialect):
    name = "messages"
    path = "/messages"
    done = Event(b'{"type":"message_stop"}', b"message_stop")
    body = MessagesBody

    def read(self, fields: MessagesBody, model: str) -> ParsedRequest:
        messages = required(fields.messages, "messages", "one message")
        if fields.max_tokens is None:
            raise BadRequest("max_tokens is required", "max_tokens")
        tokens = sum(count(content) for content in [fields.system, *(message.content for message in messages)])
        limit = token_limit({"max_tokens": fields.max_tokens})
        return ParsedRequest(model, tokens, token_limit=limit, include_usage=True, cached_fields=(tokens,))

    def opening_events(self, reply: PlannedReply) -> list[Event]:
        usage = {"input_tokens": reply.request.prompt_tokens, "output_tokens": 1}
        message = first_fields(reply) + b',"content":[],"stop_reason":null,"stop_sequence":null,"usage":%b}' % encode(
            usage
        )
        return [
            Event(b'{"type":"message_start","message":%b}' % message, b"message_start"),
            event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            event("ping"),
        ]

    def token_events(self, reply: PlannedReply, tokens: TokenRange) -> list[Event]:
        delta = {"type": "text_delta", "text": plain_text(reply, tokens.start, tokens.size)}
        return [event("content_block_delta", index=0, delta=delta)]

    def closing_events(self, reply: PlannedReply) -> list[Event]:
        return [event("content_block_stop", index=0)]

    def usage_events(self, reply: PlannedReply) -> list[Event]:
        usage = {"usage": {"output_tokens": reply.completion_tokens}} if reply.sends_usage else {}
        return [event("message_delta", delta={"stop_reason": stop_reason(reply), "stop_sequence": None}, **usage)]

    def body_prefix(self, reply: PlannedReply) -> bytes:
        content = encode([{"type": "text", "text": plain_text(reply, 0, reply.tokens)}])
        return first_fields(reply) + b',"content":%b,"stop_reason":%b,"stop_sequence":null' % (
            content,
            encode(stop_reason(reply)),
        )

    def usage(self, reply: PlannedReply) -> bytes:
        return encode({"input_tokens": reply.request.prompt_tokens, "output_tokens": reply.completion_tokens})

    def reply_id(self, reply: PlannedReply, number: int, second: int) -> bytes:
        """Return an id that fills the whole placeholder: a message has no time."""
        return b"%0*x" % (len(ID_PLACEHOLDER), number)

    def error_event(self, reply: PlannedReply, sent: int) -> Event:
        return event("error", error={"type": "api_error", "message": "the mock was told to fail here"})


def count(content: Content | None) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return estimate_tokens(content)
    return sum(estimate_tokens(block.text or "") for block in content)


def event(kind: str, **members: Any) -> Event:
    return Event(encode({"type": kind, **members}), kind.encode())


def first_fields(reply: PlannedReply) -> bytes:
    """Return the beginning of a message: id, type, role and model."""
    return b'{"id":"msg_%b","type":"message","role":"assistant","model":%b' % (
        ID_PLACEHOLDER,
        encode(reply.request.model),
    )


def stop_reason(reply: PlannedReply) -> str | None:
    if not reply.behaviour.finish:
        return None
    return "max_tokens" if reply.finish_reason == "length" else "end_turn"
