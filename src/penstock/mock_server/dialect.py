"""The base class of the API dialects. A dialect parses a request and renders its reply; it does no I/O.

A new dialect is one file like `mock.chat` and one entry in `mock_server.dialect_table`.

The server caches rendered bytes and sends them again for other requests. They may depend only on the behaviour and on
the fields in `PlannedReply.cache_key`. Two things differ with every reply. A dialect writes `ID_PLACEHOLDER` for the id
and the time, and the server replaces it. `usage_events` and `body_suffix` hold the token counts and are not cached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from penstock.mock_server.behaviour import Behaviour
from penstock.mock_server.vocabulary import words

if TYPE_CHECKING:
    from penstock.mock_server.prefix_cache import PromptBlocks

T = TypeVar("T")

MAX_TOKENS = 1_000_000
MAX_CHOICES = 128

ID_PLACEHOLDER = b'################","created":##########'
"""Placeholder for the end of the reply's id and its time, which are adjacent so that one replacement fills in both."""


def id_and_time(number: int, second: int) -> bytes:
    return b'%016x","created":%d' % (number, second)


class BadRequest(Exception):
    """A request that is answered with status 400 and this message."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Event(NamedTuple):
    """A server-sent event; most have no name."""

    data: bytes
    name: bytes = b""


class TokenRange(NamedTuple):
    """Tokens `start` to `start + size` of one kind of output."""

    kind: str
    """reasoning, content, refusal or tools."""
    start: int
    size: int
    last: bool
    """No more tokens of this kind follow."""


class ParsedRequest(msgspec.Struct):
    """The fields of a request that decide the reply, in any dialect."""

    model: str
    prompt_tokens: int
    stream: bool = False
    token_limit: int | None = None
    choices: int = 1
    limit_is_new: bool = False
    """The limit has a name that older servers do not know."""
    include_usage: bool = False
    chunk_usage: bool = False
    """Send the usage so far in every chunk."""
    cached_fields: tuple[Any, ...] = ()
    """Further fields, chosen by the dialect, that appear in cached bytes, but not in the events of tokens."""
    uncached_fields: Any = None
    """Further fields, chosen by the dialect, that do not appear in cached bytes."""
    images: int = 0
    audios: int = 0


class PlannedReply:
    """The content of a reply, decided before a byte of it is rendered."""

    def __init__(self, request: ParsedRequest, behaviour: Behaviour, variant: int, *, has_output_kinds: bool) -> None:
        self.request = request
        self.behaviour = behaviour
        self.variant = variant
        """Selects one of the prepared texts."""
        self.token_limit = None if behaviour.legacy_limit and request.limit_is_new else request.token_limit
        self.tokens = behaviour.tokens if self.token_limit is None else self.token_limit
        """Tokens of each choice, including reasoning."""
        self.reasoning = 0
        """Reasoning tokens of each choice."""
        self.kind = "content"
        """The kind of the tokens after the reasoning."""
        self.finish_reason = "stop"
        if has_output_kinds:
            self.reasoning = min(behaviour.reasoning, self.tokens)
            if behaviour.tools:
                self.kind, self.finish_reason = "tools", "tool_calls"
            elif behaviour.refusal:
                self.kind = "refusal"
        if self.token_limit:
            self.finish_reason = "length"
        self.prompts: Sequence[PromptBlocks] = ()
        """The prompts, if the server has a prefix cache."""
        self.cached_tokens: int | None = None
        """Prompt tokens in the prefix cache; None if there is none."""
        usage = behaviour.usage
        self.sends_usage = usage == "always" or (usage == "asked" and (request.include_usage or not request.stream))
        self.sends_chunk_usage = request.chunk_usage and request.stream and usage != "never"

    @property
    def cache_key(self) -> tuple[object, ...]:
        """Everything that decides the cached bytes, besides the dialect and the behaviour."""
        request = self.request
        limited = self.token_limit is not None
        return (
            request.model,
            self.tokens,
            request.choices,
            limited,
            self.variant,
            self.chunk_usage_key,
            request.cached_fields,
        )

    @property
    def chunk_usage_key(self) -> int | None:
        """The part of the usage in the chunks that is the same for all chunks; None without such usage."""
        return self.request.prompt_tokens if self.sends_chunk_usage else None

    @property
    def uncached_tokens(self) -> int:
        return self.request.prompt_tokens - (self.cached_tokens or 0)

    @property
    def completion_tokens(self) -> int:
        return self.tokens * self.request.choices


class Dialect:
    name: str
    path: str
    """The end of the paths that the dialect serves."""
    base = "/v1"
    """The usual start of a path, before `path`."""
    has_output_kinds = False
    """The dialect has reasoning, tool calls and refusals."""
    done: Event | None = None
    """The event that ends a stream."""
    body: type[msgspec.Struct]
    """The fields of a request that decide the reply; the decoder skips the others without building them."""
    needs_model = True
    decode: Callable[[bytes], Any]

    def __init_subclass__(cls) -> None:
        cls.decode = staticmethod(msgspec.json.Decoder(getattr(cls, "body", msgspec.Struct)).decode)

    def parse(self, body: bytes) -> ParsedRequest:
        """Parse a request body. Raise BadRequest, or msgspec's DecodeError or ValidationError."""
        fields = self.decode(body)
        parsed = self.read(fields, required(fields.model, "model") if self.needs_model else "")
        parsed.stream = parsed.stream or bool(getattr(fields, "stream", None))
        return parsed

    def read(self, fields: Any, model: str) -> ParsedRequest:
        """Return what the fields ask for. The caller adds whether they ask for a stream. Raise BadRequest."""
        raise NotImplementedError

    def prompts(self, body: bytes, block_size: int) -> list[PromptBlocks]:
        """Return the prompts of a valid request body, for the prefix cache. A dialect without a cache returns none."""
        return []

    def opening_events(self, reply: PlannedReply) -> list[Event]:
        """Return the events before the first token."""
        return []

    def token_events(self, reply: PlannedReply, tokens: TokenRange) -> list[Event]:
        """Return the events that carry these tokens of each choice."""
        return []

    def closing_events(self, reply: PlannedReply) -> list[Event]:
        """Return the events after the last token that hold no token counts."""
        return []

    def usage_events(self, reply: PlannedReply) -> list[Event]:
        """Return the last events, which hold token counts."""
        return []

    def body_prefix(self, reply: PlannedReply) -> bytes:
        """Return the JSON body of a reply that is not streamed, up to the token counts."""
        raise NotImplementedError

    def body_suffix(self, reply: PlannedReply) -> bytes:
        """Return the rest of the JSON body."""
        return b',"usage":%b}' % self.usage(reply) if reply.sends_usage else b"}"

    def usage(self, reply: PlannedReply) -> bytes:
        """Return the token counts, here of a reply without tokens."""
        tokens = reply.request.prompt_tokens
        return b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)

    def reply_id(self, reply: PlannedReply, number: int, second: int) -> bytes:
        """Return the replacement for ID_PLACEHOLDER, of the same length. A dialect that stores replies does so here."""
        return id_and_time(number, second)

    def error_event(self, reply: PlannedReply, sent: int) -> Event:
        """Return an error that replaces the rest of the stream after `sent` tokens."""
        return Event(error_body("the mock was told to fail here", "server_error", code=500))

    def failed_event(self, reply: PlannedReply, sent: int) -> Event:
        """Return the event of a reply that failed after `sent` tokens: an error, if the dialect has no such event."""
        return self.error_event(reply, sent)

    def failed_body(self, reply: PlannedReply, sent: int) -> bytes:
        """Return the JSON body of a reply that failed after `sent` tokens."""
        return self.error_event(reply, sent).data


