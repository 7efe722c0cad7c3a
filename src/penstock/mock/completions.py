"""POST /v1/completions."""

from __future__ import annotations

import msgspec

from penstock.mock.chat import StreamOptions
from penstock.mock.dialect import (
    STAMP,
    Ask,
    BadRequest,
    BaseDialect,
    Event,
    Say,
    Span,
    choices,
    count_tokens,
    limit,
    usage_json,
)
from penstock.mock.vocabulary import words

__all__ = ["Completions", "Prompt", "measure"]

encode = msgspec.json.encode

Prompt = str | list[str | int | list[int]]
"""A text, several texts, one row of token ids, or several rows."""


class CompletionsBody(msgspec.Struct):
    model: str | None = None
    prompt: Prompt | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None


decode = msgspec.json.Decoder(CompletionsBody).decode


def measure(prompt: Prompt) -> tuple[int, int]:
    """(how many inputs, their tokens): estimated for text, exact for token ids."""
    if isinstance(prompt, str):
        return 1, count_tokens(prompt)
    rows = 0
    loose = 0
    tokens = 0
    for item in prompt:
        if isinstance(item, str):
            rows += 1
            tokens += count_tokens(item)
        elif isinstance(item, int):
            loose += 1
        else:
            rows += 1
            tokens += len(item)
    return rows + (loose > 0), tokens + loose


class Completions(BaseDialect):
    name = "completions"
    path = "/completions"
    kinds = False
    done: Event | None = Event(b"[DONE]")

    def read(self, body: bytes) -> Ask:
        wanted = decode(body)
        if not wanted.model:
            raise BadRequest("model is required", "model")
        if wanted.prompt is None or wanted.prompt == []:
            raise BadRequest("prompt is required", "prompt")
        inputs, tokens = measure(wanted.prompt)
        options = wanted.stream_options
        return Ask(
            wanted.model,
            tokens,
            stream=bool(wanted.stream),
            limit=limit({"max_tokens": wanted.max_tokens}),
            choices=choices(wanted.n) * inputs,
            include_usage=options is not None and bool(options.include_usage),
        )

    def opening(self, say: Say) -> list[Event]:  # noqa: ARG002 -- this dialect has no such event
        return []

    def piece(self, say: Say, span: Span) -> list[Event]:
        return [chunk(say, choice, text(say, choice, span.start, span.size)) for choice in range(say.ask.choices)]

    def closing(self, say: Say) -> list[Event]:
        if not say.behaviour.finish:
            return []
        return [chunk(say, choice, b'""', encode(say.finish)) for choice in range(say.ask.choices)]

    def accounting(self, say: Say) -> list[Event]:
        if not say.usage:
            return []
        return [Event(opened(say) + b',"choices":[],"usage":' + usage(say) + b"}")]

    def front(self, say: Say) -> bytes:
        finish = encode(say.finish if say.behaviour.finish else None)
        found = [entry(choice, text(say, choice, 0, say.tokens), finish) for choice in range(say.ask.choices)]
        return opened(say) + b',"choices":[' + b",".join(found) + b"]"

    def back(self, say: Say) -> bytes:
        return b',"usage":' + usage(say) + b"}" if say.usage else b"}"


def opened(say: Say) -> bytes:
    return b'{"id":"cmpl-%b,"object":"text_completion","model":%b' % (STAMP, encode(say.ask.model))


def text(say: Say, choice: int, start: int, count: int) -> bytes:
    return encode("".join(words(say.behaviour.seed, say.variant + choice, start, count)))


def entry(choice: int, content: bytes, finish: bytes) -> bytes:
    return b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b}' % (choice, content, finish)


def chunk(say: Say, choice: int, content: bytes, finish: bytes = b"null") -> Event:
    return Event(b'%b,"choices":[%b]}' % (opened(say), entry(choice, content, finish)))


def usage(say: Say) -> bytes:
    return usage_json(say.ask.prompt_tokens, say.completion)
