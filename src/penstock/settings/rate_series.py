"""Reads the rate over time from a file, or from JSON on the command line."""

from __future__ import annotations

import msgspec

from penstock.errors import UserError


class _Point(msgspec.Struct, rename={"time_s": "timeS", "rate": "qps"}):
    time_s: float
    rate: float


def read_rate_series(source: str, spelling: str) -> tuple[tuple[float, float], ...]:
    """Return the points (seconds, requests per second) of a file or of a JSON list, or raise `UserError`."""
    inline = source.lstrip().startswith("[")
    subject = spelling if inline else f"{spelling} {source}"
    try:
        points = msgspec.json.decode(source if inline else _content(source), type=list[_Point])
    except OSError as error:
        raise UserError(f"{subject} cannot be read: {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise UserError(
            f'{subject} must be a JSON list such as [{{"timeS": 0, "qps": 5}}, {{"timeS": 60, "qps": 20}}]: {error}.'
        ) from None
    for number, point in enumerate(points):
        if point.time_s < 0 or point.rate < 0 or (number and point.time_s <= points[number - 1].time_s):
            raise UserError(f"{subject}: point {number + 1} must have a later time and a rate of at least 0.")
    if not any(point.rate > 0 for point in points):
        raise UserError(f"{subject} has no point with a rate above 0.")
    return tuple((point.time_s, point.rate) for point in points)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
