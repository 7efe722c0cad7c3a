"""POST /v1/completions."""

from __future__ import annotations

import msgspec

from penstock.mock_server.chat import StreamOptions
from penstock.mock_server.dialect import (
    ID_PLACEHOLDER,
    BadRequest,
    Dialect,
    Event,
    ParsedRequest,
    PlannedReply,
    TokenRange,
    check_choices,
    plain_text,
    required,
    token_limit,
    usage_json,
)
from penstock.mock_server.prefix_cache import PromptBlocks
from penstock.mock_server.prompt_tokens import estimate_tokens

encode = msgspec.json.encode

Prompt = str | list[str | int | list[int]]
"""A text, several texts, one list of token ids, or several lists."""


class CompletionsBody(msgspec.Struct):
    model: str | None = None
    prompt: Prompt | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None


decode = msgspec.json.Decoder(CompletionsBody).decode


def measure(prompt: Prompt) -> tuple[int, int]:
    """Return the number of inputs and their tokens: estimated for text, exact for token ids."""
    if isinstance(prompt, str):
        return 1, estimate_tokens(prompt)
    inputs = tokens = token_ids = 0
    for item in prompt:
        if isinstance(item, str):
            inputs += 1
            tokens += estimate_tokens(item)
        elif isinstance(item, int):
            token_ids += 1
        else:
            inputs += 1
            tokens += len(item)
    return inputs + (token_ids > 0), tokens + token_ids


class Completions(Dialect):
    name = "completions"
    path = "/completions"
    done = Event(b"[DONE]")

    def parse(self, body: bytes) -> ParsedRequest:
        fields = decode(body)
        model = required(fields.model, "model")
        if fields.prompt is None or fields.prompt == []:
            raise BadRequest("prompt is required", "prompt")
        inputs, tokens = measure(fields.prompt)
        options = fields.stream_options
        return ParsedRequest(
            model,
            tokens,
            stream=bool(fields.stream),
            token_limit=token_limit({"max_tokens": fields.max_tokens}),
            choices=check_choices(fields.n) * inputs,
            include_usage=options is not None and bool(options.include_usage),
        )

    def prompts(self, body: bytes, block_size: int) -> list[PromptBlocks]:
        fields = decode(body)
        given = [fields.prompt] if isinstance(fields.prompt, str) else fields.prompt or []
        inputs: list[str | list[int]] = [item for item in given if not isinstance(item, int)]
        token_ids = [item for item in given if isinstance(item, int)]
        if token_ids:
            inputs.append(token_ids)
        return [prompt_blocks(block_size, fields.model or "", item) for item in inputs]

    def token_events(self, reply: PlannedReply, tokens: TokenRange) -> list[Event]:
        return [
            chunk(reply, choice, text_json(reply, choice, tokens.start, tokens.size))
            for choice in range(reply.request.choices)
        ]

    def closing_events(self, reply: PlannedReply) -> list[Event]:
        if not reply.behaviour.finish:
            return []
        return [chunk(reply, choice, b'""', encode(reply.finish_reason)) for choice in range(reply.request.choices)]

    def usage_events(self, reply: PlannedReply) -> list[Event]:
        if not reply.sends_usage:
            return []
        return [Event(first_fields(reply) + b',"choices":[],"usage":' + self.usage(reply) + b"}")]

    def body_prefix(self, reply: PlannedReply) -> bytes:
        finish_reason = encode(reply.finish_reason if reply.behaviour.finish else None)
        choices = [
            choice_json(choice, text_json(reply, choice, 0, reply.tokens), finish_reason)
            for choice in range(reply.request.choices)
        ]
        return first_fields(reply) + b',"choices":[' + b",".join(choices) + b"]"

    def usage(self, reply: PlannedReply) -> bytes:
        return usage_json(reply.request.prompt_tokens, reply.completion_tokens, cached=reply.cached_tokens)


def prompt_blocks(block_size: int, model: str, prompt: str | list[int]) -> PromptBlocks:
    blocks = PromptBlocks(block_size, model)
    if isinstance(prompt, str):
        blocks.add_text(None, prompt)
    else:
        blocks.add_token_ids(prompt)
    return blocks


def first_fields(reply: PlannedReply) -> bytes:
    """Return the beginning of a JSON object: id, created, object and model."""
    return b'{"id":"cmpl-%b,"object":"text_completion","model":%b' % (ID_PLACEHOLDER, encode(reply.request.model))


def text_json(reply: PlannedReply, choice: int, start: int, count: int) -> bytes:
    return encode(plain_text(reply, start, count, choice))


def choice_json(choice: int, text: bytes, finish_reason: bytes) -> bytes:
    return b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b}' % (choice, text, finish_reason)


def chunk(reply: PlannedReply, choice: int, text: bytes, finish_reason: bytes = b"null") -> Event:
    return Event(b'%b,"choices":[%b]}' % (first_fields(reply), choice_json(choice, text, finish_reason)))
