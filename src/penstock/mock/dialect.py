"""What an API dialect of the server is: it reads a request and renders the pieces of a reply. It does no I/O.

A new dialect is one file like `mock.chat` and one entry in `mock.registry`.

What a dialect renders is kept and sent again for other requests, so it may depend on nothing but the fields of `Say`
that make up `Say.shape`. The two things that differ with every reply are handled apart: the id and time are written as
`STAMP`, which the caller replaces, and counts of tokens go into `accounting` and `back`, which are rendered each time.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.mock.behaviour import Behaviour

__all__ = [
    "STAMP",
    "Ask",
    "BadRequest",
    "BaseDialect",
    "Dialect",
    "Event",
    "Say",
    "Span",
    "choices",
    "complaint",
    "count_tokens",
    "error_body",
    "limit",
    "stamp",
    "usage_json",
]

MAX_TOKENS = 1_000_000
MAX_CHOICES = 128

STAMP = b'################","created":##########'
"""Stands for the end of the id and the time of a reply, which stand side by side so that one insertion serves both."""


def stamp(number: int, second: int) -> bytes:
    return b'%016x","created":%d' % (number, second)


class BadRequest(Exception):
    """Answered with status 400; the message is for the caller of the API."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Event(NamedTuple):
    """A server-sent event; most have no name."""

    data: bytes
    name: bytes = b""


class Span(NamedTuple):
    """Tokens `start` to `start + size` of one kind."""

    kind: str
    start: int
    size: int
    last: bool
    """No more of this kind follow."""


class Ask:
    """What a request wants, whatever its dialect."""

    __slots__ = (
        "audios",
        "choices",
        "echo",
        "images",
        "include_usage",
        "limit",
        "model",
        "own",
        "prompt_tokens",
        "shape",
        "stream",
    )

    def __init__(
        self,
        model: str,
        prompt_tokens: int,
        *,
        stream: bool = False,
        limit: int | None = None,
        choices: int = 1,
        include_usage: bool = False,
        shape: tuple[int | str, ...] = (),
        echo: tuple[Any, ...] = (),
        own: Any = None,
    ) -> None:
        self.model = model
        self.prompt_tokens = prompt_tokens
        self.stream = stream
        self.limit = limit
        self.choices = choices
        self.include_usage = include_usage
        self.shape = shape
        """What else in the request decides the bytes of the reply."""
        self.echo = echo
        """What decides those before the first token and after the last one only."""
        self.own = own
        """For the dialect itself; it decides nothing that is rendered once and kept."""
        self.images = self.audios = 0


class Say:
    """What the reply will be: decided before a byte of it is rendered."""

    __slots__ = ("ask", "behaviour", "finish", "kind", "reasoning", "tokens", "usage", "variant")

    def __init__(self, ask: Ask, behaviour: Behaviour, variant: int, *, kinds: bool) -> None:
        self.ask = ask
        self.behaviour = behaviour
        self.variant = variant
        """Which of the prepared texts."""
        self.tokens = behaviour.tokens if ask.limit is None else ask.limit
        """Of each choice, reasoning included."""
        self.kind = "content"
        self.reasoning = 0
        self.finish = "stop"
        if kinds:
            self.reasoning = min(behaviour.reasoning, self.tokens)
            if behaviour.tools:
                self.kind, self.finish = "tools", "tool_calls"
            elif behaviour.refusal:
                self.kind = "refusal"
        if ask.limit is not None:
            self.finish = "length"
        usage = behaviour.usage
        self.usage = usage == "always" or (usage == "asked" and (ask.include_usage or not ask.stream))

    @property
    def shape(self) -> tuple[object, ...]:
        """All that decides the rendered bytes, besides the dialect and the behaviour."""
        ask = self.ask
        return ask.model, self.tokens, ask.choices, ask.limit is None, self.variant, ask.shape, ask.echo

    @property
    def completion(self) -> int:
        return self.tokens * self.ask.choices


