"""The limits that a request is charged to, computed once for each pair of key and model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, Literal, NamedTuple

from penstock.gateway.limits.windows import width_us
from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.snapshot import CallerKey, Model, Policy, RateLimit

_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_RATE_LIMIT_FIELDS: Final[tuple[tuple[str, str, Literal["requests", "tokens"]], ...]] = (
    ("rps", "second", "requests"),
    ("rpm", "minute", "requests"),
    ("rph", "hour", "requests"),
    ("rpd", "day", "requests"),
    ("tpm", "minute", "tokens"),
    ("tpd", "day", "tokens"),
)
_HEADER_NAMES: Final = {
    tokens: tuple(f"x-ratelimit-{field}-{unit}" for field in ("limit", "remaining", "reset"))
    for tokens, unit in ((False, "requests"), (True, "tokens"))
}
_MAX_CACHED: Final = 8192


class Layer(NamedTuple):
    """What a limit belongs to."""

    label: str
    phrase: str
    policy: dict[str, str] | None = None


_KEY, _MODEL = Layer("api_key", "of this API key"), Layer("model", "of this model")


def bucket_key(*parts: str) -> bytes:
    """Return a 16-byte key for a bucket, the same in every process and on every machine."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16, person=b"penstock.limits").digest()


class Bucket:
    """What a limit is counted in. `offset` is that of its record in the local table at the last access, or -1."""

    kind: str
    """The part of the key in Redis that tells windows from slots."""

    def __init__(self, layer: Layer, limit: int, *name: str) -> None:
        self.layer = layer
        self.limit = limit
        self.key = bucket_key(*name)
        self.low = int.from_bytes(self.key[:8], "little")
        self.high = int.from_bytes(self.key[8:], "little")
        self.redis_key = f"penstock:{{limits}}:{self.kind}:{self.key.hex()}".encode()
        """With one hash tag, so that a cluster keeps all counters of a request on one node."""
        self.offset = -1


class WindowLimit(Bucket):
    """A limit on requests or tokens per time window."""

    kind = "w"

    def __init__(self, layer: Layer, owner: str, unit: Literal["requests", "tokens"], per: str, limit: int) -> None:
        super().__init__(layer, limit, owner, unit, per)
        self.tokens = unit == "tokens"
        self.per = per
        self.limit_text = str(limit)
        self.width = width_us(_SECONDS[per])

    def amount(self, tokens: int) -> int:
        """Return the amount to charge for a request with this many tokens.

        It is capped at the limit, so that a larger request is admitted by an empty window. A limit of 0 admits none.
        """
        return min(tokens, max(1, self.limit)) if self.tokens else 1


class ConcurrencyLimit(Bucket):
    """A limit on concurrent requests."""

    kind = "s"

    def __init__(self, layer: Layer, owner: str, limit: int) -> None:
        super().__init__(layer, limit, owner, "concurrency")


