"""Selection of the strings in a JSON body that are text to inspect.

A string is text unless its key excludes it, so that fields that are new to the API are inspected without a change here.
Excluded are ids, encoded images, audio and files and their URLs, credentials for tool servers, and, in a reply, the fields
that echo the request. Protocol values (types, roles, states) are excluded if they look like one; any other string at their
keys is text. In a map with user-defined keys (metadata, prompt variables, schema properties, arguments that are not a
string) all keys and integers are text too.

Texts are searched one by one, so that no match extends from one message into the next. The exception is a request's list
of content parts: the model reads them without a gap, so they are searched one by one and also joined. Token ids (a prompt
or an input of numbers) are not text; guardrails do not decode them.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = [
    "PLAIN",
    "InspectedText",
    "JoinedText",
    "KeyRef",
    "TextRef",
    "child_mode",
    "has_user_keys",
    "is_numeric_text",
    "is_protocol_value",
    "is_text",
    "reply_texts",
    "request_texts",
    "unknown_protocol_values",
    "walk",
]

_NOT_TEXT, _PROTOCOL, _DEPENDS = range(3)
_KEY_KINDS = {
    **dict.fromkeys(
        (
            *("id", "model", "conversation", "system_fingerprint", "obfuscation", "authorization", "signature"),
            *("encrypted_content", "b64_json", "partial_image_b64", "file_data", "file_url", "image_url", "server_url"),
        ),
        _NOT_TEXT,
    ),
    **dict.fromkeys(
        (
            *("object", "type", "role", "status", "phase", "version", "channel", "finish_reason", "stop_reason"),
            *("native_finish_reason", "service_tier", "format", "detail", "encoding_format", "effort", "verbosity"),
            *("truncation", "tool_choice", "quality", "size", "prompt_cache_retention"),
        ),
        _PROTOCOL,
    ),
    **dict.fromkeys(("text", "data", "result"), _DEPENDS),
}
"""Keys whose string is not text, is a protocol value, or is text depending on the rest of the object."""

_COMMON_VALUES = frozenset(
    (
        *("user", "assistant", "system", "developer", "tool", "function", "message", "text", "input_text"),
        *("output_text", "object", "string", "number", "integer", "boolean", "array", "auto", "completed", "stop"),
        *("chat.completion.chunk", "response.output_text.delta", "response.function_call_arguments.delta"),
    )
)
"""Frequent protocol values: a set lookup is faster than the regular expression."""
_MAX_PROTOCOL_VALUE = 64
_PROTOCOL_VALUE = re.compile(r"[A-Za-z][A-Za-z_.:/-]*|[a-z][a-z_.:/-]*(?:[0-9](?![.:][0-9])[a-z_.:/-]*){1,8}")
"""Matches `response.output_text.delta`, `date-time`, `MAX_TOKENS`, `web_search_20250305`. Matches no number that a detector
finds, and no API key: those have capitals and digits."""

_OPAQUE = frozenset(
    (
        *("image_url", "headers", "include", "modalities", "usage", "logprobs", "top_logprobs", "prompt_logprobs"),
        *("token_ids", "prompt_token_ids", "bytes", "embedding", "stream_options"),
    )
)
"""Keys whose value contains no text, whatever its type."""

_USER_KEY_MAPS = frozenset(("properties", "patternProperties", "variables", "$defs", "definitions"))
"""Keys of maps with user-defined keys and protocol objects as values."""

_USER_JSON_KEYS = frozenset(("metadata", "arguments", "default", "const", "enum", "examples", "example"))
"""Keys of free-form JSON from the caller or the model, at every depth."""

_NUMERIC_TEXT_KEYS = frozenset(("content", "text", "output", "input", "reason", "instructions", "description"))
"""Keys whose value is text even if it is an integer."""

_REQUEST_ECHO = frozenset(
    (
        *("instructions", "tools", "tool_choice", "metadata", "prompt", "input", "text", "reasoning", "user"),
        *("safety_identifier", "prompt_cache_key", "include", "moderation", "context_management", "access_programs"),
    )
)
"""Keys of a response object that echo the request. Output guardrails do not inspect the caller's text."""

