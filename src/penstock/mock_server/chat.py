"""POST /v1/chat/completions."""

from __future__ import annotations

import msgspec

from penstock.mock_server.dialect import (
    ID_PLACEHOLDER,
    Dialect,
    Event,
    ParsedRequest,
    PlannedReply,
    TokenRange,
    check_choices,
    required,
    token_limit,
    usage_json,
)
from penstock.mock_server.media import AUDIO_TOKENS, IMAGE_TOKENS, InputAudio, audio_tokens, image_tokens
from penstock.mock_server.prefix_cache import PromptBlocks
from penstock.mock_server.prompt_tokens import estimate_tokens
from penstock.mock_server.vocabulary import words

TOOL_NAME = "look_up"
encode = msgspec.json.encode


class ImageURL(msgspec.Struct):
    url: str


class Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    image_url: ImageURL | None = None
    input_audio: InputAudio | None = None


class Message(msgspec.Struct):
    role: str | None = None
    content: str | list[Part] | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


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


class Chat(Dialect):
    name = "chat"
    path = "/chat/completions"
    has_output_kinds = True
    done = Event(b"[DONE]")

    def parse(self, body: bytes) -> ParsedRequest:
        fields = decode(body)
        model = required(fields.model, "model")
        messages = required(fields.messages, "messages", "one message")
        text_tokens = media_tokens = images = audios = 0
        for index, message in enumerate(messages):
            content = message.content
            if isinstance(content, str):
                text_tokens += estimate_tokens(content)
            elif content is not None:
                for part in content:
                    text_tokens += estimate_tokens(part.text or "")
                    if part.type == "image_url":
                        url = None if part.image_url is None else part.image_url.url
                        media_tokens += image_tokens(url, f"messages[{index}].content")
                        images += 1
                    elif part.type == "input_audio":
                        media_tokens += audio_tokens(part.input_audio, f"messages[{index}].content")
                        audios += 1
        options = fields.stream_options
        limits = {"max_completion_tokens": fields.max_completion_tokens, "max_tokens": fields.max_tokens}
        chunk_usage = options is not None and bool(options.include_usage and options.continuous_usage_stats)
        return ParsedRequest(
            model,
            text_tokens + media_tokens,
            stream=bool(fields.stream),
            token_limit=token_limit(limits),
            limit_is_new=fields.max_tokens is None,
            choices=check_choices(fields.n),
            include_usage=options is not None and bool(options.include_usage),
            chunk_usage=chunk_usage,
            images=images,
            audios=audios,
        )

    def prompts(self, body: bytes, block_size: int) -> list[PromptBlocks]:
        fields = decode(body)
        prompt = PromptBlocks(block_size, fields.model or "")
        for message in fields.messages or ():
            if isinstance(message.content, str):
                prompt.add_text(message.role, message.content)
                continue
            for part in message.content or ():
                prompt.add_text(message.role, part.text)
                if part.type == "image_url" and part.image_url is not None:
                    prompt.add_opaque(part.image_url.url, IMAGE_TOKENS)
                elif part.type == "input_audio" and part.input_audio is not None:
                    prompt.add_opaque(part.input_audio.data, AUDIO_TOKENS)
        return [prompt]

    def opening_events(self, reply: PlannedReply) -> list[Event]:
        if reply.behaviour.role == "off":
            return []
        return [chunk(reply, choice, b'{"role":"assistant","content":""}') for choice in range(reply.request.choices)]

    def token_events(self, reply: PlannedReply, tokens: TokenRange) -> list[Event]:
        return [
            chunk(reply, choice, delta_json(reply, choice, tokens), usage=usage_so_far(reply, choice, tokens))
            for choice in range(reply.request.choices)
        ]

    def closing_events(self, reply: PlannedReply) -> list[Event]:
        if not reply.behaviour.finish:
            return []
        finish_reason = encode(reply.finish_reason)
        return [chunk(reply, choice, b"{}", finish_reason) for choice in range(reply.request.choices)]

    def usage_events(self, reply: PlannedReply) -> list[Event]:
        if not reply.sends_usage:
            return []
        return [
            Event(first_fields(reply, b"chat.completion.chunk") + b',"choices":[],"usage":' + self.usage(reply) + b"}")
        ]

    def body_prefix(self, reply: PlannedReply) -> bytes:
        finish_reason = encode(reply.finish_reason if reply.behaviour.finish else None)
        template = b'{"index":%d,"message":%b,"logprobs":null,"finish_reason":%b}'
        choices = [
            template % (choice, message_json(reply, choice), finish_reason) for choice in range(reply.request.choices)
        ]
        return first_fields(reply, b"chat.completion") + b',"choices":[' + b",".join(choices) + b"]"

    def usage(self, reply: PlannedReply) -> bytes:
        reasoning = reply.reasoning * reply.request.choices
        return usage_json(reply.request.prompt_tokens, reply.completion_tokens, reasoning, reply.cached_tokens)


