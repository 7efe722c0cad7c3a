"""POST /v1/chat/completions."""

from __future__ import annotations

import msgspec

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
from penstock.mock.media import InputAudio, audio_tokens, image_tokens
from penstock.mock.vocabulary import words

__all__ = ["Chat"]

TOOL = "look_up"
encode = msgspec.json.encode


class ImageURL(msgspec.Struct):
    url: str


class Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    image_url: ImageURL | None = None
    input_audio: InputAudio | None = None


class Message(msgspec.Struct):
    content: str | list[Part] | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatBody(msgspec.Struct):
    """The fields that decide the reply; the decoder skips the others without building them."""

    model: str | None = None
    messages: list[Message] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    n: int | None = None


decode = msgspec.json.Decoder(ChatBody).decode


class Chat(BaseDialect):
    name = "chat"
    path = "/chat/completions"
    kinds = True
    done: Event | None = Event(b"[DONE]")

    def read(self, body: bytes) -> Ask:
        wanted = decode(body)
        if not wanted.model:
            raise BadRequest("model is required", "model")
        if not wanted.messages:
            raise BadRequest("messages is required and must hold at least one message", "messages")
        text = media = images = audios = 0
        for at, message in enumerate(wanted.messages):
            content = message.content
            if isinstance(content, str):
                text += count_tokens(content)
            elif content is not None:
                for part in content:
                    text += count_tokens(part.text or "")
                    if part.type == "image_url":
                        url = None if part.image_url is None else part.image_url.url
                        media += image_tokens(url, f"messages[{at}].content")
                        images += 1
                    elif part.type == "input_audio":
                        media += audio_tokens(part.input_audio, f"messages[{at}].content")
                        audios += 1
        options = wanted.stream_options
        ask = Ask(
            wanted.model,
            text + media,
            stream=bool(wanted.stream),
            limit=limit({"max_completion_tokens": wanted.max_completion_tokens, "max_tokens": wanted.max_tokens}),
            choices=choices(wanted.n),
            include_usage=options is not None and bool(options.include_usage),
        )
        ask.images, ask.audios = images, audios
        return ask

    def opening(self, say: Say) -> list[Event]:
        if say.behaviour.role == "off":
            return []
        return [chunk(say, choice, b'{"role":"assistant","content":""}') for choice in range(say.ask.choices)]

    def piece(self, say: Say, span: Span) -> list[Event]:
        return [chunk(say, choice, delta(say, choice, span)) for choice in range(say.ask.choices)]

    def closing(self, say: Say) -> list[Event]:
        if not say.behaviour.finish:
            return []
        return [chunk(say, choice, b"{}", encode(say.finish)) for choice in range(say.ask.choices)]

    def accounting(self, say: Say) -> list[Event]:
        if not say.usage:
            return []
        return [Event(opened(say, b"chat.completion.chunk") + b',"choices":[],"usage":' + usage(say) + b"}")]

    def front(self, say: Say) -> bytes:
        finish = encode(say.finish if say.behaviour.finish else None)
        found = [
            b'{"index":%d,"message":%b,"logprobs":null,"finish_reason":%b}' % (choice, message(say, choice), finish)
            for choice in range(say.ask.choices)
        ]
        return opened(say, b"chat.completion") + b',"choices":[' + b",".join(found) + b"]"

    def back(self, say: Say) -> bytes:
        return b',"usage":' + usage(say) + b"}" if say.usage else b"}"


def opened(say: Say, kind: bytes) -> bytes:
    return b'{"id":"chatcmpl-%b,"object":"%b","model":%b' % (STAMP, kind, encode(say.ask.model))


def chunk(say: Say, choice: int, inner: bytes, finish: bytes = b"null") -> Event:
    body = b'%b,"choices":[{"index":%d,"delta":%b,"logprobs":null,"finish_reason":%b}]}'
    return Event(body % (opened(say, b"chat.completion.chunk"), choice, inner, finish))


def usage(say: Say) -> bytes:
    return usage_json(say.ask.prompt_tokens, say.completion, say.reasoning * say.ask.choices)


def text_of(say: Say, choice: int, span: Span) -> str:
    """A tool call spends its first token on the name, one to open its arguments and the last one to close them."""
    kind, start, size, last = span
    # Reasoning and answer of one reply, and the answers of its choices, are different texts.
    found = words(say.behaviour.seed, say.variant + 2 * choice + (kind == "reasoning"), start, size)
    if kind == "tools":
        if start == 0:
            found[0] = ""
        if start <= 1 < start + size:
            found[1 - start] = '{"words":"'
        if last and start + size > 1:
            found[-1] = "{}" if start + size == 2 else '"}'
    return "".join(found)


def delta(say: Say, choice: int, span: Span) -> bytes:
    text = encode(text_of(say, choice, span))
    if span.kind != "tools":
        key = b"reasoning_content" if span.kind == "reasoning" else span.kind.encode()
        return b'{"%b":%b}' % (key, text)
    if span.start:
        return b'{"tool_calls":[{"index":0,"function":{"arguments":%b}}]}' % text
    head = b'{"tool_calls":[{"index":0,"id":"call_%d","type":"function","function":{"name":"%b","arguments":%b}}]}'
    return head % (choice, TOOL.encode(), text)


def message(say: Say, choice: int) -> bytes:
    answer = say.tokens - say.reasoning
    text = text_of(say, choice, Span(say.kind, 0, answer, True)) if answer else ""
    parts: dict[str, object] = {"role": "assistant", "content": text if say.kind == "content" else None}
    parts["refusal"] = text if say.kind == "refusal" else None
    if say.reasoning:
        parts["reasoning_content"] = text_of(say, choice, Span("reasoning", 0, say.reasoning, True))
    if say.kind == "tools" and answer:
        function = {"name": TOOL, "arguments": text}
        parts["tool_calls"] = [{"id": f"call_{choice}", "type": "function", "function": function}]
    return encode(parts)
