"""The default name of a run's artifact folder."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNSAFE = re.compile(r'[\s/\\:*?"<>|\x00-\x1f\x7f]')
_MAX_MODEL_BYTES = 150
"""Longer model names are cut: a file name holds at most 255 bytes."""


def artifact_folder(
    models: tuple[str, ...],
    endpoint: str,
    concurrency: int | None,
    rate: float | None,
    *,
    scheduled: bool = False,
    users: int | None = None,
    prefix: str = "",
) -> str:
    load = [] if concurrency is None else [f"concurrency{concurrency}"]
    if users is not None:
        load.append(f"user_centric-users{users}-qps{rate}")
    elif rate is not None:
        load.append(f"request_rate{rate}")
    if scheduled:
        load.append("fixed_schedule")
    return _path(models, endpoint, load, prefix)


def sweep_folder(models: tuple[str, ...], endpoint: str, parameters: Sequence[str]) -> str:
    return _path(models, endpoint, ["sweep", *parameters])


def _path(models: tuple[str, ...], endpoint: str, load: Sequence[str], prefix: str = "") -> str:
    name = prefix + _UNSAFE.sub("_", models[0]).encode()[:_MAX_MODEL_BYTES].decode(errors="ignore")
    if len(models) > 1:
        name += "_multi"
    return f"artifacts/{name}-{_UNSAFE.sub('_', endpoint)}-{'-'.join(load)}"
