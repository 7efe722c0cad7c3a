"""The `Server-Timing` header, in which a gateway reports how long the parts of a request took."""

from __future__ import annotations

import math
import re

_TCHARS = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_ENTRY = re.compile(rf"(?:{_QUOTED}|[^,\"])+")
_NAME = re.compile(rf"\s*({_TCHARS})\s*(?:;|$)")
_PARAMETER = re.compile(rf";\s*({_TCHARS})\s*=\s*({_QUOTED}|{_TCHARS})")


def parse_server_timing(value: str) -> dict[str, float]:
    """Return the durations in ms by name. Entries without a valid duration are skipped. For a repeated name the first
    entry counts: it is from the server nearest to the client. Several headers may be joined with commas."""
    durations: dict[str, float] = {}
    for entry in _ENTRY.findall(value):
        name = _NAME.match(entry)
        if name is None or name[1] in durations:
            continue
        for parameter, text in _PARAMETER.findall(entry):
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
