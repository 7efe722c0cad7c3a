"""Selection of the strings in a JSON body that are text to inspect.

A string is text unless its key excludes it, so that fields that are new to the API are inspected without a change here.
Excluded are encoded images, audio and files and their URLs, credentials for tool servers, and, in a reply, the fields that
echo the request. A file or URL whose data is UTF-8 text is inspected decoded. Ids are searched for literals only. Protocol
values (types, roles, states) are excluded if they look like one; any other string at their keys is text. In a map with
user-defined keys (metadata, prompt variables, schema properties, arguments that are not a string) all keys and integers are
text too, and so is everything in a JSON schema that is not part of the schema language.

Texts are searched one by one, so that no match extends from one message into the next. The exception is a list of content
parts: the reader sees them without a gap, so they are searched one by one and also joined. Token ids (a prompt or an input
of numbers) are not text; guardrails do not decode them.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any
from urllib.parse import quote, unquote_to_bytes

__all__ = [
    "PLAIN",
    "EncodedRef",
    "IdRef",
    "InspectedText",
    "JoinedText",
    "KeyRef",
    "TextRef",
    "child_mode",
    "decode_payload",
    "has_user_keys",
    "is_id",
    "is_numeric_text",
    "is_protocol_value",
    "is_text",
    "reply_texts",
    "request_texts",
    "unknown_protocol_values",
    "walk",
]

_NOT_TEXT, _PROTOCOL, _DEPENDS, _ID, _ENCODED = range(5)
_KEY_KINDS = {
    **dict.fromkeys(
        (
            *("model", "system_fingerprint", "obfuscation", "authorization", "signature"),
            *("encrypted_content", "b64_json", "partial_image_b64", "server_url"),
        ),
        _NOT_TEXT,
    ),
    **dict.fromkeys(("file_data", "file_url", "image_url"), _ENCODED),
    **dict.fromkeys(
        (
            *(
                "id",
                "conversation",
                "call_id",
                "item_id",
                "response_id",
                "previous_response_id",
                "message_id",
                "file_id",
            ),
            *("tool_call_id", "tool_use_id", "container_id", "vector_store_id", "approval_request_id", "request_id"),
        ),
        _ID,
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
"""Keys whose string is not text, is a protocol value, is text depending on the rest of the object, is the id of an API
object, or may be encoded text."""

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
        *("headers", "include", "modalities", "usage", "logprobs", "top_logprobs", "prompt_logprobs"),
        *("token_ids", "prompt_token_ids", "bytes", "embedding", "stream_options"),
    )
)
"""Keys whose value contains no text, whatever its type."""

_SCHEMA_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
"""Keys of maps with user-defined keys and schemas as values."""

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

_SCHEMA_WORDS = frozenset(
    (
        *(
            "type",
            "properties",
            "required",
            "items",
            "enum",
            "const",
            "default",
            "description",
            "title",
            "format",
            "anyOf",
        ),
        *("oneOf", "allOf", "not", "if", "then", "else", "$defs", "definitions", "$ref", "$id", "$schema", "examples"),
        *(
            "additionalProperties",
            "patternProperties",
            "propertyNames",
            "unevaluatedProperties",
            "prefixItems",
            "contains",
        ),
        *(
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "minLength",
            "maxLength",
            "pattern",
        ),
        *("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "dependentRequired", "$comment"),
        *("readOnly", "writeOnly", "deprecated", "nullable", "strict", "name", "schema", "example"),
    )
)
"""Keys of JSON schemas. Any other key of a schema is text."""
_SCHEMA_TYPES = frozenset(("object", "string", "number", "integer", "boolean", "array", "null", "json_schema"))

PLAIN, _PARTS_JOINED, _AUDIO, _MEDIA, _SCHEMA, _USER_KEYS, _SCHEMA_MAP, _USER_JSON, _NO_TEXT = range(9)
_CHILD_MODES = {
    **dict.fromkeys(_OPAQUE, _NO_TEXT),
    **dict.fromkeys(_SCHEMA_MAPS, _SCHEMA_MAP),
    "variables": _USER_KEYS,
    **dict.fromkeys(_USER_JSON_KEYS, _USER_JSON),
    **dict.fromkeys(("input_audio", "audio"), _AUDIO),
    **dict.fromkeys(("parameters", "schema", "input_schema", "json_schema"), _SCHEMA),
    "image_url": _MEDIA,
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

    def written(self, text: str) -> str:
        """Return `text` as it is written in the body."""
        return text


class KeyRef(TextRef):
    """A user-defined object key; `text` is the key itself."""

    __slots__ = ()


class IdRef(TextRef):
    """The id of an API object."""

    __slots__ = ()


class EncodedRef(TextRef):
    """An encoded text, such as the data of a file; `text` is decoded."""

    __slots__ = ("_head", "_is_base64")

    def __init__(self, container: Any, key: Any, text: str, source: str, head: str, *, is_base64: bool) -> None:
        super().__init__(container, key, text, source)
        self._head = head
        self._is_base64 = is_base64

    def written(self, text: str) -> str:
        return self._head + (base64.b64encode(text.encode()).decode() if self._is_base64 else quote(text))


class JoinedText:
    """A text in parts, each of which consists of one or more strings. Each part is searched, and so are the parts joined."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[list[TextRef]]) -> None:
        self.parts = parts


