"""Extraction of texts from stream events: pieces that continue a text, complete texts, and ends of texts.

A piece has the address of its text: (item, part, delta type) in a response, (choice, field path) in a chat or completion.
After an event that ends a text, nothing needs to be held back for that text, unless another one continues it without a gap:
the next part, or the next message if no other item is between them (`joined_group`).

A chat has no such events before the choice's finish reason. Its stream switches between fields: from reasoning to content,
from one tool call to the next, and perhaps back. At a switch a name is complete; another field may continue, but later
events need not wait for it: its held pieces can be sent later, as events of their own (`single_piece_chunk`).
"""

from __future__ import annotations

from typing import Any

from penstock.gateway.guardrails.texts import (
    PLAIN,
    IdRef,
    InspectedText,
    KeyRef,
    TextRef,
    child_mode,
    has_user_keys,
    is_id,
    is_numeric_text,
    is_protocol_value,
    is_text,
    reply_texts,
    unknown_protocol_values,
    walk,
)

__all__ = [
    "BREAK",
    "DELTA",
    "NO_TEXTS",
    "Address",
    "EventReader",
    "EventTexts",
    "is_arguments",
    "joined_group",
    "single_piece_chunk",
]

Address = tuple[Any, ...]

DELTA = "delta"
"""The `source` of pieces."""

BREAK: Address = ("break",)
"""In place of the address prefix of an ended text: what follows is not shown as a continuation of the texts so far."""

_OUTPUT_TEXT = "response.output_text.delta"
_BLOCK_TEXT = ("delta", "text")
"""The path of the text of a content block in `/v1/messages`."""
_DELTA_KEYS = frozenset(
    (
        *("type", "delta", "item_id", "output_index", "content_index", "summary_index", "sequence_number"),
        *("logprobs", "obfuscation"),
    )
)
_CHUNK_KEYS = frozenset(
    (
        *("id", "object", "created", "model", "choices", "system_fingerprint", "service_tier", "usage"),
        *("obfuscation", "prompt_token_ids"),
    )
)
_CHOICE_KEYS = frozenset(("index", "delta", "text", "finish_reason", "logprobs", "stop_reason", "token_ids"))
_AUDIO_DELTAS = frozenset(("response.audio.delta", "response.output_audio.delta"))
_RESPONSE = frozenset(("response",))
_TERMINAL = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled", "error"))

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
"""Part or item type -> the field that may hold the beginning of a text, and the type of the deltas that continue it."""

_MAX_DEPTH = 16
_MAX_IDS = 64

EventTexts = tuple[list[tuple[Address, TextRef]], list[InspectedText], list[Address], list[Address]]
"""Pieces with their addresses; complete texts; address prefixes of texts that have ended; addresses that the stream has
switched away from."""

NO_TEXTS: EventTexts = ([], [], [], [])

_CHUNK_HEADER_KEYS = ("id", "object", "created", "model", "system_fingerprint", "service_tier")


