"""What an event of a stream says: text that goes on where an earlier event stopped, text that is complete, and ends.

A text that goes on has an address (`Key`): of a response (item, part, kind of delta), of a chat or a completion (choice,
path of the field). An event that ends a text tells that no more is to come, so nothing need be held back for it.

A chat has no such events until the choice's finish reason. There a stream moves from one field to another: from reasoning
to content, from one tool call to the next, and perhaps back. A name is complete then; any other field is not, but what
comes in the meantime need not wait for it: a piece of it can leave later, as an event of its own (`alone`).
"""

from __future__ import annotations

from typing import Any

from penstock.gateway.guardrails.texts import (
    PLAIN,
    KeySlot,
    Line,
    Slot,
    has_own_keys,
    is_text,
    is_text_as_number,
    is_word,
    mode_below,
    odd_words,
    reply_texts,
    walk,
)

__all__ = ["DELTA", "NOTHING", "Key", "Reader", "Reading", "alone"]

Key = tuple[Any, ...]

DELTA = "delta"
"""The source of slots whose text goes on."""

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
_BINARY = frozenset(("response.audio.delta", "response.output_audio.delta"))
_RESPONSE = frozenset(("response",))
_TERMINAL = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled", "error"))

_BEGUN = {
    "output_text": ("text", "response.output_text.delta"),
    "refusal": ("refusal", "response.refusal.delta"),
    "reasoning_text": ("text", "response.reasoning_text.delta"),
    "summary_text": ("text", "response.reasoning_summary_text.delta"),
    "function_call": ("arguments", "response.function_call_arguments.delta"),
    "mcp_call": ("arguments", "response.mcp_call_arguments.delta"),
    "custom_tool_call": ("input", "response.custom_tool_call_input.delta"),
    "code_interpreter_call": ("code", "response.code_interpreter_call_code.delta"),
}
"""Parts and items that may come with the beginning of a text, and the deltas that it goes on in."""

_DEEP = 16

Reading = tuple[list[tuple[Key, Slot]], list[Slot | Line], list[Key], list[Key]]
"""Text that goes on with its address; complete text; beginnings of the addresses at which texts have ended; addresses that
the stream has moved away from."""

NOTHING: Reading = ([], [], [], [])

_CHUNK_HEAD = ("id", "object", "created", "model", "system_fingerprint", "service_tier")


