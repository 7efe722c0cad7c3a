"""The `Server-Timing` header: where the time of a request went, in milliseconds, as browsers and the benchmark read it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

__all__ = ["layout", "parse_server_timing", "server_timing"]

_WORD = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PART = re.compile(rf"(?:{_QUOTED}|[^,\"])+")
_NAME = re.compile(rf"\s*({_WORD})\s*(?:;|$)")
_PARAMETER = re.compile(rf";\s*({_WORD})\s*=\s*({_QUOTED}|{_WORD})")


@lru_cache(256)
def layout(names: tuple[str, ...], field: str, between: str) -> str:
    """A format for the values of these names: filling one in takes half the time of putting the text together."""
    return between.join(name.replace("%", "%%") + field for name in names)


def server_timing(phases_ms: Mapping[str, float]) -> str:
    """`auth;dur=0.041, quota;dur=0.012, total;dur=231.200`, in the order given. Names are ours, so they are tokens."""
    return layout(tuple(phases_ms), ";dur=%.3f", ", ") % tuple(phases_ms.values())


def parse_server_timing(value: str) -> dict[str, float]:
    """The durations by name. What has none, or cannot be read, is left out; of a name that comes twice the first
    counts, which is that of the server nearest to the reader. Several headers may be joined with commas."""
    durations: dict[str, float] = {}
    for part in _PART.findall(value):
        name = _NAME.match(part)
        if name is None or name[1] in durations:
            continue
        for parameter, text in _PARAMETER.findall(part):
            if parameter.lower() == "dur":
                ms = _number(text.strip('"'))
                if ms is not None:
                    durations[name[1]] = ms
                break
    return durations


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None