class Dialect(Protocol):
    name: str
    path: str
    """How the paths that it serves end."""
    kinds: bool
    """It has reasoning, tool calls and refusals."""
    done: Event | None
    """The event that ends a stream."""

    def read(self, body: bytes) -> Ask:
        """Raises BadRequest, or msgspec's DecodeError and ValidationError."""
        ...

    def opening(self, say: Say) -> list[Event]:
        """Events before the first token."""
        ...

    def piece(self, say: Say, span: Span) -> list[Event]:
        """These tokens of each choice."""
        ...

    def closing(self, say: Say) -> list[Event]:
        """Events after the last token, except those with counts."""
        ...

    def accounting(self, say: Say) -> list[Event]:
        """Events with counts."""
        ...

    def front(self, say: Say) -> bytes:
        """A whole JSON body up to the counts."""
        ...

    def back(self, say: Say) -> bytes:
        """The rest of it."""
        ...

    def stamp(self, say: Say, number: int, second: int) -> bytes:
        """What takes the place of STAMP, as long as it. A dialect that keeps its replies learns their ids here."""
        ...

    def error(self, say: Say, sent: int) -> Event:
        """An error instead of what would follow the first `sent` tokens."""
        ...

    def failed(self, say: Say, sent: int) -> Event | None:
        """The reply's own word that it failed after so many tokens, for a dialect that has one."""
        ...

    def failed_body(self, say: Say, sent: int) -> bytes | None:
        """The same as a whole body."""
        ...


class BaseDialect:
    """What most dialects do alike."""

    def stamp(self, say: Say, number: int, second: int) -> bytes:  # noqa: ARG002
        return stamp(number, second)

    def error(self, say: Say, sent: int) -> Event:  # noqa: ARG002
        return Event(error_body("the mock was told to fail here", "server_error", code=500))

    def failed(self, say: Say, sent: int) -> Event | None:  # noqa: ARG002
        return None

    def failed_body(self, say: Say, sent: int) -> bytes | None:  # noqa: ARG002
        return None


_WHERE = re.compile(r" - at `\$\.?([^`]*)`$")


def complaint(wrong: Exception) -> tuple[str, str | None]:
    """The message and the parameter for a body that could not be read."""
    if isinstance(wrong, BadRequest):
        return str(wrong), wrong.param
    text = str(wrong)
    if isinstance(wrong, msgspec.ValidationError):
        found = _WHERE.search(text)
        if found:
            return f"{found[1] or 'the body'}: {text[: found.start()]}", found[1] or None
        return text, None
    return f"the body is not JSON: {text}", None


def limit(values: dict[str, int | None]) -> int | None:
    """The first limit on the reply's length that is set."""
    for name, value in values.items():
        if value is not None:
            if not 1 <= value <= MAX_TOKENS:
                raise BadRequest(f"{name} must be from 1 to {MAX_TOKENS}, not {value}", name)
            return value
    return None


def choices(n: int | None) -> int:
    if n is None:
        return 1
    if not 1 <= n <= MAX_CHOICES:
        raise BadRequest(f"n must be from 1 to {MAX_CHOICES}, not {n}", "n")
    return n


def count_tokens(text: str) -> int:
    """Estimate the tokens of English text: within 10 % of the builtin vocabulary for synthetic prompts of 100 tokens."""
    size, spaces = len(text), text.count(" ")
    if 14 * spaces <= size:  # no prose
        return (3 * size + 13) // 14
    return 1 + spaces + (size + 10 * (text.count(".") + text.count(",")) + 29) // 30


def usage_json(prompt: int, completion: int, reasoning: int = 0) -> bytes:
    details = b',"completion_tokens_details":{"reasoning_tokens":%d}' % reasoning if reasoning else b""
    return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d%b}' % (
        prompt,
        completion,
        prompt + completion,
        details,
    )


def error_body(message: str, kind: str, param: str | None = None, code: str | int | None = None) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
