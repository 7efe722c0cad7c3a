"""Where a run's files go when the user names no folder."""

from __future__ import annotations

import re

__all__ = ["artifact_folder"]

_UNSAFE = re.compile(r'[\s/\\:*?"<>|\x00-\x1f\x7f]')
_LONGEST = 150
"""Bytes of the model's name that are kept: a file name holds 255 in all."""


def artifact_folder(
    models: tuple[str, ...],
    endpoint: str,
    concurrency: int | None,
    rate: float | None,
    *,
    scheduled: bool = False,
    begin: str = "",
) -> str:
    name = begin + _UNSAFE.sub("_", models[0]).encode()[:_LONGEST].decode(errors="ignore")
    if len(models) > 1:
        name += "_multi"
    stimulus = [] if concurrency is None else [f"concurrency{concurrency}"]
    if rate is not None:
        stimulus.append(f"request_rate{rate}")
    if scheduled:
        stimulus.append("fixed_schedule")
    return f"artifacts/{name}-{_UNSAFE.sub('_', endpoint)}-{'-'.join(stimulus)}"
