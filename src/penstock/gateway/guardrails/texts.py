"""Which strings of a body are text, and where they stand.

Everything is text unless its key says that it is not: a request can carry words in more places than any list of places
would name, and a new one should be scanned before we have heard of it. Not text are ids, encoded images, audio and files
with their addresses, credentials for tool servers, and, in a reply, what it repeats of the request; nor are the protocol's
own words (types, roles, states), as long as they look like one: whatever else stands at their keys is read. In a map whose
keys are the caller's own (metadata, prompt variables, the properties of a schema, arguments that are not a string) the keys
are text too, whatever they are called, and so are whole numbers.

Texts are looked at one by one, so that nothing matches from the end of one message into the next. The exception is a
request's list of content parts: the model reads them without a gap, so they are looked at one by one and joined.
Token ids (a prompt or an input of numbers) are not text to us; a guardrail does not see through them.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = [
    "PLAIN",
    "KeySlot",
    "Line",
    "Slot",
    "has_own_keys",
    "is_text",
    "is_text_as_number",
    "is_word",
    "mode_below",
    "odd_words",
    "reply_texts",
    "request_texts",
    "walk",
]

_NEVER, _WORD, _SOMETIMES = range(3)
_KEYS = {
    **dict.fromkeys(
        (
            *("id", "model", "conversation", "system_fingerprint", "obfuscation", "authorization", "signature"),
            *("encrypted_content", "b64_json", "partial_image_b64", "file_data", "file_url", "image_url", "server_url"),
        ),
        _NEVER,
    ),
    **dict.fromkeys(
        (
            *("object", "type", "role", "status", "phase", "version", "channel", "finish_reason", "stop_reason"),
            *("native_finish_reason", "service_tier", "format", "detail", "encoding_format", "effort", "verbosity"),
            *("truncation", "tool_choice", "quality", "size", "prompt_cache_retention"),
        ),
        _WORD,
    ),
    **dict.fromkeys(("text", "data", "result"), _SOMETIMES),
}
"""Keys whose string is never text, is a word of the protocol, or is text or not as the rest of the node says."""

_USUAL = frozenset(
    (
        *("user", "assistant", "system", "developer", "tool", "function", "message", "text", "input_text"),
        *("output_text", "object", "string", "number", "integer", "boolean", "array", "auto", "completed", "stop"),
        *("chat.completion.chunk", "response.output_text.delta", "response.function_call_arguments.delta"),
    )
)
"""Words that most bodies are full of: to find one here is faster than to look at it."""
_LONGEST_WORD = 64
_LOOKS_LIKE_WORD = re.compile(r"[A-Za-z][A-Za-z_.:/-]*|[a-z][a-z_.:/-]*(?:[0-9](?![.:][0-9])[a-z_.:/-]*){1,8}")
"""`response.output_text.delta`, `date-time`, `MAX_TOKENS`, `web_search_20250305`; no number that anybody looks for, and no
key: those have capitals and digits."""

_OPAQUE = frozenset(
    (
        *("image_url", "headers", "include", "modalities", "usage", "logprobs", "top_logprobs", "prompt_logprobs"),
        *("token_ids", "prompt_token_ids", "bytes", "embedding", "stream_options"),
    )
)
"""Keys below which there is no text, whatever the value's shape."""

_OWN_WORDS = frozenset(("properties", "patternProperties", "variables", "$defs", "definitions"))
"""Maps whose keys are the caller's own, with the protocol's structures as values."""

_OWN_JSON = frozenset(("metadata", "arguments", "default", "const", "enum", "examples", "example"))
"""JSON of the caller's or the model's own, all the way down."""

_TEXT = frozenset(("content", "text", "output", "input", "reason", "instructions", "description"))
"""Where a number stands for a text."""

_ECHO = frozenset(
    (
        *("instructions", "tools", "tool_choice", "metadata", "prompt", "input", "text", "reasoning", "user"),
        *("safety_identifier", "prompt_cache_key", "include", "moderation", "context_management", "access_programs"),
    )
)
"""What a response object repeats of its request: an output guardrail does not look at the caller's own words."""

PLAIN, _TEXT_TAKEN, _SOUND, _WORDS, _JSON, _NONE = range(6)
_BELOW = {
    **dict.fromkeys(_OPAQUE, _NONE),
    **dict.fromkeys(_OWN_WORDS, _WORDS),
    **dict.fromkeys(_OWN_JSON, _JSON),
    **dict.fromkeys(("input_audio", "audio"), _SOUND),
}
"""How to read what stands below a key."""


class Slot:
    """A string, where it stands, and the one to be put in its place."""

    __slots__ = ("container", "key", "new", "source", "text")

    def __init__(self, container: Any, key: Any, text: str, source: str) -> None:
        self.container = container
        self.key = key
        self.text = text
        self.source = source
        self.new: str | None = None


class KeySlot(Slot):
    """A key of the caller's own."""

    __slots__ = ()


class Line:
    """Slots whose texts follow each other. `parts`: matches within one of them count as well as those in the whole."""

    __slots__ = ("parts", "slots")

    def __init__(self, slots: list[Slot], *, parts: bool) -> None:
        self.slots = slots
        self.parts = parts


def request_texts(body: Any) -> list[Slot | Line]:
    return walk(body, "request", join=True)


