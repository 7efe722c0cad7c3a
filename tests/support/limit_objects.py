"""Keys, models and policies for tests of the limits, and admissions that return a refusal instead of raising it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from typing import Any

from penstock.gateway.limits import Limiter, Reservation, SharedTable
from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.snapshot import CallerKey, Model, Policy, RateLimit

NOW = 1_800_000_000.0
"""A multiple of every window length, so that ticks start at it."""

_folders: list[tempfile.TemporaryDirectory[str]] = []


def temporary_table(*, windows: int = 1024, slots: int = 64) -> SharedTable:
    """Return a table in a file that is removed at the end of the process."""
    _folders.append(tempfile.TemporaryDirectory())
    return SharedTable.open(f"{_folders[-1].name}/limits", windows=windows, slots=slots)


def key(name: str = "alice", *, team_id: str | None = None, user_id: str | None = None, **limits: int) -> CallerKey:
    return CallerKey(
        id=f"id-{name}",
        name=name,
        hash="",
        allowed_models=("*",),
        rate_limit=RateLimit(**limits),
        team_id=team_id,
        user_id=user_id,
    )


def model(name: str = "gpt", **limits: int) -> Model:
    return Model(id=f"id-{name}", name=name, rate_limit=RateLimit(**limits))


def policy(name: str = "fair", **fields: Any) -> Policy:
    return Policy(**{"id": f"id-{name}", "name": name, "scope": "api_key", "window": "minute", **fields})


async def attempt(
    limiter: Limiter,
    caller: CallerKey,
    requested: Model | None = None,
    policies: Sequence[Policy] = (),
    tokens: int = 0,
    now: float = NOW,
) -> Reservation | Refusal:
    try:
        return await limiter.admit(caller, requested or _MODEL, policies, tokens, now)
    except Refusal as refusal:
        return refusal


_MODEL = model()


def admitted(outcome: Reservation | Refusal) -> bool:
    return isinstance(outcome, Reservation)


def run(work: Any) -> Any:
    return asyncio.run(work)
