"""Which strings of a body are text, and where they stand.

Everything is text unless its key says that it is not: a request can carry words in more places than any list of places
would name, and a new one should be scanned before we have heard of it. Not text are ids, the protocol's own words (types,
roles, states), encoded images, audio and files with their addresses, credentials for tool servers, and, in a reply, what
it repeats of the request. In a map whose keys are the caller's own (metadata, prompt variables, the properties of a
schema, arguments that are not a string) the keys are text too, whatever they are called, and so are whole numbers.

Texts are looked at one by one, so that nothing matches from the end of one message into the next. The exception is a
request's list of content parts: the model reads them without a gap, so they are looked at one by one and joined.
Token ids (a prompt or an input of numbers) are not text to us; a guardrail does not see through them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["OPAQUE", "KeySlot", "Line", "Slot", "is_text", "mode_below", "reply_texts", "request_texts", "walk"]

_NOT_TEXT = frozenset(
    (
        *("id", "object", "type", "role", "model", "status", "phase", "version", "conversation", "channel"),
        *("finish_reason", "stop_reason", "native_finish_reason", "system_fingerprint", "service_tier", "obfuscation"),
        *("format", "detail", "encoding_format", "effort", "verbosity", "truncation", "tool_choice", "quality", "size"),
        *("encrypted_content", "b64_json", "partial_image_b64", "file_data", "file_url", "image_url", "server_url"),
        *("authorization", "signature", "prompt_cache_retention"),
    )
)
"""Keys whose string is not text."""

OPAQUE = frozenset(
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

_PLAIN, _TEXT_TAKEN, _SOUND, _WORDS, _JSON, _NONE = range(6)
_BELOW = {
    **dict.fromkeys(OPAQUE, _NONE),
    **dict.fromkeys(_OWN_WORDS, _WORDS),
    **dict.fromkeys(_OWN_JSON, _JSON),
    **dict.fromkeys(("input_audio", "audio"), _SOUND),
}
"""How to read what stands below a key."""

_SOMETIMES = frozenset(("text", "data", "result"))
"""Keys whose string is text or not, as the rest of the node says."""


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
    root: Any, source: str, *, join: bool = False, without: frozenset[str] = frozenset(), mode: int = _PLAIN
) -> list[Slot | Line]:
    """`without`: keys of the root to pass over."""
    found: list[Slot | Line] = []
    keys: list[Slot | Line] = []
    not_text, below = _NOT_TEXT, _BELOW
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
                    if key in not_text or not value:
                        continue
                    if key[-3:] != "_id" and (key not in _SOMETIMES or is_text(key, mode, node)):
                        found.append(Slot(node, key, value, source))
                elif kind is dict or kind is list:
                    deeper = below.get(key, _PLAIN)
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
            deeper = _JSON if mode == _JSON else _BELOW.get(key, _PLAIN)
            stack.append((value, deeper if deeper != _NONE else _PLAIN))
        if key:
            keys.append(KeySlot(node, key, key, source))


def _walk_list(node: list[Any], mode: int, source: str, found: _Found, stack: _Stack, *, join: bool) -> None:
    below = mode
    if join and mode == _PLAIN and len(node) > 1:
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


def is_text(key: str, mode: int, node: dict[str, Any]) -> bool:
    """Whether the string at this key is text, in a node that is read in this mode."""
    if key in _NOT_TEXT or key.endswith("_id"):
        return False
    if key == "text":
        return mode != _TEXT_TAKEN  # its line is already in the list
    if key == "data":
        return mode != _SOUND and not str(node.get("type", "")).endswith(("encrypted", "redacted_thinking"))
    return key != "result" or node.get("type") != "image_generation_call"


def mode_below(key: Any) -> int:
    """How to read what stands below a key, where there can be text."""
    mode = _BELOW.get(key, _PLAIN)
    return mode if mode in (_PLAIN, _SOUND) else _PLAIN


def _parts(node: list[Any], source: str) -> Line | None:
    """The texts of a list of content parts, where there is more than one."""
    slots = [
        Slot(part, "text", part["text"], source)
        for part in node
        if type(part) is dict and type(part.get("text")) is str and part["text"]
    ]
    return Line(slots, parts=True) if len(slots) > 1 else None
