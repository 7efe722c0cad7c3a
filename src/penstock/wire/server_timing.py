"""Reading the `Server-Timing` header, by which a gateway says where the time of a request went."""

from __future__ import annotations

import math
import re

__all__ = ["parse_server_timing"]

_WORD = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PART = re.compile(rf"(?:{_QUOTED}|[^,\"])+")
_NAME = re.compile(rf"\s*({_WORD})\s*(?:;|$)")
_PARAMETER = re.compile(rf";\s*({_WORD})\s*=\s*({_QUOTED}|{_WORD})")


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