def first_fields(reply: PlannedReply, object_type: bytes) -> bytes:
    """Return the beginning of a JSON object: id, created, object and model."""
    return b'{"id":"chatcmpl-%b,"object":"%b","model":%b' % (ID_PLACEHOLDER, object_type, encode(reply.request.model))


def chunk(
    reply: PlannedReply, choice: int, delta: bytes, finish_reason: bytes = b"null", *, usage: bytes = b""
) -> Event:
    template = b'%b,"choices":[{"index":%d,"delta":%b,"logprobs":null,"finish_reason":%b}]%b}'
    return Event(template % (first_fields(reply, b"chat.completion.chunk"), choice, delta, finish_reason, usage))


def usage_so_far(reply: PlannedReply, choice: int, tokens: TokenRange) -> bytes:
    """Return the usage field of a chunk with these tokens of a choice, or nothing if the request does not ask for it."""
    if not reply.sends_chunk_usage:
        return b""
    reasoning = tokens.kind == "reasoning"
    before = tokens.start + (0 if reasoning else reply.reasoning)
    completion = before * reply.request.choices + tokens.size * (choice + 1)
    return b',"usage":' + usage_json(
        reply.request.prompt_tokens, completion, completion if reasoning else reply.reasoning * reply.request.choices
    )


def text_of(reply: PlannedReply, choice: int, tokens: TokenRange) -> str:
    """Return the text of these tokens.

    The first token of a tool call is its name, the second opens the arguments, and the last closes them.
    """
    kind, start, size, last = tokens
    # The choices of a reply, and the reasoning and the answer of a choice, have different texts.
    variant = reply.variant + 2 * choice + (kind == "reasoning")
    parts = words(reply.behaviour.seed, variant, start, size, reply.behaviour.token_words)
    if kind == "tools":
        if start == 0:
            parts[0] = ""
        if start <= 1 < start + size:
            parts[1 - start] = '{"words":"'
        if last and start + size > 1:
            parts[-1] = "{}" if start + size == 2 else '"}'
    return "".join(parts)


def delta_json(reply: PlannedReply, choice: int, tokens: TokenRange) -> bytes:
    text = encode(text_of(reply, choice, tokens))
    if tokens.kind != "tools":
        key = b"reasoning_content" if tokens.kind == "reasoning" else tokens.kind.encode()
        return b'{"%b":%b}' % (key, text)
    if tokens.start:
        return b'{"tool_calls":[{"index":0,"function":{"arguments":%b}}]}' % text
    template = b'{"tool_calls":[{"index":0,"id":"call_%d","type":"function","function":{"name":"%b","arguments":%b}}]}'
    return template % (choice, TOOL_NAME.encode(), text)


def message_json(reply: PlannedReply, choice: int) -> bytes:
    answer_tokens = reply.tokens - reply.reasoning
    text = text_of(reply, choice, TokenRange(reply.kind, 0, answer_tokens, True)) if answer_tokens else ""
    fields: dict[str, object] = {"role": "assistant", "content": text if reply.kind == "content" else None}
    fields["refusal"] = text if reply.kind == "refusal" else None
    if reply.reasoning:
        fields["reasoning_content"] = text_of(reply, choice, TokenRange("reasoning", 0, reply.reasoning, True))
    if reply.kind == "tools" and answer_tokens:
        function = {"name": TOOL_NAME, "arguments": text}
        fields["tool_calls"] = [{"id": f"call_{choice}", "type": "function", "function": function}]
    return encode(fields)