class EventReader:
    """Reads the events of one stream."""

    __slots__ = ("_fields", "_ids")

    def __init__(self) -> None:
        self._ids: set[str] = set()
        """Ids that have been read, since every event repeats them."""
        self._fields: dict[Any, tuple[Address, ...]] = {}
        """Choice index -> addresses of the fields with text in the choice's last event with text."""

    def read(self, payload: Any, name: bytes) -> EventTexts:
        if type(payload) is not dict:
            return [], walk([payload], "event"), [], []
        # Decided by shape, not by route: an upstream may reply in another dialect than the request's.
        choices = payload.get("choices")
        if type(choices) is list:
            texts = self._chunk(payload, choices)
            key = "id"
        else:
            texts = _response_event(payload, name)
            key = "item_id"
        value = payload.get(key)
        if type(value) is str and value not in self._ids:
            if len(self._ids) < _MAX_IDS:
                self._ids.add(value)
            pieces, complete, ended, switched = texts
            texts = pieces, [*complete, IdRef(payload, key, value, "event")], ended, switched
        return texts

    def _chunk(self, payload: dict[str, Any], choices: list[Any]) -> EventTexts:
        pieces: list[tuple[Address, TextRef]] = []
        ended: list[Address] = []
        switched: list[Address] = []
        complete: list[InspectedText] = []
        if not payload.keys() <= _CHUNK_KEYS:
            complete = walk(payload, "event", skip=_CHUNK_KEYS)
        if payload.get("object") != "chat.completion.chunk" or "service_tier" in payload:
            complete += unknown_protocol_values(payload, ("object", "service_tier"), "event")
        for position, choice in enumerate(choices):
            if type(choice) is not dict:
                complete += walk(choice, "event")
                continue
            if not choice.keys() <= _CHOICE_KEYS:
                complete += walk(choice, "event", skip=_CHOICE_KEYS)
            index = choice.get("index", position)
            first = len(pieces)
            delta = choice.get("delta")
            if type(delta) is dict and delta.keys() <= {"content", "role"} and type(delta.get("content")) is str:
                if delta["content"]:
                    pieces.append(((index, None, "content"), TextRef(delta, "content", delta["content"], DELTA)))
                if "role" in delta:
                    complete += unknown_protocol_values(delta, ("role",), "event")
            elif delta:
                pieces += [((index, None, path), ref) for path, ref in _text_leaves(choice, "delta", delta, complete)]
            text = choice.get("text")
            if text:
                pieces += [((index, None, path), ref) for path, ref in _text_leaves(choice, "text", text, complete)]
            if type(index) is int and len(pieces) > first:
                for address in self._switch_fields(index, tuple([address for address, _ in pieces[first:]])):
                    (ended if _is_name_field(address) else switched).append(address)
            if choice.get("finish_reason") is not None or choice.get("stop_reason") is not None:
                complete += unknown_protocol_values(choice, ("finish_reason", "stop_reason"), "event")
            if choice.get("finish_reason"):
                ended.append((index,))
                if type(index) is int:
                    self._fields.pop(index, None)
        return pieces, complete, ended, switched

    def _switch_fields(self, index: int, fields: tuple[Address, ...]) -> list[Address]:
        """Record the fields that have text now, and return those that had text before and have none now."""
        before = self._fields.get(index, ())
        if before == fields:
            return []
        self._fields[index] = fields
        return [address for address in before if address not in fields]


def is_arguments(address: Address) -> bool:
    """Return True if the text is the arguments of a tool call."""
    field = address[2] if len(address) > 2 else None
    if type(field) is tuple:
        field = field[-1]
    return field in _ARGUMENTS or (type(field) is str and field.endswith("_arguments.delta"))


_ARGUMENTS = ("arguments", "partial_json")


def joined_group(address: Address) -> Address | None:
    """Return the key of the texts that a reader sees joined to the one at `address`, or None if there are none."""
    if len(address) != 4:
        return None
    item, part, kind, others = address
    if part is not None:
        return ("messages", kind, others) if kind == _OUTPUT_TEXT else (item, kind, others)
    return ("blocks", kind, others) if kind == _BLOCK_TEXT else None


def _is_name_field(address: Address) -> bool:
    path = address[-1]
    return type(path) is tuple and path[-1] == "name"


def single_piece_chunk(payload: dict[str, Any], address: Address, ref: TextRef) -> dict[str, Any] | None:
    """Return a chunk like `payload` that contains only the piece `ref`, or None if its path cannot be rebuilt."""
    index, _, path = address
    steps = path if type(path) is tuple else (path,)
    if any(ref.container is choice for choice in payload["choices"]):
        choice = {"index": index, ref.key: ref.text}
    else:
        delta: Any = ref.text
        for step in reversed(steps):
            if type(step) is str:
                delta = {step: delta}
            elif type(step) is int:
                delta = [{"index": step, **delta} if type(delta) is dict else delta]
            else:
                return None
        choice = {"index": index, "delta": delta}
    header = {name: payload[name] for name in _CHUNK_HEADER_KEYS if name in payload}
    return {**header, "choices": [{**choice, "finish_reason": None}]}


def _response_event(payload: dict[str, Any], name: bytes) -> EventTexts:
    kind = payload.get("type")
    if type(kind) is not str:
        kind = name.decode("utf-8", "replace")
    if kind.endswith(".delta"):
        delta = payload.get("delta")
        if payload.keys() <= _DELTA_KEYS and type(delta) is str:
            if kind in _AUDIO_DELTAS or not delta:
                return NO_TEXTS
            plain_address: Address = (payload.get("output_index"), _part_index(payload), kind, None)
            unknown = [] if is_protocol_value(kind) else unknown_protocol_values(payload, ("type",), "event")
            return [(plain_address, TextRef(payload, "delta", delta, DELTA))], unknown, [], []
        complete = walk(payload, kind, skip=_DELTA_KEYS) + unknown_protocol_values(payload, ("type",), "event")
        if kind in _AUDIO_DELTAS:
            return [], complete, [], []
        address = _address(payload, kind)
        pieces = [((*address, path), ref) for path, ref in _text_leaves(payload, "delta", delta, complete)]
        if type(delta) is str:
            pieces = [(address, ref) for _, ref in pieces]
        return pieces, complete, [], []
    if not kind.startswith("response.") and kind not in _TERMINAL:
        # Another dialect: strings at the same path of two events may be one text.
        complete = []
        index = payload.get("index")
        pieces = [((index, None, path, kind), ref) for path, ref in _text_leaves(None, None, payload, complete)]
        ended = [(index,)] if kind == "content_block_stop" else [()] if kind == "message_stop" else []
        return pieces, complete, ended + _breaks(payload, "content_block", "text"), []
    complete = walk(payload, kind, skip=_RESPONSE)
    response = payload.get("response")
    if type(response) is dict:
        complete += reply_texts(response, kind)
    elif response is not None:
        complete += walk(response, kind)
    return _initial_text(payload, kind, complete), complete, _ended_addresses(payload, kind), []


