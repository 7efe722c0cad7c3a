"""POST /v1/responses: OpenAI's Responses API."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
import orjson

from penstock.gateway.dialects.base import NO_RAW, Dialect, RequestMembers, StreamReader, positive, short_text
from penstock.gateway.dialects.event_texts import BREAK, EventTexts
from penstock.gateway.dialects.field_map import FREE, ID, SKIP, TEXT, UNKNOWN, FieldMap, join_parts
from penstock.gateway.dialects.openai import OpenAIReply, PartSearch, parse_usage
from penstock.gateway.dialects.openai_fields import ERROR, FORMAT, PARTS, REPLY, REQUEST, TOOLS
from penstock.gateway.dialects.sse_frames import Frame, Part
from penstock.gateway.dialects.texts import DELTA, Address, TextRef, Texts, walk
from penstock.gateway.refusal import Refusal

HEAD_BYTES = 1 << 12
"""In an event that is split into parts: bytes at its beginning that must contain its type."""
_TERMINAL = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
_KIND = re.compile(rb'"type"\s*:\s*"(response\.(?:completed|incomplete|failed))"')


class ResponsesBody(RequestMembers):
    max_output_tokens: Any = None
    previous_response_id: Any = None
    conversation: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    delta: Any = None
    sequence_number: Any = None
    error: Any = None
    response: msgspec.Raw = NO_RAW


class _Response(msgspec.Struct):
    id: Any = None
    usage: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode


class _ResponsesReader(StreamReader):
    def __init__(self) -> None:
        super().__init__()
        self._parts = PartSearch()
        self._part_finish: str | None = None
        """How the stream ends if the event that is split into parts is its last one."""

    @property
    def failed(self) -> bool:
        return self.finish in ("failed", "error")

    def read(self, frame: Frame) -> bool:
        data = frame.data
        if data is None:
            if isinstance(frame, Part):
                self._read_part(frame)
            return False
        self.events += 1
        try:
            event = _decode_event(data)
            if type(event.sequence_number) is int and event.sequence_number > self.sequence:
                self.sequence = event.sequence_number
            if type(event.delta) is str:
                self._text.add(event.delta)
            else:
                self._read_other(event)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False  # the caller gets the bytes as they are
        return False

    def _read_other(self, event: _Event) -> None:
        if (kind := _TERMINAL.get(event.type)) is not None:
            self.finish = kind
            self.terminal = True
        elif event.type == "error" or event.error:
            self.finish = "error"
            self.terminal = True
        if bytes(event.response) and (self.id is None or kind):
            response = _decode_response(event.response)
            self.id = short_text(response.id) or self.id
            if kind:  # the usage in earlier events is not final
                self.usage = parse_usage(response.usage)

    def _read_part(self, part: Part) -> None:
        if part.begins:
            kind = _KIND.search(part.raw[:HEAD_BYTES])
            self._part_finish = None if kind is None else _TERMINAL[kind[1].decode()]
        self._parts.add(part, self)
        if part.ends and self._part_finish is not None:
            self.finish = self._part_finish
            self.terminal = True


_ACTION = FieldMap(
    settings="type button x y scroll_x scroll_y timeout_ms max_output_length",
    text="query queries url pattern text keys command commands working_directory user",
    free="env",
    nested={"path": FieldMap(settings="x y"), "sources": FieldMap(settings="type", text="url title")},
)
_ITEMS = FieldMap(
    PARTS,
    ids="call_id approval_request_id container_id previous_response_id",
    text="name input code reason server_label error queries stdout stderr logs url",
    free="arguments attributes",
    settings="approve score exit_code",
    join=join_parts,
    nested={
        **dict.fromkeys(("content", "summary", "output", "outputs", "results"), PARTS),
        "action": _ACTION,
        "tools": TOOLS,
        "operation": FieldMap(settings="type", text="path diff"),
        **dict.fromkeys(
            ("pending_safety_checks", "acknowledged_safety_checks"), FieldMap(ids="id", text="code message")
        ),
    },
)
_ITEMS.by_type = {
    **dict.fromkeys(("reasoning", "compaction", "compaction_summary"), FieldMap(_ITEMS, skip="encrypted_content")),
    "image_generation_call": FieldMap(
        _ITEMS, media="result", text="revised_prompt", settings="action background output_format quality size"
    ),
}
_SHARED = FieldMap(
    settings="background max_output_tokens max_tool_calls truncation include temperature top_p parallel_tool_calls store "
    "service_tier top_logprobs prompt_cache_retention presence_penalty frequency_penalty",
    ids="previous_response_id",
    nested={"conversation": FieldMap(ids="id", string=ID)},
)


def _join_messages(items: list[Any]) -> list[list[tuple[dict[str, Any], str]]]:
    """Join the texts of consecutive messages: clients show them without a gap."""
    runs: list[list[tuple[dict[str, Any], str]]] = [[]]
    for item in items:
        if type(item) is not dict or item.get("type") != "message":
            runs.append([])
        elif type(item.get("content")) is list:
            runs[-1] += join_parts(item["content"])[0]
    return runs


_ECHO = (
    "instructions tools tool_choice metadata prompt input text reasoning user safety_identifier prompt_cache_key include "
    "moderation context_management access_programs"
)
"""Members of a response that echo the request. Output guardrails do not inspect the caller's text."""
_RESPONSE = FieldMap(
    REPLY,
    _SHARED,
    settings="status created_at completed_at",
    skip=f"billing {_ECHO}",
    nested={"incomplete_details": FieldMap(settings="reason"), "output": FieldMap(_ITEMS, join=_join_messages)},
)
_RESPONSE.members["output"].by_type = _ITEMS.by_type  # type: ignore[union-attr]
_EVENT = FieldMap(
    settings="type sequence_number output_index content_index summary_index annotation_index partial_image_index",
    ids="item_id",
    skip="obfuscation",
    media="partial_image_b64",
    tokens="logprobs",
    text="text refusal arguments input code message param",
    nested={
        "response": _RESPONSE,
        "item": _ITEMS,
        "part": PARTS,
        "annotation": PARTS.members["annotations"],
        "error": ERROR,
    },
)
_DELTA_EVENT = FieldMap(_EVENT, nested={"delta": SKIP})
_DELTA_KEYS = frozenset(
    (
        *("type", "delta", "item_id", "output_index", "content_index", "summary_index", "sequence_number"),
        *("logprobs", "obfuscation"),
    )
)
_AUDIO = ("response.audio.delta", "response.output_audio.delta")
_OUTPUT_TEXT = "response.output_text.delta"
_ENDS = frozenset((*_TERMINAL, "response.cancelled", "error"))
_INITIAL_TEXTS = {
    "output_text": ("text", _OUTPUT_TEXT),
    "refusal": ("refusal", "response.refusal.delta"),
    "reasoning_text": ("text", "response.reasoning_text.delta"),
    "summary_text": ("text", "response.reasoning_summary_text.delta"),
    "function_call": ("arguments", "response.function_call_arguments.delta"),
    "mcp_call": ("arguments", "response.mcp_call_arguments.delta"),
    "custom_tool_call": ("input", "response.custom_tool_call_input.delta"),
    "code_interpreter_call": ("code", "response.code_interpreter_call_code.delta"),
}
"""Part or item type -> the member that may hold the beginning of a text, and the type of the deltas that continue it."""
_USUAL_DELTAS = frozenset(delta for _, delta in _INITIAL_TEXTS.values())


