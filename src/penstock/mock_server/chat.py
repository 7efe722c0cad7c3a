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


class Choices(Dialect):
    """What completions of chats and of texts have in common: replies with one or more choices."""

    done = Event(b"[DONE]")
    id_prefix: bytes
    object_type: bytes
    chunk_type: bytes
    last_content: bytes
    """The content of the last chunk of a choice."""

    def content(self, reply: PlannedReply, choice: int, tokens: TokenRange) -> bytes:
        """Return the member of a chunk with these tokens of a choice."""
        raise NotImplementedError

    def whole_content(self, reply: PlannedReply, choice: int) -> bytes:
        """Return the member of a whole choice with its text."""
        raise NotImplementedError

    def token_events(self, reply: PlannedReply, tokens: TokenRange) -> list[Event]:
        return [
            self.chunk(reply, choice, self.content(reply, choice, tokens), usage=usage_so_far(reply, choice, tokens))
            for choice in range(reply.request.choices)
        ]

    def closing_events(self, reply: PlannedReply) -> list[Event]:
        if not reply.behaviour.finish:
            return []
        finish_reason = encode(reply.finish_reason)
        choices = range(reply.request.choices)
        return [self.chunk(reply, choice, self.last_content, finish_reason) for choice in choices]

    def usage_events(self, reply: PlannedReply) -> list[Event]:
        if not reply.sends_usage:
            return []
        fields = self.first_fields(reply, self.chunk_type)
        return [Event(fields + b',"choices":[],"usage":' + self.usage(reply) + b"}")]

    def body_prefix(self, reply: PlannedReply) -> bytes:
        finish_reason = encode(reply.finish_reason if reply.behaviour.finish else None)
        choices = [
            choice_json(choice, self.whole_content(reply, choice), finish_reason)
            for choice in range(reply.request.choices)
        ]
        return self.first_fields(reply, self.object_type) + b',"choices":[' + b",".join(choices) + b"]"

    def usage(self, reply: PlannedReply) -> bytes:
        reasoning = reply.reasoning * reply.request.choices
        return usage_json(reply.request.prompt_tokens, reply.completion_tokens, reasoning, reply.cached_tokens)

    def first_fields(self, reply: PlannedReply, object_type: bytes) -> bytes:
        """Return the beginning of a JSON object: id, created, object and model."""
        values = (self.id_prefix, ID_PLACEHOLDER, object_type, encode(reply.request.model))
        return b'{"id":"%b-%b,"object":"%b","model":%b' % values

    def chunk(
        self, reply: PlannedReply, choice: int, content: bytes, finish_reason: bytes = b"null", usage: bytes = b""
    ) -> Event:
        fields = self.first_fields(reply, self.chunk_type)
        return Event(b'%b,"choices":[%b]%b}' % (fields, choice_json(choice, content, finish_reason), usage))


def choice_json(choice: int, content: bytes, finish_reason: bytes) -> bytes:
    return b'{"index":%d,%b,"logprobs":null,"finish_reason":%b}' % (choice, content, finish_reason)


def measure_messages(messages: list[Message]) -> tuple[int, int, int]:
    """Return the tokens of messages, and how many images and audio clips they contain."""
    tokens = images = audios = 0
    for index, message in enumerate(messages):
        content = message.content
        if isinstance(content, str):
            tokens += estimate_tokens(content)
        elif content is not None:
            for part in content:
                tokens += estimate_tokens(part.text or "")
                if part.type == "image_url":
                    url = None if part.image_url is None else part.image_url.url
                    tokens += image_tokens(url, f"messages[{index}].content")
                    images += 1
                elif part.type == "input_audio":
                    tokens += audio_tokens(part.input_audio, f"messages[{index}].content")
                    audios += 1
    return tokens, images, audios


class Chat(Choices):
    name = "chat"
    path = "/chat/completions"
    has_output_kinds = True
    body = ChatBody
    id_prefix, object_type, chunk_type = b"chatcmpl", b"chat.completion", b"chat.completion.chunk"
    last_content = b'"delta":{}'

    def read(self, fields: ChatBody, model: str) -> ParsedRequest:
        messages = required(fields.messages, "messages", "one message")
        tokens, images, audios = measure_messages(messages)
        options = fields.stream_options or StreamOptions()
        limits = {"max_completion_tokens": fields.max_completion_tokens, "max_tokens": fields.max_tokens}
        return ParsedRequest(
            model,
            tokens,
            token_limit=token_limit(limits),
            limit_is_new=fields.max_tokens is None,
            choices=check_choices(fields.n),
            include_usage=bool(options.include_usage),
            chunk_usage=bool(options.include_usage and options.continuous_usage_stats),
            images=images,
            audios=audios,
        )

    def prompts(self, body: bytes, block_size: int) -> list[PromptBlocks]:
        fields: ChatBody = self.decode(body)
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
        start = b'"delta":{"role":"assistant","content":""}'
        return [self.chunk(reply, choice, start) for choice in range(reply.request.choices)]

    def content(self, reply: PlannedReply, choice: int, tokens: TokenRange) -> bytes:
        return b'"delta":' + delta_json(reply, choice, tokens)

    def whole_content(self, reply: PlannedReply, choice: int) -> bytes:
        return b'"message":' + message_json(reply, choice)


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


def text_of(reply: PlannedReply, choice: int, tokens: TokenRange, opening: int = 1) -> str:
    """Return the text of these tokens.

    The token `opening` of a tool call opens the arguments, and the last closes them. Those before it are its name.
    """
    kind, start, size, last = tokens
    # The choices of a reply, and the reasoning and the answer of a choice, have different texts.
    variant = reply.variant + 2 * choice + (kind == "reasoning")
    parts = words(reply.behaviour.seed, variant, start, size, reply.behaviour.token_words)
    if kind == "tools":
        if start < opening:
            parts[0] = ""
        if start <= opening < start + size:
            parts[opening - start] = '{"words":"'
        if last and start + size > opening:
            parts[-1] = "{}" if start + size == opening + 1 else '"}'
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
