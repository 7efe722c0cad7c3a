"""POST /v1/responses: items and events as in the OpenAI package, and replies that a later request can refer to.

A reply holds an optional reasoning item, as a summary or as text (option `thoughts`), and then one item: a message with
text or a refusal, or a function call. The sequence number of an event follows from the number of tokens before it, so the
events of tokens can be cached as in the other dialects.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from penstock.mock_server.chat import TOOL_NAME, text_of
from penstock.mock_server.dialect import (
    ID_PLACEHOLDER,
    BadRequest,
    Dialect,
    Event,
    ParsedRequest,
    PlannedReply,
    TokenRange,
    token_limit,
)
from penstock.mock_server.media import InputAudio, audio_tokens, image_tokens
from penstock.mock_server.prefix_cache import PromptBlocks
from penstock.mock_server.prompt_tokens import estimate_tokens

STORED_REPLIES = 10_000
"""Replies that `previous_response_id` can refer to; the oldest are dropped first."""
OPENING_EVENTS = 2
"""Number of events before the first item."""
ID_TEXT = "\x7fid\x7f"
"""Placeholder for the reply's id in text that is not yet encoded."""
ROLES = ("user", "assistant", "system", "developer")
TEXT_TYPES = ("input_text", "output_text", "refusal", "summary_text", "reasoning_text")
encode = msgspec.json.encode


class Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    input_audio: InputAudio | None = None


class Item(msgspec.Struct):
    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class ResponsesBody(msgspec.Struct):
    """The fields that decide the reply; the decoder skips the others without building them."""

    model: str | None = None
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None


class EchoedFields(NamedTuple):
    """The fields of the request that appear only in uncached bytes of the reply, or not at all."""

    previous_response_id: str | None
    previous_tokens: int
    """Tokens of the stored conversation."""
    store: bool


class StoredReply(NamedTuple):
    """A reply that a later request can refer to, with the conversation before it."""

    tokens: int
    prompt: PromptBlocks | None
    """The conversation and the reply, if the server has a prefix cache."""