class Reader:
    """For one stream."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields: dict[Any, tuple[Key, ...]] = {}
        """The fields of each choice that had text in the last event with any."""

    def read(self, payload: Any, name: bytes) -> Reading:
        if type(payload) is not dict:
            return [], walk([payload], "event"), [], []
        # by its shape, not by the route: an upstream may answer in another dialect than it was asked in
        choices = payload.get("choices")
        return self._chunk(payload, choices) if type(choices) is list else _response_event(payload, name)

    def _chunk(self, payload: dict[str, Any], choices: list[Any]) -> Reading:
        pieces: list[tuple[Key, Slot]] = []
        ended: list[Key] = []
        moved: list[Key] = []
        whole: list[Slot | Line] = []
        if not payload.keys() <= _CHUNK_KEYS:
            whole = walk(payload, "event", without=_CHUNK_KEYS)
        if payload.get("object") != "chat.completion.chunk" or "service_tier" in payload:
            whole += odd_words(payload, ("object", "service_tier"), "event")
        for place, choice in enumerate(choices):
            if type(choice) is not dict:
                whole += walk(choice, "event")
                continue
            if not choice.keys() <= _CHOICE_KEYS:
                whole += walk(choice, "event", without=_CHOICE_KEYS)
            index = choice.get("index", place)
            first = len(pieces)
            delta = choice.get("delta")
            if type(delta) is dict and delta.keys() <= {"content", "role"} and type(delta.get("content")) is str:
                if delta["content"]:
                    pieces.append(((index, None, "content"), Slot(delta, "content", delta["content"], DELTA)))
                if "role" in delta:
                    whole += odd_words(delta, ("role",), "event")
            elif delta:
                pieces += [((index, None, path), slot) for path, slot in _leaves(choice, "delta", delta, whole)]
            text = choice.get("text")
            if text:
                pieces += [((index, None, path), slot) for path, slot in _leaves(choice, "text", text, whole)]
            if type(index) is int and len(pieces) > first:
                for key in self._left(index, tuple([key for key, _ in pieces[first:]])):
                    (ended if _is_name(key) else moved).append(key)
            if choice.get("finish_reason") is not None or choice.get("stop_reason") is not None:
                whole += odd_words(choice, ("finish_reason", "stop_reason"), "event")
            if choice.get("finish_reason"):
                ended.append((index,))
                if type(index) is int:
                    self._fields.pop(index, None)
        return pieces, whole, ended, moved

    def _left(self, index: int, fields: tuple[Key, ...]) -> list[Key]:
        """The fields of a choice that had text before, and have none now."""
        before = self._fields.get(index, ())
        if before == fields:
            return []
        self._fields[index] = fields
        return [key for key in before if key not in fields]


def _is_name(key: Key) -> bool:
    path = key[-1]
    return type(path) is tuple and path[-1] == "name"


def alone(payload: dict[str, Any], key: Key, slot: Slot) -> dict[str, Any] | None:
    """A chunk with nothing but this one piece of the chunk that is given; None where that cannot be told."""
    index, _, path = key
    steps = path if type(path) is tuple else (path,)
    if any(slot.container is choice for choice in payload["choices"]):
        choice = {"index": index, slot.key: slot.text}
    else:
        delta: Any = slot.text
        for step in reversed(steps):
            if type(step) is str:
                delta = {step: delta}
            elif type(step) is int:
                delta = [{"index": step, **delta} if type(delta) is dict else delta]
            else:
                return None
        choice = {"index": index, "delta": delta}
    head = {name: payload[name] for name in _CHUNK_HEAD if name in payload}
    return {**head, "choices": [{**choice, "finish_reason": None}]}


def _response_event(payload: dict[str, Any], name: bytes) -> Reading:
    kind = payload.get("type")
    if type(kind) is not str:
        kind = name.decode("utf-8", "replace")
    if kind.endswith(".delta"):
        delta = payload.get("delta")
        if payload.keys() <= _DELTA_KEYS and type(delta) is str:
            if kind in _BINARY or not delta:
                return NOTHING
            plain: Key = (payload.get("output_index"), _part(payload), kind, None)
            words = [] if is_word(kind) else odd_words(payload, ("type",), "event")
            return [(plain, Slot(payload, "delta", delta, DELTA))], words, [], []
        whole = walk(payload, kind, without=_DELTA_KEYS) + odd_words(payload, ("type",), "event")
        if kind in _BINARY:
            return [], whole, [], []
        key = _address(payload, kind)
        pieces = [((*key, path), slot) for path, slot in _leaves(payload, "delta", delta, whole)]
        if type(delta) is str:
            pieces = [(key, slot) for _, slot in pieces]
        return pieces, whole, [], []
    if not kind.startswith("response.") and kind not in _TERMINAL:
        # of a dialect that is not known here: whatever stands at the same place in two events may be one text
        whole = []
        return [((None, None, kind, path), slot) for path, slot in _leaves(None, None, payload, whole)], whole, [], []
    whole = walk(payload, kind, without=_RESPONSE)
    response = payload.get("response")
    if type(response) is dict:
        whole += reply_texts(response, kind)
    elif response is not None:
        whole += walk(response, kind)
    return _begun(payload, kind, whole), whole, _ended(payload, kind), []


def _part(payload: dict[str, Any]) -> Any:
    part = payload.get("content_index")
    if part is None and "summary_index" in payload:
        return f"summary {payload['summary_index']}"
    return part


def _address(payload: dict[str, Any], kind: str) -> Key:
    others = [
        (key, value)
        for key, value in payload.items()
        if key.endswith("_index") and key not in ("output_index", "content_index", "summary_index")
    ]
    return payload.get("output_index"), _part(payload), kind, tuple(others) or None


def _ended(payload: dict[str, Any], kind: str) -> list[Key]:
    if kind in _TERMINAL:
        return [()]
    if not kind.endswith(".done"):
        return []
    address = _address(payload, kind.removesuffix("done") + "delta")
    if kind == "response.output_item.done":
        return [address[:1]]
    if kind.endswith("_part.done"):
        return [address[:2]]
    return [address]


def _begun(payload: dict[str, Any], kind: str, whole: list[Slot | Line]) -> list[tuple[Key, Slot]]:
    if not kind.endswith(".added"):
        return []
    holder = payload.get("part", payload.get("item"))
    if type(holder) is not dict or type(holder.get("type")) is not str or holder["type"] not in _BEGUN:
        return []
    field, delta = _BEGUN[holder["type"]]
    text = holder.get(field)
    if type(text) is not str or not text:
        return []
    whole[:] = [
        slot for slot in whole if not (isinstance(slot, Slot) and slot.container is holder and slot.key == field)
    ]
    return [(_address(payload, delta), Slot(holder, field, text, DELTA))]


def _leaves(
    container: Any, key: Any, node: Any, whole: list[Slot | Line], mode: int = PLAIN, path: Key = ()
) -> list[tuple[Any, Slot]]:
    """The texts below a delta, each with its path: list members by their `index` where they have one.

    Keys and numbers that are text do not go on in another event: they are added to `whole`.
    """
    if type(node) is str:
        # one level is what the plain form has, so that both forms have the same address
        return [(path[0] if len(path) == 1 else path or key, Slot(container, key, node, DELTA))] if node else []
    if type(node) is int:
        if is_text_as_number(key, mode):
            whole.append(Slot(container, key, str(node), "event"))
        return []
    if len(path) > _DEEP:
        return [((*path, "below"), slot) for slot in walk(node, DELTA, mode=mode) if isinstance(slot, Slot)]
    found: list[tuple[Any, Slot]] = []
    if type(node) is dict:
        if has_own_keys(mode):
            whole += [KeySlot(node, name, name, "event") for name in node if name]
        for name, value in node.items():
            if type(value) is str:
                if is_text(name, value, mode, node):
                    found += _leaves(node, name, value, whole, mode, (*path, name))
            elif type(value) is int:
                found += _leaves(node, name, value, whole, mode)
            elif (below := mode_below(name, mode)) is not None:
                found += _leaves(node, name, value, whole, below, (*path, name))
    elif type(node) is list:
        for place, value in enumerate(node):
            index = value.get("index", place) if type(value) is dict else place
            found += _leaves(node, place, value, whole, mode, (*path, index))
    return found