class _ResponsesTexts(EventTexts):
    """Finds the texts in the events of a response."""

    fields = _EVENT
    sequence_key = "sequence_number"
    varying_keys = ("sequence_number", "obfuscation")

    def _read(self, payload: dict[str, Any], name: str, found: Texts) -> None:
        kind = payload.get("type")
        if type(kind) is not str:
            kind = name
        if not kind.startswith("response.") and kind not in _ENDS:
            super()._read(payload, name, found)
        elif kind.endswith(".delta"):
            if not self._is_usual_delta(payload):
                walk(payload, _DELTA_EVENT, kind, found)
            if kind not in _AUDIO:
                self._read_delta(payload, kind, found)
        else:
            walk(payload, _EVENT, kind, found)
            self._read_initial_text(payload, kind, found)
            found.ended += _ended(payload, kind)

    def _is_usual_delta(self, payload: dict[str, Any]) -> bool:
        """Return True if an event has no text but its delta."""
        item, kind = payload.get("item_id"), payload.get("type")
        return (
            payload.keys() <= _DELTA_KEYS
            and type(item) is str
            and item in self._ids
            and kind in _USUAL_DELTAS
            and not payload.get("logprobs")
        )

    def _read_delta(self, payload: dict[str, Any], kind: str, found: Texts) -> None:
        delta, address = payload.get("delta"), _address(payload, kind)
        if type(delta) is str:
            if delta:
                found.pieces.append((address, TextRef(payload, "delta", delta, DELTA, _kind(kind))))
        else:
            walk(delta, UNKNOWN, kind, found, address)

    def _read_initial_text(self, payload: dict[str, Any], kind: str, found: Texts) -> None:
        holder = payload.get("part", payload.get("item")) if kind.endswith(".added") else None
        if type(holder) is not dict or type(holder.get("type")) is not str or holder["type"] not in _INITIAL_TEXTS:
            return
        key, delta = _INITIAL_TEXTS[holder["type"]]
        for ref in found.complete:
            if isinstance(ref, TextRef) and ref.container is holder and ref.key == key and ref.text is holder[key]:
                found.complete.remove(ref)
                piece = TextRef(holder, key, ref.text, DELTA, _kind(delta))
                found.pieces.append((_address(payload, delta), piece))
                return

    def identity(self, payload: dict[str, Any]) -> tuple[str, str] | None:
        response = payload.get("response", payload)
        return super().identity(response) if type(response) is dict else None

    def joined_group(self, address: Address) -> Address | None:
        if len(address) != 3 or address[1] is None:
            return None
        item, _, kind = address
        return ("messages", kind) if kind == _OUTPUT_TEXT else (item, kind)


