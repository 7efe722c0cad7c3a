"""Which counters a request is charged to, worked out once for each pair of key and model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from penstock.gateway.limits.windows import width_us
from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.snapshot import CallerKey, Model, Policy, RateLimit

__all__ = ["Plan", "Planner", "Slots", "Window", "bucket_key"]

_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_INLINE: Final[tuple[tuple[str, str, Literal["requests", "tokens"]], ...]] = (
    ("rps", "second", "requests"),
    ("rpm", "minute", "requests"),
    ("rph", "hour", "requests"),
    ("rpd", "day", "requests"),
    ("tpm", "minute", "tokens"),
    ("tpd", "day", "tokens"),
)
_NAMES: Final = {
    tokens: tuple(f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset"))
    for tokens, unit in ((False, "requests"), (True, "tokens"))
}
_CACHED_PLANS: Final = 8192

Layer = Literal["key", "model"] | Policy


def bucket_key(*parts: str) -> bytes:
    """16 bytes that stand for a bucket in every process and on every machine."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16, person=b"penstock.limits").digest()


class Window:
    """A limit on requests or tokens over a time."""

    __slots__ = ("at", "high", "key", "layer", "limit", "limit_text", "low", "per", "seconds", "tokens", "width")

    def __init__(self, layer: Layer, owner: str, unit: Literal["requests", "tokens"], per: str, limit: int) -> None:
        self.layer = layer
        self.tokens = unit == "tokens"
        self.per = per
        self.limit = limit
        self.limit_text = str(limit)
        self.seconds = _SECONDS[per]
        self.width = width_us(self.seconds)
        self.key = bucket_key(owner, unit, per)
        self.low = int.from_bytes(self.key[:8], "little")
        self.high = int.from_bytes(self.key[8:], "little")
        self.at = -1
        """Where the local table had it last."""

    def amount(self, tokens: int) -> int:
        """What a request of so many tokens is charged.

        One that reserves more than the whole limit waits for a free window, not for ever. A limit of 0 has none.
        """
        return min(tokens, max(1, self.limit)) if self.tokens else 1


class Slots:
    """A limit on requests at the same time."""

    __slots__ = ("at", "high", "key", "layer", "limit", "low")

    def __init__(self, layer: Layer, owner: str, limit: int) -> None:
        self.layer = layer
        self.limit = limit
        self.key = bucket_key(owner, "concurrency")
        self.low = int.from_bytes(self.key[:8], "little")
        self.high = int.from_bytes(self.key[8:], "little")
        self.at = -1


