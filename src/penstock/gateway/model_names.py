"""The alias in the place of the upstream's own name for the model, in replies of the chat route."""

from __future__ import annotations

import re

import orjson

__all__ = ["ModelNames", "restore_model"]

_MEMBER = re.compile(rb'"model"\s*:\s*"(?:[^"\\]++|\\.)*+"')


def restore_model(body: bytes, raw: bytes, alias: str) -> bytes:
    """`raw` is the reply's model as it stands in it."""
    named = orjson.dumps(alias)
    if not raw or raw == named:
        return body
    found = _MEMBER.search(body)
    while found is not None and not found[0].endswith(raw):
        found = _MEMBER.search(body, found.end())
    if found is None:
        return body
    at = found.end() - len(raw)
    return b"%b%b%b" % (body[:at], named, body[at + len(raw) :])


class ModelNames:
    """For a stream, whole events at a time. A `"model"` inside a string would have its quotes escaped, so what is found
    is a member, and in this dialect that is the name of the model."""

    __slots__ = ("_alias", "_member")

    def __init__(self, alias: str) -> None:
        self._alias = b'"model":' + orjson.dumps(alias)
        self._member = b""
        """The member as this upstream spells it, once it is known."""

    def restore(self, events: bytes) -> bytes:
        if not self._member:
            found = _MEMBER.search(events)
            if found is None:
                return events
            self._member = found[0]
        return events.replace(self._member, self._alias)
