"""POST /v1/completions."""

from __future__ import annotations

import msgspec

from penstock.mock_server.chat import Choices, StreamOptions
from penstock.mock_server.dialect import (
    BadRequest,
    ParsedRequest,
    PlannedReply,
    TokenRange,
    check_choices,
    plain_text,
    token_limit,
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


class Completions(Choices):
    name = "completions"
    path = "/completions"
    body = CompletionsBody
    id_prefix, object_type, chunk_type = b"cmpl", b"text_completion", b"text_completion"
    last_content = b'"text":""'

    def read(self, fields: CompletionsBody, model: str) -> ParsedRequest:
        if fields.prompt is None or fields.prompt == []:
            raise BadRequest("prompt is required", "prompt")
        inputs, tokens = measure(fields.prompt)
        options = fields.stream_options or StreamOptions()
        return ParsedRequest(
            model,
            tokens,
            token_limit=token_limit({"max_tokens": fields.max_tokens}),
            choices=check_choices(fields.n) * inputs,
            include_usage=bool(options.include_usage),
        )

    def prompts(self, body: bytes, block_size: int) -> list[PromptBlocks]:
        fields: CompletionsBody = self.decode(body)
        given = [fields.prompt] if isinstance(fields.prompt, str) else fields.prompt or []
        inputs: list[str | list[int]] = [item for item in given if not isinstance(item, int)]
        token_ids = [item for item in given if isinstance(item, int)]
        if token_ids:
            inputs.append(token_ids)
        return [prompt_blocks(block_size, fields.model or "", item) for item in inputs]

    def content(self, reply: PlannedReply, choice: int, tokens: TokenRange) -> bytes:
        return b'"text":' + encode(plain_text(reply, tokens.start, tokens.size, choice))

    def whole_content(self, reply: PlannedReply, choice: int) -> bytes:
        return b'"text":' + encode(plain_text(reply, 0, reply.tokens, choice))


def prompt_blocks(block_size: int, model: str, prompt: str | list[int]) -> PromptBlocks:
    blocks = PromptBlocks(block_size, model)
    if isinstance(prompt, str):
        blocks.add_text(None, prompt)
    else:
        blocks.add_token_ids(prompt)
    return blocks