PLAIN, _PARTS_JOINED, _AUDIO, _USER_KEYS, _USER_JSON, _NO_TEXT = range(6)
_CHILD_MODES = {
    **dict.fromkeys(_OPAQUE, _NO_TEXT),
    **dict.fromkeys(_USER_KEY_MAPS, _USER_KEYS),
    **dict.fromkeys(_USER_JSON_KEYS, _USER_JSON),
    **dict.fromkeys(("input_audio", "audio"), _AUDIO),
}
"""The mode in which the value of a key is walked; PLAIN for all other keys."""


class TextRef:
    """A string in a JSON body: its container and key, and its replacement if it is masked."""

    __slots__ = ("container", "key", "replacement", "source", "text")

    def __init__(self, container: Any, key: Any, text: str, source: str) -> None:
        self.container = container
        self.key = key
        self.text = text
        self.source = source
        self.replacement: str | None = None


class KeyRef(TextRef):
    """A user-defined object key; `text` is the key itself."""

    __slots__ = ()


class JoinedText:
    """Consecutive texts that are searched as one. With `search_parts`, each text is searched on its own as well."""

    __slots__ = ("refs", "search_parts")

    def __init__(self, refs: list[TextRef], *, search_parts: bool) -> None:
        self.refs = refs
        self.search_parts = search_parts


InspectedText = TextRef | JoinedText


def request_texts(body: Any) -> list[InspectedText]:
    return walk(body, "request", join=True)


def reply_texts(body: Any, source: str = "reply") -> list[InspectedText]:
    """Return the texts of a whole JSON reply of any shape, or of the response object within an event."""
    if type(body) is not dict:
        return walk(body, source)
    is_response = body.get("object") == "response" or "output" in body
    return walk(body, source, skip=_REQUEST_ECHO if is_response else frozenset())


def walk(
    root: Any, source: str, *, join: bool = False, skip: frozenset[str] = frozenset(), mode: int = PLAIN
) -> list[InspectedText]:
    """Return the texts below `root`, except at the root's keys in `skip`. `join` joins lists of content parts."""
    texts: list[InspectedText] = []
    keys: list[InspectedText] = []
    key_kinds, child_modes = _KEY_KINDS, _CHILD_MODES
    # not recursive: a body may be nested deeper than Python's recursion limit
    stack: list[tuple[Any, int]] = [(root, mode)]
    while stack:
        node, mode = stack.pop()
        if type(node) is list:
            _walk_list(node, mode, source, texts, stack, join=join)
        elif type(node) is not dict:
            continue
        elif mode >= _USER_KEYS:
            _walk_user_keys(node, mode, source, texts, keys, stack)
        else:
            skipped = skip if node is root else None
            for key, value in node.items():
                if skipped and key in skipped:
                    continue
                kind = type(value)
                if kind is str:
                    key_kind = key_kinds.get(key)
                    if key_kind is None:
                        if value and key[-3:] != "_id":
                            texts.append(TextRef(node, key, value, source))
                    elif key_kind == _PROTOCOL:
                        if value not in _COMMON_VALUES and value and not is_protocol_value(value):
                            texts.append(TextRef(node, key, value, source))
                    elif key_kind == _DEPENDS and is_text(key, value, mode, node):
                        texts.append(TextRef(node, key, value, source))
                elif kind is dict or kind is list:
                    value_mode = child_modes.get(key, PLAIN)
                    if value_mode != _NO_TEXT:
                        stack.append((value, value_mode))
                elif kind is int and key in _NUMERIC_TEXT_KEYS:
                    texts.append(TextRef(node, key, str(value), source))
    return texts + keys if keys else texts


_Stack = list[tuple[Any, int]]
_Texts = list[InspectedText]