def _part_index(payload: dict[str, Any]) -> Any:
    part = payload.get("content_index")
    if part is None and "summary_index" in payload:
        return f"summary {payload['summary_index']}"
    return part


def _address(payload: dict[str, Any], kind: str) -> Address:
    others = [
        (key, value)
        for key, value in payload.items()
        if key.endswith("_index") and key not in ("output_index", "content_index", "summary_index")
    ]
    return payload.get("output_index"), _part_index(payload), kind, tuple(others) or None


def _ended_addresses(payload: dict[str, Any], kind: str) -> list[Address]:
    if kind in _TERMINAL:
        return [()]
    if kind == "response.output_item.added":
        return _breaks(payload, "item", "message")
    if not kind.endswith(".done"):
        return []
    address = _address(payload, kind.removesuffix("done") + "delta")
    if kind == "response.output_item.done":
        return [address[:1]]
    if kind.endswith("_part.done"):
        return [address[:2]]
    return [address]


def _breaks(payload: dict[str, Any], key: str, continuing: str) -> list[Address]:
    """Return a break if the payload begins an item, or a block, of another type than the one that continues a text."""
    item = payload.get(key)
    return [BREAK] if type(item) is dict and item.get("type") != continuing else []


def _initial_text(payload: dict[str, Any], kind: str, complete: list[InspectedText]) -> list[tuple[Address, TextRef]]:
    if not kind.endswith(".added"):
        return []
    holder = payload.get("part", payload.get("item"))
    if type(holder) is not dict or type(holder.get("type")) is not str or holder["type"] not in _INITIAL_TEXTS:
        return []
    field, delta = _INITIAL_TEXTS[holder["type"]]
    text = holder.get(field)
    if type(text) is not str or not text:
        return []
    complete[:] = [
        ref for ref in complete if not (isinstance(ref, TextRef) and ref.container is holder and ref.key == field)
    ]
    return [(_address(payload, delta), TextRef(holder, field, text, DELTA))]


def _text_leaves(
    container: Any, key: Any, node: Any, complete: list[InspectedText], mode: int = PLAIN, path: Address = ()
) -> list[tuple[Any, TextRef]]:
    """Return the texts below a delta with their paths, which identify list members by `index` if they have one.

    Keys and numbers that are text never continue in another event, so they are added to `complete`.
    """
    if type(node) is str:
        # A path of one key is unwrapped, so that the plain and the nested form have the same address.
        return [(path[0] if len(path) == 1 else path or key, TextRef(container, key, node, DELTA))] if node else []
    if type(node) is int:
        if is_numeric_text(key, mode):
            complete.append(TextRef(container, key, str(node), "event"))
        return []
    if len(path) > _MAX_DEPTH:
        return [((*path, "below"), ref) for ref in walk(node, DELTA, mode=mode) if isinstance(ref, TextRef)]
    leaves: list[tuple[Any, TextRef]] = []
    if type(node) is dict:
        if has_user_keys(mode):
            complete += [KeyRef(node, name, name, "event") for name in node if name]
        for name, value in node.items():
            if type(value) is str:
                if is_id(name, mode):
                    complete.append(IdRef(node, name, value, "event"))
                elif is_text(name, value, mode, node):
                    leaves += _text_leaves(node, name, value, complete, mode, (*path, name))
            elif type(value) is int:
                leaves += _text_leaves(node, name, value, complete, mode)
            elif (below := child_mode(name, mode)) is not None:
                leaves += _text_leaves(node, name, value, complete, below, (*path, name))
    elif type(node) is list:
        for position, value in enumerate(node):
            index = value.get("index", position) if type(value) is dict else position
            leaves += _text_leaves(node, position, value, complete, mode, (*path, index))
    return leaves