def reply_texts(body: Any, source: str = "reply") -> list[Slot | Line]:
    """Of a whole JSON reply, whatever its shape, or of the response object within an event."""
    if type(body) is not dict:
        return walk(body, source)
    is_response = body.get("object") == "response" or "output" in body
    return walk(body, source, without=_ECHO if is_response else frozenset())


def walk(
    root: Any, source: str, *, join: bool = False, without: frozenset[str] = frozenset(), mode: int = PLAIN
) -> list[Slot | Line]:
    """`without`: keys of the root to pass over."""
    found: list[Slot | Line] = []
    keys: list[Slot | Line] = []
    keys_known, below = _KEYS, _BELOW
    stack: list[tuple[Any, int]] = [(root, mode)]  # not recursive: a body may be nested deeper than Python's stack
    while stack:
        node, mode = stack.pop()
        if type(node) is list:
            _walk_list(node, mode, source, found, stack, join=join)
        elif type(node) is not dict:
            continue
        elif mode >= _WORDS:
            _walk_own(node, mode, source, found, keys, stack)
        else:
            passed = without if node is root else None
            for key, value in node.items():
                if passed and key in passed:
                    continue
                kind = type(value)
                if kind is str:
                    sort = keys_known.get(key)
                    if sort is None:
                        if value and key[-3:] != "_id":
                            found.append(Slot(node, key, value, source))
                    elif sort == _WORD:
                        if value not in _USUAL and value and not is_word(value):
                            found.append(Slot(node, key, value, source))
                    elif sort == _SOMETIMES and is_text(key, value, mode, node):
                        found.append(Slot(node, key, value, source))
                elif kind is dict or kind is list:
                    deeper = below.get(key, PLAIN)
                    if deeper != _NONE:
                        stack.append((value, deeper))
                elif kind is int and key in _TEXT:
                    found.append(Slot(node, key, str(value), source))
    return found + keys if keys else found


_Stack = list[tuple[Any, int]]
_Found = list[Slot | Line]


def _walk_own(node: dict[str, Any], mode: int, source: str, found: _Found, keys: _Found, stack: _Stack) -> None:
    for key, value in node.items():
        kind = type(value)
        if kind is str:
            if value:
                found.append(Slot(node, key, value, source))
        elif kind is int:
            found.append(Slot(node, key, str(value), source))
        elif kind is dict or kind is list:
            deeper = _JSON if mode == _JSON else _BELOW.get(key, PLAIN)
            stack.append((value, deeper if deeper != _NONE else PLAIN))
        if key:
            keys.append(KeySlot(node, key, key, source))


def _walk_list(node: list[Any], mode: int, source: str, found: _Found, stack: _Stack, *, join: bool) -> None:
    below = mode
    if join and mode == PLAIN and len(node) > 1:
        parts = _parts(node, source)
        if parts is not None:
            found.append(parts)
            below = _TEXT_TAKEN
    for place, value in enumerate(node):
        kind = type(value)
        if kind is dict:
            stack.append((value, below))
        elif kind is str:
            if value:
                found.append(Slot(node, place, value, source))
        elif kind is list:
            stack.append((value, mode))
        elif kind is int and mode == _JSON:
            found.append(Slot(node, place, str(value), source))


def is_word(text: str) -> bool:
    """Whether it looks like one of the protocol's own."""
    return text in _USUAL or (len(text) <= _LONGEST_WORD and _LOOKS_LIKE_WORD.fullmatch(text) is not None)


def odd_words(node: dict[str, Any], keys: tuple[str, ...], source: str) -> list[Slot | Line]:
    """What stands at keys for a word of the protocol and does not look like one."""
    found = [(key, node.get(key)) for key in keys]
    return [Slot(node, key, text, source) for key, text in found if type(text) is str and text and not is_word(text)]


def is_text(key: str, value: str, mode: int, node: dict[str, Any]) -> bool:
    """Whether the string at this key is text, in a node that is read in this mode."""
    if not value or mode >= _WORDS:
        return bool(value)
    sort = _KEYS.get(key)
    if sort is None:
        return not key.endswith("_id")
    if sort != _SOMETIMES:
        return sort == _WORD and not is_word(value)
    if key == "text":
        return mode != _TEXT_TAKEN  # its line is already in the list
    if key == "data":
        return mode != _SOUND and not str(node.get("type", "")).endswith(("encrypted", "redacted_thinking"))
    return key != "result" or node.get("type") != "image_generation_call"


def has_own_keys(mode: int) -> bool:
    """The keys of a node that is read in this mode are text."""
    return mode >= _WORDS


def is_text_as_number(key: Any, mode: int) -> bool:
    """Whether a whole number at this key stands for a text."""
    return mode >= _WORDS or key in _TEXT


def mode_below(key: str, mode: int) -> int | None:
    """How to read what stands below this key in a node that is read in this mode; None: there is no text."""
    if mode == _JSON:
        return _JSON
    below = _BELOW.get(key, PLAIN)
    if below != _NONE:
        return below
    return PLAIN if mode == _WORDS else None


def _parts(node: list[Any], source: str) -> Line | None:
    """The texts of a list of content parts, where there is more than one."""
    slots = [
        Slot(part, "text", part["text"], source)
        for part in node
        if type(part) is dict and type(part.get("text")) is str and part["text"]
    ]
    return Line(slots, parts=True) if len(slots) > 1 else None