InspectedText = TextRef | JoinedText


def request_texts(body: Any) -> list[InspectedText]:
    return walk(body, "request")


def reply_texts(body: Any, source: str = "reply") -> list[InspectedText]:
    """Return the texts of a whole JSON reply of any shape, or of the response object within an event."""
    if type(body) is not dict:
        return walk(body, source)
    if body.get("object") != "response" and "output" not in body:
        return walk(body, source)
    texts = walk(body, source, skip=_REQUEST_ECHO)
    output = body.get("output")
    return _join_messages(texts, output, source) if type(output) is list and len(output) > 1 else texts


def walk(root: Any, source: str, *, skip: frozenset[str] = frozenset(), mode: int = PLAIN) -> list[InspectedText]:
    """Return the texts below `root`, except at the root's keys in `skip`."""
    texts: list[InspectedText] = []
    keys: list[InspectedText] = []
    key_kinds, child_modes = _KEY_KINDS, _CHILD_MODES
    # not recursive: a body may be nested deeper than Python's recursion limit
    stack: list[tuple[Any, int]] = [(root, mode)]
    while stack:
        node, mode = stack.pop()
        if type(node) is list:
            _walk_list(node, mode, source, texts, stack)
        elif type(node) is not dict:
            continue
        elif mode >= _MEDIA:
            _walk_special(node, mode, source, texts, keys, stack)
        else:
            skipped = skip if node is root else None
            for key, value in node.items():
                if skipped and key in skipped:
                    continue
                kind = type(value)
                if kind is str:
                    key_kind = key_kinds.get(key)
                    if key_kind is None:
                        if value:
                            texts.append(TextRef(node, key, value, source))
                    elif key_kind == _PROTOCOL:
                        if value not in _COMMON_VALUES and value and not is_protocol_value(value):
                            texts.append(TextRef(node, key, value, source))
                    elif key_kind == _ID:
                        texts.append(IdRef(node, key, value, source))
                    elif key_kind == _ENCODED:
                        texts += _encoded_text(node, key, value, source)
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


def _walk_special(node: dict[str, Any], mode: int, source: str, texts: _Texts, keys: _Texts, stack: _Stack) -> None:
    if mode == _MEDIA:
        for key, value in node.items():
            if type(value) is str:
                texts += _encoded_text(node, key, value, source)
    elif mode == _SCHEMA:
        _walk_schema(node, source, texts, keys, stack)
    else:
        _walk_user_keys(node, mode, source, texts, keys, stack)


def _walk_schema(node: dict[str, Any], source: str, texts: _Texts, keys: _Texts, stack: _Stack) -> None:
    for key, value in node.items():
        kind = type(value)
        if kind is str:
            if value and not (key == "type" and value in _SCHEMA_TYPES):
                texts.append(TextRef(node, key, value, source))
        elif kind is dict or kind is list:
            value_mode = _CHILD_MODES.get(key, _SCHEMA)
            stack.append((value, value_mode if value_mode != _NO_TEXT else _SCHEMA))
        if key not in _SCHEMA_WORDS:
            keys.append(KeyRef(node, key, key, source))