_FIELD = re.compile(r" - at `\$\.?([^`]*)`$")


def describe_error(error: Exception) -> tuple[str, str | None]:
    """Return the message and the parameter name for a body that could not be parsed."""
    if isinstance(error, BadRequest):
        return str(error), error.param
    text = str(error)
    if isinstance(error, msgspec.ValidationError):
        match = _FIELD.search(text)
        if match:
            return f"{match[1] or 'the body'}: {text[: match.start()]}", match[1] or None
        return text, None
    return f"the body is not JSON: {text}", None


def required(value: T | None, name: str, contents: str = "") -> T:
    """Return the value of a field, or raise BadRequest if it is missing or empty. `contents` says what it must hold."""
    if not value:
        raise BadRequest(f"{name} is required{f' and must hold at least {contents}' if contents else ''}", name)
    return value


def token_limit(fields: dict[str, int | None]) -> int | None:
    """Return the first of these limits on the reply's length that is set."""
    for name, value in fields.items():
        if value is not None:
            if not 1 <= value <= MAX_TOKENS:
                raise BadRequest(f"{name} must be from 1 to {MAX_TOKENS}, not {value}", name)
            return value
    return None


def check_choices(n: int | None) -> int:
    if n is None:
        return 1
    if not 1 <= n <= MAX_CHOICES:
        raise BadRequest(f"n must be from 1 to {MAX_CHOICES}, not {n}", "n")
    return n


def plain_text(reply: PlannedReply, start: int, count: int, choice: int = 0) -> str:
    """Return `count` tokens of a choice of a reply that holds only text."""
    return "".join(words(reply.behaviour.seed, reply.variant + choice, start, count, reply.behaviour.token_words))


def usage_json(prompt: int, completion: int, reasoning: int = 0, cached: int | None = None) -> bytes:
    details = b',"completion_tokens_details":{"reasoning_tokens":%d}' % reasoning if reasoning else b""
    if cached is not None:
        details += b',"prompt_tokens_details":{"cached_tokens":%d}' % cached
    return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d%b}' % (
        prompt,
        completion,
        prompt + completion,
        details,
    )


def error_body(message: str, error_type: str, param: str | None = None, code: str | int | None = None) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": error_type, "param": param, "code": code}})
