"""The guardrails that apply to a request: those attached to its key, its team or its model, and those without attachments."""

from __future__ import annotations

from penstock.gateway.guardrails import ContentPolicy, LocalPolicy
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import CallerKey, GuardrailSpec, Model, Snapshot

_MAX_CACHED = 8192


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