def _encoded_text(node: Any, key: Any, value: str, source: str) -> _Texts:
    """Return the text that a data URL or the data of a file contains, if it is UTF-8 text."""
    head, comma, payload = value.partition(",")
    if not comma or head[:5].lower() != "data:":
        if key != "file_data":
            return []
        head, payload, is_base64 = "", value, True
    else:
        head, is_base64 = head + comma, head.lower().endswith(";base64")
    # an image or a PDF is recognised by its first bytes
    if decode_payload(payload[:_PROBE], encoded=is_base64) is None:
        return []
    text = decode_payload(payload, encoded=is_base64)
    return [EncodedRef(node, key, text, source, head, is_base64=is_base64)] if text else []


def decode_payload(payload: str, *, encoded: bool) -> str | None:
    """Return the text of the payload of a data URL, or None if it is not UTF-8. A truncated one is decoded to its end."""
    data = unquote_to_bytes(payload)
    if encoded:
        data = data.translate(_URL_SAFE, b" \r\n\t=")
        data = data[: len(data) - (len(data) % 4 == 1)]
        try:
            data = base64.b64decode(data + b"=" * (-len(data) % 4), validate=True)
        except binascii.Error:
            return None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if len(data) - error.start > _MAX_CHARACTER:
            return None
        text = data[: error.start].decode()
    return None if "\0" in text else text


_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_PROBE = 4096
_MAX_CHARACTER = 3
"""Bytes of an incomplete UTF-8 character."""


def _walk_user_keys(node: dict[str, Any], mode: int, source: str, texts: _Texts, keys: _Texts, stack: _Stack) -> None:
    for key, value in node.items():
        kind = type(value)
        if kind is str:
            if value:
                texts.append(TextRef(node, key, value, source))
        elif kind is int:
            texts.append(TextRef(node, key, str(value), source))
        elif kind is dict or kind is list:
            if mode == _USER_KEYS:
                value_mode = _CHILD_MODES.get(key, PLAIN)
                stack.append((value, value_mode if value_mode != _NO_TEXT else PLAIN))
            else:
                stack.append((value, _SCHEMA if mode == _SCHEMA_MAP else _USER_JSON))
        if key:
            keys.append(KeyRef(node, key, key, source))


def _walk_list(node: list[Any], mode: int, source: str, texts: _Texts, stack: _Stack) -> None:
    object_mode = mode
    if mode == PLAIN and len(node) > 1:
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
        return True
    if key_kind != _DEPENDS:
        return key_kind == _PROTOCOL and not is_protocol_value(value)
    if key == "text":
        return mode != _PARTS_JOINED  # already part of a JoinedText
    if key == "data":
        return mode != _AUDIO and not str(node.get("type", "")).endswith(("encrypted", "redacted_thinking"))
    return key != "result" or node.get("type") != "image_generation_call"


def is_id(key: str, mode: int) -> bool:
    """Return True if the string at `key` is the id of an API object."""
    return mode < _SCHEMA and _KEY_KINDS.get(key) == _ID


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
    return PLAIN if has_user_keys(mode) else None


def _join_parts(node: list[Any], source: str) -> JoinedText | None:
    """Join the texts of a list of content parts. Returns None if there are fewer than two."""
    refs = _part_texts(node, source)
    return JoinedText([[ref] for ref in refs]) if len(refs) > 1 else None


def _part_texts(node: list[Any], source: str) -> list[TextRef]:
    return [
        TextRef(part, "text", part["text"], source)
        for part in node
        if type(part) is dict and type(part.get("text")) is str and part["text"]
    ]


def _join_messages(texts: list[InspectedText], output: list[Any], source: str) -> list[InspectedText]:
    """Join the texts of consecutive messages: clients show them without a gap. `texts` has them one by one."""
    runs: list[list[list[TextRef]]] = [[]]
    for item in output:
        if type(item) is not dict or item.get("type") != "message":
            runs.append([])
        elif type(item.get("content")) is list and (refs := _part_texts(item["content"], source)):
            runs[-1].append(refs)
    joined = [JoinedText([[ref] for refs in run for ref in refs]) for run in runs if len(run) > 1]
    if not joined:
        return texts
    containers = {id(part[0].container) for text in joined for part in text.parts}
    return [text for text in texts if not _is_text_of(text, containers)] + list(joined)


def _is_text_of(text: InspectedText, containers: set[int]) -> bool:
    """Return True if this is the text of one of the parts, or of several of them joined."""
    ref = text if isinstance(text, TextRef) else text.parts[0][0]
    return ref.key == "text" and id(ref.container) in containers
