"""POST /v1/messages: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from penstock.gateway.dialects.base import (
    Dialect,
    Reply,
    RequestMembers,
    StreamReader,
    Usage,
    positive,
    short_text,
    token_count,
)
from penstock.gateway.dialects.event_texts import BREAK, EventTexts
from penstock.gateway.dialects.field_map import ID, SCHEMA, SETTING, SKIP, FieldMap, join_parts
from penstock.gateway.dialects.media_parts import MediaKind
from penstock.gateway.dialects.sse_frames import Frame
from penstock.gateway.dialects.texts import Address, Texts, walk
from penstock.gateway.refusal import Refusal

API_VERSION = "2023-06-01"


class MessagesBody(RequestMembers):
    max_tokens: Any = None


class MessagesReply(Reply):
    stop_reason: Any = None

    @property
    def finish(self) -> str | None:
        return short_text(self.stop_reason) or ("error" if self.error else None)

    @property
    def reported(self) -> Usage | None:
        return _parse_usage(self.usage)


class _Delta(msgspec.Struct):
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    stop_reason: Any = None


class _Message(msgspec.Struct):
    id: Any = None
    usage: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    message: _Message | None = None
    delta: _Delta | None = None
    usage: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class _MessagesReader(StreamReader):
    def __init__(self) -> None:
        super().__init__()
        self._first_usage: dict[str, Any] = {}
        """The usage at the start of the message. The one at its end may leave out the input."""

    def read(self, frame: Frame) -> bool:
        if frame.data is None:
            return False
        self.events += 1
        try:
            self._event(_decode_event(frame.data))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False  # the caller gets the bytes as they are
        return False

    def _event(self, event: _Event) -> None:
        if event.message is not None:
            self.id = self.id or short_text(event.message.id)
            if type(event.message.usage) is dict:
                self._first_usage = event.message.usage
                self.usage_at_start = _parse_usage(self._first_usage)
        delta = event.delta
        if delta is not None:
            for text in (delta.text, delta.thinking, delta.partial_json):
                if type(text) is str:
                    self._text.add(text)
            self.finish = short_text(delta.stop_reason) or self.finish
        if type(event.usage) is dict:
            self.usage = _parse_usage({**self._first_usage, **event.usage})
        if event.type == "error":
            self.finish = "error"
        self.terminal = self.terminal or event.type in ("message_stop", "error")


_OBJECT = FieldMap(settings="type role", ids="id", nested={"cache_control": FieldMap(settings="type ttl")})
_SOURCE = FieldMap(settings="type media_type", files="data", media="url", ids="file_id")
_SOURCE.by_type = {"text": FieldMap(_SOURCE, text="data")}
_CITATION = FieldMap(
    _OBJECT,
    text="cited_text document_title title url source",
    ids="file_id",
    settings="document_index start_char_index end_char_index start_page_number end_page_number start_block_index "
    "end_block_index search_result_index enabled",
    skip="encrypted_index",
)
_BLOCKS = FieldMap(
    _OBJECT,
    text="text thinking title context url page_age stdout stderr",
    free="partial_json",
    ids="tool_use_id file_id",
    settings="is_error error_code return_code",
    nested={"source": _SOURCE, "citations": _CITATION, "citation": _CITATION},
    join=join_parts,
)
_BLOCKS.members["content"] = _BLOCKS
_TOOL_USE = FieldMap(_BLOCKS, names="name", text="server_name", free="input", nested={"caller": _OBJECT})
_BLOCKS.by_type = {
    **dict.fromkeys(("tool_use", "server_tool_use", "mcp_tool_use"), _TOOL_USE),
    **dict.fromkeys(("thinking", "signature_delta"), FieldMap(_BLOCKS, skip="signature")),
    "redacted_thinking": FieldMap(_BLOCKS, skip="data"),
    "web_search_result": FieldMap(_BLOCKS, skip="encrypted_content"),
    "search_result": FieldMap(_BLOCKS, text="source"),
}
_TOOLS = FieldMap(
    _OBJECT,
    text="name description allowed_domains blocked_domains",
    free="input_examples",
    settings="max_uses display_width_px display_height_px display_number defer_loading strict",
    nested={"input_schema": SCHEMA},
)
_ERROR = FieldMap(settings="type", text="message")
_REPLY = FieldMap(
    _OBJECT,
    settings="stop_reason",
    text="stop_sequence",
    ids="request_id",
    skip="model usage",
    nested={"content": _BLOCKS, "error": _ERROR, "container": FieldMap(ids="id", settings="expires_at")},
)
_EVENT = FieldMap(
    settings="type index",
    skip="usage",
    nested={**dict.fromkeys(("delta", "message"), _REPLY), "error": _ERROR, "content_block": _BLOCKS},
)
_PIECES = {"content_block_start": "content_block", "content_block_delta": "delta"}
_AROUND = {key: FieldMap(_EVENT, nested={key: SKIP}) for key in _PIECES.values()}


class _MessagesTexts(EventTexts):
    """Finds the texts in the events of a message. A block may begin with text, which its deltas continue."""

    fields = _EVENT

    def _read(self, payload: dict[str, Any], name: str, found: Texts) -> None:
        kind, index = payload.get("type", name), payload.get("index")
        key = _PIECES.get(kind) if type(kind) is str else None
        if key is not None and type(payload.get(key)) is dict:
            block = payload[key]
            self._walk_around(payload, frozenset((key,)), _AROUND[key], kind, found)
            walk(block, _BLOCKS, "event", found, (index,))
            if key == "content_block" and block.get("type") != "text":
                found.ended.append(BREAK)
        elif kind in ("message_start", "message_delta", "error", "ping"):
            walk(payload, _EVENT, str(kind), found)
        else:
            super()._read(payload, name, found)
            if kind == "content_block_stop":
                found.ended.append((index,))
            elif kind == "message_stop":
                found.ended.append(())

    def identity(self, payload: dict[str, Any]) -> tuple[str, str] | None:
        message = payload.get("message")
        return super().identity(message) if type(message) is dict else None

    def joined_group(self, address: Address) -> Address | None:
        return ("blocks",) if address[1:] == ("text",) else None


class Messages(Dialect):
    name = "messages"
    path = "/messages"
    body = MessagesBody
    reply = MessagesReply
    provider = adapter = "anthropic"
    default_base = "https://api.anthropic.com/v1"
    api_name = "Messages API"
    restores_model = True
    event_model_path = ("message", "model")
    id_headers = (*Dialect.id_headers, "request-id")
    media_types: Mapping[str, MediaKind] = {"image": "images", "document": "files"}
    request_fields = FieldMap(
        skip="model",
        settings="max_tokens stream temperature top_p top_k service_tier",
        text="stop_sequences",
        labels="metadata",
        nested={
            "system": _BLOCKS,
            "messages": FieldMap(_OBJECT, nested={"content": _BLOCKS}),
            "tools": _TOOLS,
            "tool_choice": FieldMap(settings="type disable_parallel_tool_use", text="name", string=SETTING),
            "thinking": FieldMap(settings="type budget_tokens"),
            "output_config": FieldMap(
                settings="effort", nested={"format": FieldMap(settings="type", nested={"schema": SCHEMA})}
            ),
            "container": FieldMap(ids="id", string=ID),
            "mcp_servers": FieldMap(settings="type", text="name", skip="url authorization_token"),
        },
    )
    reply_fields = _REPLY
    event_texts = _MessagesTexts

    def output_limit(self, body: MessagesBody, default: int) -> int:
        return positive(body.max_tokens) or default

    def credential_headers(self, secret: str) -> list[tuple[str, str]]:
        return [("X-Api-Key", secret)]

    def default_headers(self) -> list[tuple[str, str]]:
        return [("anthropic-version", API_VERSION)]

    def stream_reader(self) -> StreamReader:
        return _MessagesReader()

    def error_body(self, refusal: Refusal) -> bytes:
        return orjson.dumps({"type": "error", "error": {"type": refusal.type, "message": refusal.message}})

    def error_event(self, kind: str, message: str, sequence: int, code: str | None = None) -> bytes:
        del sequence, code
        event = {"type": "error", "error": {"type": kind, "message": message}}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"


def _parse_usage(usage: object) -> Usage | None:
    """Parse a usage object. Its `input_tokens` do not include those that were read from or written to the cache."""
    if type(usage) is not dict or type(usage.get("input_tokens")) is not int:
        return None
    cached = token_count(usage.get("cache_read_input_tokens"))
    written = token_count(usage.get("cache_creation_input_tokens"))
    output = token_count(usage.get("output_tokens"))
    return Usage(token_count(usage["input_tokens"]) + cached + written, output, 0, cached)