def _walk_user_keys(node: dict[str, Any], mode: int, source: str, texts: _Texts, keys: _Texts, stack: _Stack) -> None:
    for key, value in node.items():
        kind = type(value)
        if kind is str:
            if value:
                texts.append(TextRef(node, key, value, source))
        elif kind is int:
            texts.append(TextRef(node, key, str(value), source))
        elif kind is dict or kind is list:
            value_mode = _USER_JSON if mode == _USER_JSON else _CHILD_MODES.get(key, PLAIN)
            stack.append((value, value_mode if value_mode != _NO_TEXT else PLAIN))
        if key:
            keys.append(KeyRef(node, key, key, source))


def _walk_list(node: list[Any], mode: int, source: str, texts: _Texts, stack: _Stack, *, join: bool) -> None:
    object_mode = mode
    if join and mode == PLAIN and len(node) > 1:
        joined = _join_parts(node, source)
        if joined is not None:
            texts.append(joined)
            object_mode = _PARTS_JOINED
    for index, value in enumerate(node):
        kind = type(value)
        if kind is dict:
            stack.append((value, object_mode))
        elif kind is str:
            if value:
                texts.append(TextRef(node, index, value, source))
        elif kind is list:
            stack.append((value, mode))
        elif kind is int and mode == _USER_JSON:
            texts.append(TextRef(node, index, str(value), source))


def is_protocol_value(text: str) -> bool:
    """Return True if `text` looks like a protocol value (a type, role or state)."""
    return text in _COMMON_VALUES or (len(text) <= _MAX_PROTOCOL_VALUE and _PROTOCOL_VALUE.fullmatch(text) is not None)


def unknown_protocol_values(node: dict[str, Any], keys: tuple[str, ...], source: str) -> list[InspectedText]:
    """Return the strings at `keys`, which expect protocol values, that do not look like one."""
    values = [(key, node.get(key)) for key in keys]
    return [
        TextRef(node, key, value, source)
        for key, value in values
        if type(value) is str and value and not is_protocol_value(value)
    ]


def is_text(key: str, value: str, mode: int, node: dict[str, Any]) -> bool:
    """Return True if the string at `key` of `node` is text; `mode` is the node's mode."""
    if not value or mode >= _USER_KEYS:
        return bool(value)
    key_kind = _KEY_KINDS.get(key)
    if key_kind is None:
        return not key.endswith("_id")
    if key_kind != _DEPENDS:
        return key_kind == _PROTOCOL and not is_protocol_value(value)
    if key == "text":
        return mode != _PARTS_JOINED  # already part of a JoinedText
    if key == "data":
        return mode != _AUDIO and not str(node.get("type", "")).endswith(("encrypted", "redacted_thinking"))
    return key != "result" or node.get("type") != "image_generation_call"


def has_user_keys(mode: int) -> bool:
    """Return True if the keys of an object in this mode are text."""
    return mode >= _USER_KEYS


def is_numeric_text(key: Any, mode: int) -> bool:
    """Return True if an integer at this key is text."""
    return mode >= _USER_KEYS or key in _NUMERIC_TEXT_KEYS


def child_mode(key: str, mode: int) -> int | None:
    """Return the mode of the value at `key` of an object in `mode`, or None if it contains no text."""
    if mode == _USER_JSON:
        return _USER_JSON
    value_mode = _CHILD_MODES.get(key, PLAIN)
    if value_mode != _NO_TEXT:
        return value_mode
    return PLAIN if mode == _USER_KEYS else None


def _join_parts(node: list[Any], source: str) -> JoinedText | None:
    """Join the texts of a list of content parts. Returns None if there are fewer than two."""
    refs = [
        TextRef(part, "text", part["text"], source)
        for part in node
        if type(part) is dict and type(part.get("text")) is str and part["text"]
    ]
    return JoinedText(refs, search_parts=True) if len(refs) > 1 else None