class Responses(Dialect):
    name = "responses"
    path = "/responses"
    has_output_kinds = True
    body = ResponsesBody

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredReply] = OrderedDict()
        """The replies by their ids."""

    def read(self, fields: ResponsesBody, model: str) -> ParsedRequest:
        if not fields.input:
            raise BadRequest("input is required and must hold at least one item", "input")
        counts = InputCounts()
        counts.add_text(fields.instructions)
        counts.add_input(fields.input)
        previous = fields.previous_response_id
        previous_tokens = 0
        if previous is not None:
            if previous not in self._stored:
                raise BadRequest(f"Previous response with id '{previous}' not found.", "previous_response_id")
            previous_tokens = self._stored[previous].tokens
        return ParsedRequest(
            model,
            previous_tokens + counts.tokens,
            token_limit=token_limit({"max_output_tokens": fields.max_output_tokens}),
            include_usage=True,
            cached_fields=(int(time.time()), fields.instructions),
            uncached_fields=EchoedFields(previous, previous_tokens, fields.store is not False),
            images=counts.images,
            audios=counts.audios,
        )

    def prompts(self, body: bytes, block_size: int) -> list[PromptBlocks]:
        fields: ResponsesBody = self.decode(body)
        stored = self._stored.get(fields.previous_response_id or "")
        if stored is not None and stored.prompt is not None:
            prompt = stored.prompt.copy()
        else:
            prompt = PromptBlocks(block_size, fields.model or "")
        prompt.add_text("system", fields.instructions)
        InputBlocks(prompt).add_input(fields.input or [])
        return [prompt]

    def reply_id(self, reply: PlannedReply, number: int, second: int) -> bytes:
        # Chunk sizes are already rendered, so the id must be as long as the placeholder.
        reply_id = b"%0*x" % (len(ID_PLACEHOLDER), number)
        if reply.request.uncached_fields.store:
            tokens = reply.request.prompt_tokens + reply.completion_tokens
            self._stored["resp_" + reply_id.decode()] = StoredReply(tokens, prompt_and_reply(reply, reply_id))
            if len(self._stored) > STORED_REPLIES:
                self._stored.popitem(last=False)
        return reply_id

    def opening_events(self, reply: PlannedReply) -> list[Event]:
        if reply.behaviour.role == "off":
            return []
        response = {**response_object(reply, "in_progress"), "output": [], "usage": None}
        return [
            event(name, number, response=response)
            for number, name in enumerate(("response.created", "response.in_progress"))
        ]

    def token_events(self, reply: PlannedReply, tokens: TokenRange) -> list[Event]:
        item = OutputItemEvents(reply, tokens.kind)
        events = item.opening_events() if tokens.start == 0 else []
        events.append(item.delta_event(tokens))
        return events + item.closing_events(tokens.start + tokens.size) if tokens.last else events

    def usage_events(self, reply: PlannedReply) -> list[Event]:
        if not reply.behaviour.finish:
            return []
        status, reason = final_status(reply)
        response = {
            **response_object(reply, status, reason),
            "output": msgspec.Raw(output_json(reply, reply.tokens)),
            "previous_response_id": reply.request.uncached_fields.previous_response_id,
            "usage": usage(reply, reply.completion_tokens),
        }
        return [event(f"response.{status}", sequence_number(reply, reply.tokens), response=response)]

    def body_prefix(self, reply: PlannedReply) -> bytes:
        status, reason = final_status(reply)
        output = msgspec.Raw(output_json(reply, reply.tokens))
        return encode_with_id({**response_object(reply, status, reason), "output": output})[:-1]

    def body_suffix(self, reply: PlannedReply) -> bytes:
        fields = {
            "previous_response_id": reply.request.uncached_fields.previous_response_id,
            "usage": usage(reply, reply.completion_tokens),
        }
        return b"," + encode(fields)[1:]

    def error_event(self, reply: PlannedReply, sent: int) -> Event:
        fields = {"code": "server_error", "message": "the mock was told to fail here", "param": None}
        return event("error", sequence_number(reply, sent), **fields)

    def failed_event(self, reply: PlannedReply, sent: int) -> Event:
        response = msgspec.Raw(self.failed_body(reply, sent))
        return event("response.failed", sequence_number(reply, sent), response=response)

    def failed_body(self, reply: PlannedReply, sent: int) -> bytes:
        error = {"code": "server_error", "message": "the mock was told to fail"}
        response = response_object(reply, "failed") | {"error": error, "usage": usage(reply, sent)}
        return encode_with_id({**response, "output": msgspec.Raw(output_json(reply, sent))})


def prompt_and_reply(reply: PlannedReply, reply_id: bytes) -> PromptBlocks | None:
    """Return the prompt of a conversation that continues after the reply."""
    if not reply.prompts:
        return None
    prompt = reply.prompts[0].copy()
    prompt.add_opaque(reply_id, reply.completion_tokens)
    return prompt


class InputCounts:
    """Counts of tokens, images and audio clips in a request's input."""

    def __init__(self) -> None:
        self.tokens = self.images = self.audios = 0

    def add_text(self, text: str | None, role: str | None = None) -> None:
        if text:
            self.tokens += estimate_tokens(text)

    def add_media(self, content: str | None, tokens: int) -> None:
        self.tokens += tokens

    def add_input(self, items: str | list[Item]) -> None:
        if isinstance(items, str):
            self.add_text(items)
            return
        for index, item in enumerate(items):
            if item.type == "message" and item.role not in ROLES:
                raise BadRequest(f"role must be one of {', '.join(ROLES)}, not {item.role!r}", f"input[{index}].role")
            if item.type == "message" and not item.content:
                raise BadRequest("a message needs content", f"input[{index}].content")
            role = item.role or item.type
            self.add_text(item.arguments, role)
            for content in (item.content, item.output):
                if isinstance(content, list):
                    for part in content:
                        self.add_part(part, role, f"input[{index}].content")
                else:
                    self.add_text(content, role)

    def add_part(self, part: Part, role: str, param: str) -> None:
        if part.type == "input_image":
            self.add_media(part.image_url, image_tokens(part.image_url, param))
            self.images += 1
        elif part.type == "input_audio":
            tokens = audio_tokens(part.input_audio, param)
            self.add_media(None if part.input_audio is None else part.input_audio.data, tokens)
            self.audios += 1
        elif part.type in TEXT_TYPES:
            self.add_text(part.text or part.refusal, role)
        else:
            raise BadRequest(f"there is no content of the type {part.type!r}", param)