class RequestLimits:
    """All limits that apply to a request, those of the key first."""

    def __init__(self, windows: Sequence[WindowLimit], concurrency: Sequence[ConcurrencyLimit]) -> None:
        self.windows = tuple(windows)
        self.concurrency = tuple(concurrency)
        self.token_windows = tuple(index for index, window in enumerate(windows) if window.tokens)
        """Indexes of the windows to correct when the request is settled."""
        self.reported = tuple(index for index, window in enumerate(windows) if window.layer is _KEY)
        """Indexes of the windows for the x-ratelimit headers; they are the first ones."""
        # (header names, indexes into the windows)
        self._header_groups = tuple(
            (_HEADER_NAMES[tokens], indexes)
            for tokens in (False, True)
            if (indexes := [index for index in self.reported if windows[index].tokens is tokens])
        )
        self._key_concurrency = next((index for index, limit in enumerate(concurrency) if limit.layer is _KEY), None)

    @cached_property
    def without_slots(self) -> RequestLimits:
        """The windows alone."""
        return RequestLimits(self.windows, ())

    @cached_property
    def without_key_slot(self) -> RequestLimits:
        """All limits but the concurrency of the key."""
        return RequestLimits(self.windows, [limit for limit in self.concurrency if limit.layer is not _KEY])

    def headers(self, states: Sequence[tuple[int, int]], free: Sequence[int]) -> tuple[tuple[str, str], ...]:
        """Return the x-ratelimit headers; of several windows per unit, those of the one with the least remaining.

        `states` starts with (remaining, µs until the whole limit is free) of the reported windows.
        """
        headers: list[tuple[str, str]] = []
        for names, indexes in self._header_groups:
            index = indexes[0] if len(indexes) == 1 else min(indexes, key=lambda candidate: states[candidate][0])
            left, reset_us = states[index]
            headers.append((names[0], self.windows[index].limit_text))
            headers.append((names[1], str(left)))
            headers.append((names[2], f"{-(-reset_us // 1_000_000)}s"))
        if self._key_concurrency is not None:
            headers.append(("x-ratelimit-limit-concurrent", str(self.concurrency[self._key_concurrency].limit)))
            headers.append(("x-ratelimit-remaining-concurrent", str(max(0, free[self._key_concurrency]))))
        return tuple(headers)

    def refusal(self, states: Sequence[tuple[int, int]], waits: Sequence[int], free: Sequence[int]) -> Refusal:
        """Return the refusal for the first exceeded limit. Windows come first, because they give a retry time.

        `waits` are the µs until each window admits the request, `free` the free slots of each concurrency limit.
        """
        headers = self.headers(states, free)
        for window, wait in zip(self.windows, waits, strict=True):
            if wait:
                unit = "token" if window.tokens else "request"
                return Refusal(
                    429,
                    "rate_limit_exceeded",
                    f"The {unit} limit of {window.limit} per {window.per} {window.layer.phrase} is reached.",
                    policy=window.layer.policy,
                    retry_after=max(1, -(-max(waits) // 1_000_000)),
                    headers=headers,
                    limited_by=window.layer.label,
                )
        full = next(limit for limit, left in zip(self.concurrency, free, strict=True) if left <= 0)
        return Refusal(
            429,
            "rate_limit_exceeded",
            f"The limit of {full.limit} concurrent requests {full.layer.phrase} is reached.",
            headers=headers,
            limited_by=full.layer.label,
        )


class RequestLimitsCache:
    """Caches limits by the identity of the key and model: a reload creates new objects, and so new limits."""

    def __init__(self) -> None:
        self._cache: dict[tuple[int, int], tuple[CallerKey | None, Model | None, Sequence[Policy], RequestLimits]] = {}

    def get(self, key: CallerKey | None, model: Model | None, policies: Sequence[Policy]) -> RequestLimits:
        """Return the limits of a request; without a key or without a model, only those of the other."""
        cached = self._cache.get((id(key), id(model)))
        # A cached entry keeps its key and model alive, so their ids are not reused.
        if cached is not None and cached[0] is key and cached[1] is model and cached[2] is policies:
            return cached[3]
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        limits = _build(key, model, policies)
        self._cache[id(key), id(model)] = key, model, policies, limits
        return limits


def _build(key: CallerKey | None, model: Model | None, policies: Sequence[Policy]) -> RequestLimits:
    windows: list[WindowLimit] = []
    concurrency: list[ConcurrencyLimit] = []
    owners: list[tuple[Layer, str, RateLimit]] = []
    if key is not None:
        owners.append((_KEY, f"key/{key.id}", key.rate_limit))
    if model is not None:
        owners.append((_MODEL, f"model/{model.id}", model.rate_limit))
    for layer, owner, limits in owners:
        for name, per, unit in _RATE_LIMIT_FIELDS:
            limit = getattr(limits, name)
            if limit is not None:
                windows.append(WindowLimit(layer, owner, unit, per, limit))
        if limits.concurrency is not None:
            concurrency.append(ConcurrencyLimit(layer, owner, limits.concurrency))
    for policy, member in _policy_buckets(key, model, policies):
        owner = f"policy/{policy.id}/{member}"
        layer = Layer("policy", f"of the policy '{policy.name}'", {"id": policy.id, "name": policy.name})
        if policy.max_requests is not None:
            windows.append(WindowLimit(layer, owner, "requests", policy.window, policy.max_requests))
        if policy.max_tokens is not None:
            windows.append(WindowLimit(layer, owner, "tokens", policy.window, policy.max_tokens))
    return RequestLimits(windows, concurrency)


def _policy_buckets(
    key: CallerKey | None, model: Model | None, policies: Sequence[Policy]
) -> Iterator[tuple[Policy, str]]:
    """Yield each policy that applies, with the id of its bucket."""
    subjects = {
        "api_key": key and key.id,
        "model": model and model.id,
        "team": key and key.team_id,
        "member": key and key.user_id,
        "team_member": key and key.team_id,
    }
    for policy in policies:
        subject = subjects[policy.scope]
        if subject is not None and policy.scope_ref in (None, subject):
            # one bucket per member of a team; the team's keys without an owner share a bucket
            member = f"/{key.user_id or ''}" if key is not None and policy.scope == "team_member" else ""
            yield policy, f"{subject}{member}"