def _kind(delta: str) -> int:
    return FREE if delta.endswith("_arguments.delta") else TEXT


def _address(payload: dict[str, Any], kind: str) -> Address:
    """Return the item, the part, which may have several indexes, and the type of the deltas."""
    part = payload.get("content_index")
    if part is None and "summary_index" in payload:
        part = f"summary {payload['summary_index']}"
    address = payload.get("output_index"), part, kind
    if payload.keys() <= _DELTA_EVENT.members.keys():
        return address
    others = [
        (key, value) for key, value in payload.items() if key.endswith("_index") and key not in _DELTA_EVENT.members
    ]
    return *address, *others


def _ended(payload: dict[str, Any], kind: str) -> list[Address]:
    if kind in _ENDS:
        return [()]
    if kind == "response.output_item.added":
        item = payload.get("item")
        return [BREAK] if type(item) is dict and item.get("type") != "message" else []
    if not kind.endswith(".done"):
        return []
    address = _address(payload, kind.removesuffix("done") + "delta")
    if kind == "response.output_item.done":
        return [address[:1]]
    return [address[:2] if kind.endswith("_part.done") else address]


class Responses(Dialect):
    name = "responses"
    path = "/responses"
    body = ResponsesBody
    reply = OpenAIReply
    provider = "openai"
    default_base = "https://api.openai.com/v1"
    api_name = "Responses API"
    stores_replies = True
    reference_members = ("previous_response_id", "conversation")
    request_fields = FieldMap(
        REQUEST,
        _SHARED,
        text="instructions",
        nested={
            "input": _ITEMS,
            "reasoning": FieldMap(settings="effort summary generate_summary"),
            "text": FieldMap(settings="verbosity", nested={"format": FORMAT}),
            "prompt": FieldMap(ids="id", settings="version", nested={"variables": FieldMap(others=PARTS)}),
        },
    )
    reply_fields = FieldMap(REPLY, nested={"output": _RESPONSE.members["output"]})
    event_texts = _ResponsesTexts

    def reply_map(self, body: Any) -> FieldMap:
        is_response = type(body) is dict and ("output" in body or body.get("object") == "response")
        return _RESPONSE if is_response else self.reply_fields

    def check_body(self, body: ResponsesBody) -> None:
        conversation = body.conversation
        if type(conversation) is dict:
            conversation = conversation.get("id")
        for name, value in zip(self.reference_members, (body.previous_response_id, conversation), strict=True):
            if value is not None and type(value) is not str:
                raise Refusal(400, "invalid_request_error", f"`{name}` must be an id.", param=name)

    def output_limit(self, body: ResponsesBody, default: int) -> int:
        return positive(body.max_output_tokens) or default

    def references(self, body: ResponsesBody) -> list[tuple[str, str]]:
        conversation = body.conversation
        if conversation is None and body.previous_response_id is None:
            return []
        if type(conversation) is dict:
            conversation = conversation.get("id")
        members = zip(self.reference_members, (body.previous_response_id, conversation), strict=True)
        return [(name, value) for name, value in members if type(value) is str]

    def stream_reader(self) -> StreamReader:
        return _ResponsesReader()

    def error_event(self, kind: str, message: str, sequence: int, code: str | None = None) -> bytes:
        event = {"type": "error", "sequence_number": sequence, "code": code or kind, "message": message, "param": None}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"

    def block_event(
        self, kind: str, message: str, sequence: int, response_id: str | None, model: str, code: str | None
    ) -> bytes:
        response = {
            "id": response_id or "",
            "object": "response",
            "created_at": int(time.time()),
            "status": "failed",
            "error": {"code": code or kind, "message": message, "type": kind},
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": None,
            "metadata": {},
            "model": model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": None,
        }
        event = {"type": "response.failed", "sequence_number": sequence, "response": response}
        return b"event: response.failed\ndata: " + orjson.dumps(event) + b"\n\n"