class InputBlocks(InputCounts):
    """Adds a request's input to a prompt."""

    def __init__(self, prompt: PromptBlocks) -> None:
        super().__init__()
        self._prompt = prompt

    def add_text(self, text: str | None, role: str | None = None) -> None:
        self._prompt.add_text(role, text)

    def add_media(self, content: str | None, tokens: int) -> None:
        self._prompt.add_opaque(content, tokens)


class OutputItemEvents:
    """The events of one output item."""

    def __init__(self, reply: PlannedReply, kind: str) -> None:
        self.reply = reply
        self.kind = kind
        self.chunk_tokens = reply.behaviour.chunk
        follows_reasoning = bool(reply.reasoning) and kind != "reasoning"
        self.output_index = 1 if follows_reasoning else 0
        self.text_type: str = reply.behaviour.thoughts if kind == "reasoning" else kind
        """summary, text, content, refusal or tools."""
        self.first_number = sequence_number(reply, reply.reasoning if follows_reasoning else 0)
        item_id = {"reasoning": "rs_", "tools": "fc_"}.get(kind, "msg_") + ID_TEXT
        self.position: dict[str, Any] = {"item_id": item_id, "output_index": self.output_index}
        if self.text_type == "summary":
            self.position["summary_index"] = 0
        elif kind != "tools":
            self.position["content_index"] = 0
        self.first_delta = self.first_number + (1 if kind == "tools" else 2)
        self.part_event = "reasoning_summary_part" if self.text_type == "summary" else "content_part"

    def opening_events(self) -> list[Event]:
        item = msgspec.Raw(item_json(self.reply, self.kind, None))
        events = [event("response.output_item.added", self.first_number, output_index=self.output_index, item=item)]
        if self.kind != "tools":
            part = content_part(self.text_type, "")
            events.append(event(f"response.{self.part_event}.added", self.first_number + 1, **self.position, part=part))
        return events

    def delta_event(self, tokens: TokenRange) -> Event:
        number = self.first_delta + tokens.start // self.chunk_tokens
        extra: dict[str, Any] = {"logprobs": []} if self.text_type == "content" else {}
        delta = text_of(self.reply, 0, tokens, opening=0)
        return event(TEXT_EVENTS[self.text_type] + ".delta", number, **self.position, delta=delta, **extra)

    def closing_events(self, tokens: int) -> list[Event]:
        number = self.first_delta + ceil_div(tokens, self.chunk_tokens)
        text = text_of(self.reply, 0, TokenRange(self.kind, 0, tokens, True), opening=0)
        fields: dict[str, Any] = {TEXT_FIELDS[self.text_type]: text}
        if self.kind == "tools":
            fields["name"] = TOOL_NAME
        elif self.text_type == "content":
            fields["logprobs"] = []
        events = [event(TEXT_EVENTS[self.text_type] + ".done", number, **self.position, **fields)]
        if self.kind != "tools":
            part = content_part(self.text_type, text)
            events.append(event(f"response.{self.part_event}.done", number + 1, **self.position, part=part))
        item = msgspec.Raw(item_json(self.reply, self.kind, tokens))
        number += len(events)
        events.append(event("response.output_item.done", number, output_index=self.output_index, item=item))
        return events


TEXT_EVENTS = {
    "summary": "response.reasoning_summary_text",
    "text": "response.reasoning_text",
    "content": "response.output_text",
    "refusal": "response.refusal",
    "tools": "response.function_call_arguments",
}
PART_TYPES = {"summary": "summary_text", "text": "reasoning_text", "refusal": "refusal"}
TEXT_FIELDS = {"summary": "text", "text": "text", "content": "text", "refusal": "refusal", "tools": "arguments"}


def ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def encode_with_id(value: object) -> bytes:
    return encode(value).replace(ID_TEXT.encode(), ID_PLACEHOLDER)


