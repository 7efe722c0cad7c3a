"""Helpers for guardrail tests: specs, streams as upstreams send them, and the text that a caller receives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal

from penstock.gateway.dialects.base import Dialect
from penstock.gateway.dialects.sse_frames import Frames
from penstock.gateway.guardrails import Blocked, Inspection, LocalPolicy, SearchBudgets, StreamGuard
from penstock.gateway.guardrails.window import WindowGuard
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import GuardrailSpec, Pattern
from penstock.gateway.routes import BY_NAME, Route
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


class BodyInspection:
    """The result of an inspection, and whether it changed the body."""

    def __init__(self, inspection: Inspection, *, changed: bool) -> None:
        self.blocked_by, self.timed_out, self.hits = inspection.blocked_by, inspection.timed_out, inspection.hits
        self.changed = changed


class GuardsHarness:
    """Compiled guardrails that take bodies as Python values and mask them in place."""

    def __init__(self, compiled: LocalPolicy) -> None:
        self.compiled = compiled
        self.stream = compiled.stream
        self.has_input, self.has_output = compiled.has_input, compiled.has_output

    def request(self, route: Route, body: Any) -> BodyInspection:
        return self._inspect(self.compiled.inspect_request, route, body)

    def reply(self, route: Route, body: Any) -> BodyInspection:
        return self._inspect(self.compiled.inspect_reply, route, body)

    def _inspect(
        self, inspect: Callable[[Dialect, bytes, SearchBudgets], Inspection], route: Route, body: Any
    ) -> BodyInspection:
        data = json.dumps(body).encode()
        inspection = inspect(BY_NAME[route], data, SearchBudgets(1.0))
        changed = inspection.body is not data
        if changed:
            after = json.loads(inspection.body)
            body.clear()
            (body.update if isinstance(body, dict) else body.extend)(after)
        return BodyInspection(inspection, changed=changed)


def guards(*specs: GuardrailSpec, mode: Literal["buffer", "window"] = "buffer", **more: Any) -> GuardsHarness:
    return GuardsHarness(LocalPolicy(specs, GuardrailMode(stream_mode=mode, **more)))


def event(payload: Any, *, end: str = "\n", name: bool = True) -> bytes:
    lines = [f"data: {json.dumps(payload)}", "", ""]
    if name and isinstance(payload, dict) and "type" in payload:
        lines.insert(0, f"event: {payload['type']}")
    return end.join(lines).encode()


def response_events(
    deltas: Sequence[str], *, kind: str = "output_text", terminal: str = "completed", text: str | None = None
) -> list[dict[str, Any]]:
    """Return the events of a response with one message. `text` is the text of the last events, by default the deltas'."""
    whole = "".join(deltas) if text is None else text
    part = {"type": "output_text", "text": whole, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    address = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    header = {"id": "resp_1", "object": "response", "model": "m-1", "instructions": "Say nothing of FORBIDDEN things."}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**header, "status": "in_progress", "output": []}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **address, "part": {**part, "text": ""}},
        *({"type": f"response.{kind}.delta", **address, "delta": delta} for delta in deltas),
        {"type": f"response.{kind}.done", **address, "text": whole},
        {"type": "response.content_part.done", **address, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": f"response.{terminal}", "response": {**header, "status": terminal, "output": [item]}},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def chat_chunks(deltas: Iterable[str | dict[str, Any]], *, finish: bool = True) -> list[dict[str, Any]]:
    header = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}
    bodies: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant", "content": ""}, None)]
    bodies += [({"content": delta} if isinstance(delta, str) else delta, None) for delta in deltas]
    if finish:
        bodies.append(({}, "stop"))
    return [{**header, "choices": [{"index": 0, "delta": body, "finish_reason": end}]} for body, end in bodies]


def wire(payloads: Iterable[Any], *, done: bool = False, end: str = "\n") -> bytes:
    return b"".join(event(payload, end=end) for payload in payloads) + (b"data: [DONE]\n\n" if done else b"")


def split_reads(data: bytes, sizes: Sequence[int] = (7, 1, 64, 3)) -> list[bytes]:
    reads: list[bytes] = []
    turn = position = 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        reads.append(data[position : position + size])
        position += size
        turn += 1
    return reads


def complete(verdict: Coroutine[Any, Any, bytes]) -> bytes:
    """Run a coroutine in an event loop. A new loop for each would take most of the time of the tests."""
    if not _loops:
        _loops.append(asyncio.new_event_loop())
    return _loops[0].run_until_complete(verdict)


_loops: list[asyncio.AbstractEventLoop] = []


class FramedGuard:
    """A guard with the SSE framing of the relay: takes reads and returns the bytes that the caller receives."""

    def __init__(self, guard: StreamGuard | None) -> None:
        assert guard is not None
        self.guard = guard
        self.frames = Frames(guard.max_event_bytes)

    def feed(self, data: bytes) -> bytes:
        return complete(self._feed(data))

    async def _feed(self, data: bytes) -> bytes:
        verdict = self.guard.feed(self.frames.feed(data), len(self.frames))
        released = verdict if isinstance(verdict, bytes) else await verdict
        return released if self.guard.holds else data

    def finish(self) -> bytes:
        return complete(self.guard.finish(self.frames.rest()))

    @property
    def held_bytes(self) -> int:
        assert isinstance(self.guard, WindowGuard)
        return self.guard.held_bytes + len(self.frames)


class Outcome:
    """The releases of a guard, and the block that ended its stream."""

    def __init__(self) -> None:
        self.releases: list[bytes] = []
        self.blocked: Blocked | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.releases)

    @property
    def payloads(self) -> list[Any]:
        return [json.loads(data) for data in split(self.body).data if data != b"[DONE]"]


def run(guard: StreamGuard | None, data: Iterable[bytes]) -> Outcome:
    framed = FramedGuard(guard)
    outcome = Outcome()
    try:
        for read in data:
            outcome.releases.append(framed.feed(read))
        outcome.releases.append(framed.finish())
    except Blocked as blocked:
        outcome.blocked = blocked
    return outcome


def delta_text(payloads: Iterable[Any], kind: str = "output_text") -> str:
    return "".join(payload["delta"] for payload in payloads if payload["type"] == f"response.{kind}.delta")


def chat_text(payloads: Iterable[Any], field: str = "content") -> str:
    return "".join(choice["delta"].get(field) or "" for payload in payloads for choice in payload["choices"])