class Plan:
    """Everything that one request is held against, the key's own limits first."""

    __slots__ = ("_concurrent", "_units", "charged", "key", "model", "policies", "shown", "slots", "windows")

    def __init__(
        self, key: CallerKey | None, model: Model, policies: Sequence[Policy], windows: list[Window], slots: list[Slots]
    ) -> None:
        self.key = key
        self.model = model
        self.policies = policies
        self.windows = tuple(windows)
        self.slots = tuple(slots)
        self.charged = tuple(index for index, window in enumerate(windows) if window.tokens)
        """The windows that are corrected at the end."""
        self.shown = tuple(index for index, window in enumerate(windows) if window.layer == "key")
        """The windows that the x-ratelimit headers speak of: the first ones."""
        # (header names, indexes into the windows)
        self._units = tuple(
            (_NAMES[tokens], indexes)
            for tokens in (False, True)
            if (indexes := [index for index in self.shown if windows[index].tokens is tokens])
        )
        self._concurrent = next((index for index, one in enumerate(slots) if one.layer == "key"), None)

    def headers(self, states: Sequence[tuple[int, int]], free: Sequence[int]) -> tuple[tuple[str, str], ...]:
        """`states` begins with (remaining, µs until the whole limit is free) of the shown windows.

        Of several windows on the same thing, the one that leaves the least speaks.
        """
        found: list[tuple[str, str]] = []
        for names, indexes in self._units:
            index = indexes[0] if len(indexes) == 1 else min(indexes, key=lambda one: states[one][0])
            left, reset_us = states[index]
            found.append((names[0], self.windows[index].limit_text))
            found.append((names[1], str(left)))
            found.append((names[2], f"{-(-reset_us // 1_000_000)}s"))
        if self._concurrent is not None:
            found.append(("x-ratelimit-limit-concurrent", str(self.slots[self._concurrent].limit)))
            found.append(("x-ratelimit-remaining-concurrent", str(max(0, free[self._concurrent]))))
        return tuple(found)

    def refusal(self, states: Sequence[tuple[int, int]], waits: Sequence[int], free: Sequence[int]) -> Refusal:
        """`waits` are the µs until each window has room, `free` the slots that are left without this request.

        A full window is named before full slots, because it can say when to come back.
        """
        headers = self.headers(states, free)
        for window, wait in zip(self.windows, waits, strict=True):
            if wait:
                unit = "token" if window.tokens else "request"
                return Refusal(
                    429,
                    "rate_limit_exceeded",
                    f"The {unit} limit of {window.limit} per {window.per} {_whose(window.layer)} is reached.",
                    policy=_policy(window.layer),
                    retry_after=max(1, -(-max(waits) // 1_000_000)),
                    headers=headers,
                    limited_by=_label(window.layer),
                )
        full = next(slots for slots, left in zip(self.slots, free, strict=True) if left <= 0)
        return Refusal(
            429,
            "rate_limit_exceeded",
            f"The limit of {full.limit} concurrent requests {_whose(full.layer)} is reached.",
            headers=headers,
            limited_by=_label(full.layer),
        )


class Planner:
    """Plans are kept by the identity of what they were made from: a reload brings new objects, hence new plans."""

    def __init__(self) -> None:
        self._plans: dict[tuple[int, int], Plan] = {}

    def plan(self, key: CallerKey | None, model: Model, policies: Sequence[Policy]) -> Plan:
        """Without a key: the model's own limits alone."""
        found = self._plans.get((id(key), id(model)))
        # an id may be used again once its owner is gone, but a plan keeps its owners alive
        if found is not None and found.key is key and found.model is model and found.policies is policies:
            return found
        if len(self._plans) >= _CACHED_PLANS:
            self._plans.clear()
        plan = self._plans[id(key), id(model)] = _make(key, model, policies)
        return plan


def _make(key: CallerKey | None, model: Model, policies: Sequence[Policy]) -> Plan:
    windows: list[Window] = []
    slots: list[Slots] = []
    owners: list[tuple[Layer, str, RateLimit]] = [("model", f"model/{model.id}", model.rate_limit)]
    if key is not None:
        owners.insert(0, ("key", f"key/{key.id}", key.rate_limit))
    for layer, owner, limits in owners:
        for name, per, unit in _INLINE:
            limit = getattr(limits, name)
            if limit is not None:
                windows.append(Window(layer, owner, unit, per, limit))
        if limits.concurrency is not None:
            slots.append(Slots(layer, owner, limits.concurrency))
    for policy, member in _members(key, model, policies):
        owner = f"policy/{policy.id}/{member}"
        if policy.max_requests is not None:
            windows.append(Window(policy, owner, "requests", policy.window, policy.max_requests))
        if policy.max_tokens is not None:
            windows.append(Window(policy, owner, "tokens", policy.window, policy.max_tokens))
    return Plan(key, model, policies, windows, slots)


def _members(key: CallerKey | None, model: Model, policies: Sequence[Policy]) -> Iterator[tuple[Policy, str]]:
    """The policies that apply, each with whose bucket it is."""
    for policy in policies:
        member: str | None
        match policy.scope:
            case "api_key":
                subject = member = key.id if key is not None else None
            case "model":
                subject = member = model.id
            case "team":
                subject = member = key.team_id if key is not None else None
            case "member":
                subject = member = key.user_id if key is not None else None
            case "team_member":
                subject = key.team_id if key is not None else None
                # members are told apart within their team; a key without an owner shares one bucket with its like
                member = f"{subject}/{key.user_id or ''}" if key is not None and subject is not None else None
        if member is not None and (policy.scope_ref is None or policy.scope_ref == subject):
            yield policy, member


def _whose(layer: Layer) -> str:
    if isinstance(layer, Policy):
        return f"of the policy '{layer.name}'"
    return "of this API key" if layer == "key" else "of this model"


def _label(layer: Layer) -> str:
    if isinstance(layer, Policy):
        return "policy"
    return "api_key" if layer == "key" else "model"


def _policy(layer: Layer) -> dict[str, str] | None:
    return {"id": layer.id, "name": layer.name} if isinstance(layer, Policy) else None