def event(name: str, number: int, /, **fields: Any) -> Event:
    return Event(encode_with_id({"type": name, "sequence_number": number, **fields}), name.encode())


def sequence_number(reply: PlannedReply, tokens: int) -> int:
    """Return the number of an event that follows the first `tokens` tokens."""
    chunk_tokens = reply.behaviour.chunk
    reasoning = min(reply.reasoning, tokens)
    number = OPENING_EVENTS
    if reasoning:
        number += 2 + ceil_div(reasoning, chunk_tokens) + (3 if reasoning == reply.reasoning else 0)
    answer = tokens - reasoning
    if answer:
        is_call = reply.kind == "tools"
        number += (1 if is_call else 2) + ceil_div(answer, chunk_tokens)
        if tokens == reply.tokens:
            number += 2 if is_call else 3
    return number


def final_status(reply: PlannedReply) -> tuple[str, str | None]:
    """Return the status of the finished reply and why it is incomplete."""
    reason = reply.behaviour.incomplete
    if reason is None or (reason == "max_output_tokens" and reply.request.token_limit is None):
        return "completed", None
    return "incomplete", reason


def content_part(text_type: str, text: str) -> dict[str, Any]:
    if text_type == "content":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": PART_TYPES[text_type], TEXT_FIELDS[text_type]: text}


def item_json(reply: PlannedReply, kind: str, tokens: int | None) -> bytes:
    """Render an output item with the text of its first `tokens` tokens; None means that the item is in progress."""
    text = "" if tokens is None else text_of(reply, 0, TokenRange(kind, 0, tokens, True), opening=0)
    return _item_json(kind, reply.behaviour.thoughts, text, tokens is None)


@lru_cache(maxsize=512)
def _item_json(kind: str, thoughts: str, text: str, in_progress: bool) -> bytes:
    status = "in_progress" if in_progress else "completed"
    if kind == "tools":
        call = {"id": "fc_" + ID_TEXT, "type": "function_call", "status": status, "call_id": "call_" + ID_TEXT}
        return encode({**call, "name": TOOL_NAME, "arguments": text})
    if kind == "reasoning":
        summary = [content_part("summary", text)] if thoughts == "summary" and not in_progress else []
        item: dict[str, Any] = {"id": "rs_" + ID_TEXT, "type": "reasoning", "summary": summary}
        if thoughts == "text":
            item["content"] = [] if in_progress else [content_part("text", text)]
        return encode(item)
    message = {"id": "msg_" + ID_TEXT, "type": "message", "role": "assistant", "status": status}
    return encode({**message, "content": [] if in_progress else [content_part(kind, text)]})


def output_json(reply: PlannedReply, tokens: int) -> bytes:
    """Render the output items that hold the first `tokens` tokens."""
    reasoning = min(reply.reasoning, tokens)
    items = [item_json(reply, "reasoning", reasoning)] if reasoning else []
    if tokens > reasoning:
        items.append(item_json(reply, reply.kind, tokens - reasoning))
    return b"[" + b",".join(items) + b"]"


def response_object(reply: PlannedReply, status: str, reason: str | None = None) -> dict[str, Any]:
    """Return a response object without output, usage and previous_response_id."""
    request = reply.request
    created, instructions = request.cached_fields
    return {
        "id": "resp_" + ID_TEXT,
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None,
        "incomplete_details": None if reason is None else {"reason": reason},
        "instructions": instructions,
        "max_output_tokens": request.token_limit,
        "metadata": {},
        "model": request.model,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }


def usage(reply: PlannedReply, completion_tokens: int) -> dict[str, Any] | None:
    if not reply.sends_usage:
        return None
    prompt_tokens = reply.request.prompt_tokens
    # Without a simulated cache, the stored conversation counts as cached.
    cached_tokens = (
        reply.request.uncached_fields.previous_tokens if reply.cached_tokens is None else reply.cached_tokens
    )
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
        "output_tokens": completion_tokens,
        "output_tokens_details": {"reasoning_tokens": min(reply.reasoning, completion_tokens)},
        "total_tokens": prompt_tokens + completion_tokens,
    }
