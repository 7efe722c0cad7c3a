"""Guardrails: content inspection of requests and replies.

The relay knows `ContentPolicy` and `StreamGuard`. `LocalPolicy` is compiled once per resource snapshot.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from penstock.gateway.dialects.base import Dialect
from penstock.gateway.dialects.texts import Texts, walk
from penstock.gateway.guardrails.chain import Chain, compile_guardrails
from penstock.gateway.guardrails.inspection import (
    Blocked,
    Inspection,
    MatchCounts,
    block_code,
    block_event,
    block_message,
    block_type,
)
from penstock.gateway.guardrails.json_input import (
    DuplicateKeyError,
    read_reply,
    read_request,
    without_duplicate_keys,
    write_changes,
)
from penstock.gateway.guardrails.offload import is_large, run_in_process, run_offloaded
from penstock.gateway.guardrails.search_budget import SearchBudgets
from penstock.gateway.guardrails.streams import KEEP_ALIVE, BufferGuard, MonitorGuard, StreamGuard
from penstock.gateway.guardrails.window import WindowGuard
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import CallerKey, GuardrailSpec, Model, Snapshot
from penstock.gateway.routes import BY_NAME, Route

__all__ = [
    "KEEP_ALIVE",
    "Blocked",
    "ContentPolicies",
    "ContentPolicy",
    "DuplicateKeyError",
    "Inspection",
    "LocalPolicy",
    "SearchBudgets",
    "StreamGuard",
    "block_code",
    "block_event",
    "block_message",
    "block_type",
]


class ContentPolicy:
    """Inspects requests and replies: with local guardrails, or by asking another service.

    All verdicts can be awaited, and the relay pauses the upstream while it waits. None of them blocks the event loop for
    longer than a few milliseconds.
    """

    has_input: bool
    has_output: bool

    async def request(self, dialect: Dialect, body: bytes) -> Inspection:
        """Inspect a request body. Raises `DuplicateKeyError` if an object in it has a duplicate key."""
        raise NotImplementedError

    async def reply(self, dialect: Dialect, body: bytes) -> Inspection:
        """Inspect a whole JSON reply. Raises ValueError if the body is not JSON."""
        raise NotImplementedError

    def stream(self, route: Route) -> StreamGuard | None:
        """Return a guard for one stream, or None if there are no output guardrails."""
        raise NotImplementedError


class LocalPolicy(ContentPolicy):
    """The compiled guardrails of a snapshot."""

    def __init__(self, specs: Sequence[GuardrailSpec], mode: GuardrailMode) -> None:
        self._source = pickle.dumps((specs, mode))
        """What another process compiles this policy from."""
        enabled = [spec for spec in specs if spec.enabled]
        self._input = _chain([spec for spec in enabled if spec.hook != "output"], mode)
        self._output = _chain([spec for spec in enabled if spec.hook != "input"], mode)
        self._enforcing, self._monitoring = self._output.split()
        self._seconds = mode.max_inspection_ms / 1000
        self._mode = mode
        self._use_window = mode.stream_mode == "window" and self._output.supports_window
        self.has_input = bool(self._input.guardrails)
        self.has_output = bool(self._output.guardrails)

    async def request(self, dialect: Dialect, body: bytes) -> Inspection:
        return await self._run(LocalPolicy.inspect_request, dialect, body)

    async def reply(self, dialect: Dialect, body: bytes) -> Inspection:
        return await self._run(LocalPolicy.inspect_reply, dialect, body)

    async def _run(self, inspect: _Inspect, dialect: Dialect, body: bytes) -> Inspection:
        if not is_large(body):
            return await run_offloaded(len(body), lambda budgets: inspect(self, dialect, body, budgets), self._seconds)
        arguments = (self._source, inspect.__name__, dialect.name)
        inspection: Inspection
        inspection, inspection.body = await run_in_process(_inspect_in_process, arguments, body)
        return inspection

    def stream(self, route: Route) -> StreamGuard | None:
        if not self.has_output:
            return None
        if not self._output.enforced:
            return MonitorGuard(self._output, route, self._mode)
        if not self._use_window:
            return BufferGuard(self._output, route, self._mode)
        monitor = MonitorGuard(self._monitoring, route, self._mode) if self._monitoring.guardrails else None
        return WindowGuard(self._enforcing, route, self._mode, monitor)

    def inspect_request(self, dialect: Dialect, body: bytes, budgets: SearchBudgets) -> Inspection:
        """Inspect a request body within the budgets, in the calling thread."""
        source, root = read_request(body)
        texts = walk(root, dialect.request_fields, "request")
        return _inspect(self._input, body, source, root, texts, MatchCounts("input"), budgets)

    def inspect_reply(self, dialect: Dialect, body: bytes, budgets: SearchBudgets) -> Inspection:
        """Inspect a whole JSON reply within the budgets, in the calling thread."""
        source, root = read_reply(body)
        if self._output.enforced:
            unique = without_duplicate_keys(source, root[0])
            if unique is not source:
                body = source = unique
        texts = walk(root, dialect.reply_map(root[0]), "reply")
        return _inspect(self._output, body, source, root, texts, MatchCounts("output"), budgets)


_MAX_CACHED = 8192
_Inspect = Callable[[LocalPolicy, Dialect, bytes, SearchBudgets], Inspection]


@lru_cache(16)
def _compile(source: bytes) -> LocalPolicy:
    return LocalPolicy(*pickle.loads(source))  # noqa: S301 (of the worker that started this process)


def _inspect_in_process(source: bytes, inspect: str, route: Route, body: bytes) -> tuple[Inspection, bytes]:
    """Inspect a body in another process (see `body_process`)."""
    policy = _compile(source)
    try:
        inspection = getattr(policy, inspect)(BY_NAME[route], body, SearchBudgets(policy._seconds))
    except json.JSONDecodeError:  # contains the body
        raise ValueError("invalid JSON") from None
    changed = b"" if inspection.body is body else inspection.body
    inspection.body = b""
    return inspection, changed


def _chain(specs: list[GuardrailSpec], mode: GuardrailMode) -> Chain:
    return Chain(compile_guardrails(specs, mode.max_lengths))


def _inspect(
    chain: Chain,
    body: bytes,
    source: bytes,
    root: list[Any],
    texts: Texts,
    match_counts: MatchCounts,
    budgets: SearchBudgets,
) -> Inspection:
    """Inspect `texts`. `source` is the body with invalid characters replaced; it has the same length as `body`."""
    try:
        changed = chain.inspect(texts.complete, match_counts, budgets)
    except Blocked as blocked:
        return Inspection(body, match_counts.hits(), blocked_by=blocked.guardrail, timed_out=blocked.timed_out)
    drops_tokens = changed or (match_counts.hook == "output" and chain.enforced)
    masked = write_changes(body, source, root, changed, texts.tokens if drops_tokens else ())
    return Inspection(masked, match_counts.hits(), blocked_by=None, timed_out=False)


class ContentPolicies:
    """The compiled guardrails of a snapshot, by the key and the model of a request."""

    def __init__(self, snapshot: Snapshot, mode: GuardrailMode) -> None:
        self._specs = snapshot.guardrails
        self._mode = mode
        self._has_attachments = any(spec.attached_to is not None for spec in self._specs)
        self._by_names: dict[tuple[str, ...], ContentPolicy | None] = {}
        self._by_request: dict[tuple[str, str], ContentPolicy | None] = {}
        self._all = self._compile(self._specs)

    def for_request(self, key: CallerKey, model: Model) -> ContentPolicy | None:
        """Return the guardrails for requests of a key to a model; None if there are none."""
        if not self._has_attachments:
            return self._all
        subject = (key.id, model.id)
        if subject not in self._by_request:
            if len(self._by_request) >= _MAX_CACHED:
                self._by_request.clear()
            self._by_request[subject] = self._compile(tuple(spec for spec in self._specs if _applies(spec, key, model)))
        return self._by_request[subject]

    def _compile(self, specs: tuple[GuardrailSpec, ...]) -> ContentPolicy | None:
        names = tuple(spec.name for spec in specs)
        if names not in self._by_names:
            policy = LocalPolicy(specs, self._mode)
            self._by_names[names] = policy if policy.has_input or policy.has_output else None
        return self._by_names[names]


def _applies(spec: GuardrailSpec, key: CallerKey, model: Model) -> bool:
    if spec.attached_to is None:
        return True
    subjects = {("env", None), ("api_key", key.id), ("model", model.id)}
    if key.team_id is not None:
        subjects.add(("team", key.team_id))
    return not subjects.isdisjoint(spec.attached_to)
