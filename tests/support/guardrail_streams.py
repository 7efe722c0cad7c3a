"""Streams as upstreams send them, and what a caller reads in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from penstock.gateway.guardrails import Guards, Inspection, SearchBudgets, StreamBlocked, StreamGuard
from penstock.gateway.guardrails.window import WindowGuard
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import GuardrailSpec, Pattern
from penstock.gateway.routes import Route
from penstock.gateway.sse_frames import Frames
from penstock.wire.sse import split

Action = Literal["mask", "block"]


def keyword(*literals: str, name: str = "words", regexes: Sequence[str] = (), **more: Any) -> GuardrailSpec:
    patterns = [Pattern(kind="literal", value=value) for value in literals]
    patterns += [Pattern(kind="regex", value=value) for value in regexes]
    return GuardrailSpec(name=name, kind="keyword", patterns=tuple(patterns), **more)


def pii(
    *detectors: str, action: Action = "mask", name: str = "private", patterns: Sequence[Pattern] = (), **more: Any
) -> GuardrailSpec:
    return GuardrailSpec(
        name=name,
        kind="pii",
        detectors=tuple((detector, action) for detector in detectors),
        patterns=tuple(patterns),
        **more,
    )


class Looked:
    """An inspection, and whether it changed the body."""

    def __init__(self, found: Inspection, *, changed: bool) -> None:
        self.blocked_by, self.timed_out, self.hits = found.blocked_by, found.timed_out, found.hits
        self.changed = changed


class Made:
    """Guardrails that take bodies as Python values, and mask them in place."""

    def __init__(self, made: Guards) -> None:
        self.made = made
        self.stream = made.stream
        self.has_input, self.has_output = made.has_input, made.has_output

    def request(self, route: Route, body: Any) -> Looked:
        del route
        return self._look(self.made.request, body)

    def reply(self, route: Route, body: Any) -> Looked:
        del route
        return self._look(self.made.reply, body)

    def _look(self, inspect: Callable[[bytes, SearchBudgets], Inspection], body: Any) -> Looked:
        data = json.dumps(body).encode()
        found = inspect(data, SearchBudgets(1.0))
        changed = found.body is not data
        if changed:
            after = json.loads(found.body)
            body.clear()
            (body.update if isinstance(body, dict) else body.extend)(after)
        return Looked(found, changed=changed)


def guards(*specs: GuardrailSpec, mode: Literal["buffer", "window"] = "buffer", **more: Any) -> Made:
    return Made(Guards(specs, GuardrailMode(stream_mode=mode, **more)))


def event(payload: Any, *, end: str = "\n", name: bool = True) -> bytes:
    lines = [f"data: {json.dumps(payload)}", "", ""]
    if name and isinstance(payload, dict) and "type" in payload:
        lines.insert(0, f"event: {payload['type']}")
    return end.join(lines).encode()


def response_events(
    deltas: Sequence[str], *, kind: str = "output_text", terminal: str = "completed", text: str | None = None
) -> list[dict[str, Any]]:
    """A response with one message; `text` is what the last events say, if not the deltas' text."""
    whole = "".join(deltas) if text is None else text
    part = {"type": "output_text", "text": whole, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    head = {"id": "resp_1", "object": "response", "model": "m-1", "instructions": "Say nothing of FORBIDDEN things."}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**head, "status": "in_progress", "output": []}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
        *({"type": f"response.{kind}.delta", **at, "delta": delta} for delta in deltas),
        {"type": f"response.{kind}.done", **at, "text": whole},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": f"response.{terminal}", "response": {**head, "status": terminal, "output": [item]}},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def chat_chunks(deltas: Iterable[str | dict[str, Any]], *, finish: bool = True) -> list[dict[str, Any]]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}
    bodies: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant", "content": ""}, None)]
    bodies += [({"content": delta} if isinstance(delta, str) else delta, None) for delta in deltas]
    if finish:
        bodies.append(({}, "stop"))
    return [{**head, "choices": [{"index": 0, "delta": body, "finish_reason": end}]} for body, end in bodies]


def wire(payloads: Iterable[Any], *, done: bool = False, end: str = "\n") -> bytes:
    return b"".join(event(payload, end=end) for payload in payloads) + (b"data: [DONE]\n\n" if done else b"")


def portions(data: bytes, sizes: Sequence[int] = (7, 1, 64, 3)) -> list[bytes]:
    found: list[bytes] = []
    turn = position = 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        found.append(data[position : position + size])
        position += size
        turn += 1
    return found


class Framed:
    """A guard behind the frames that the relay makes for it: portions in, what the caller is sent out."""

    def __init__(self, guard: StreamGuard | None) -> None:
        assert guard is not None
        self.guard = guard
        self.frames = Frames(guard.longest)

    def feed(self, data: bytes) -> bytes:
        released = self.guard.feed(self.frames.feed(data), len(self.frames))
        return released if self.guard.holds else data

    def finish(self) -> bytes:
        return self.guard.finish(self.frames.rest())

    @property
    def held_bytes(self) -> int:
        assert isinstance(self.guard, WindowGuard)
        return self.guard.held_bytes + len(self.frames)


class Outcome:
    """What left a guard: each release, and the block that ended it."""

    def __init__(self) -> None:
        self.releases: list[bytes] = []
        self.blocked: StreamBlocked | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.releases)

    @property
    def payloads(self) -> list[Any]:
        return [json.loads(data) for data in split(self.body).data if data != b"[DONE]"]


def run(guard: StreamGuard | None, data: Iterable[bytes]) -> Outcome:
    framed = Framed(guard)
    outcome = Outcome()
    try:
        for portion in data:
            outcome.releases.append(framed.feed(portion))
        outcome.releases.append(framed.finish())
    except StreamBlocked as blocked:
        outcome.blocked = blocked
    return outcome


def delta_text(payloads: Iterable[Any], kind: str = "output_text") -> str:
    return "".join(payload["delta"] for payload in payloads if payload["type"] == f"response.{kind}.delta")


def chat_text(payloads: Iterable[Any], field: str = "content") -> str:
    return "".join(choice["delta"].get(field) or "" for payload in payloads for choice in payload["choices"])
