"""The alias in the place of the upstream's own name for the model, in replies of the chat route."""

from __future__ import annotations

import re

import orjson

__all__ = ["ModelNames", "restore_model"]

FRAME_BYTES = 1 << 20
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
    """For a stream: whole events in which the first `"model"` is replaced. Inside a string it would have its quotes
    escaped, so what is found is a member, and in this dialect that is the name of the model."""

    __slots__ = ("_alias", "_blind", "_member", "_rest")

    def __init__(self, alias: str) -> None:
        self._alias = b'"model":' + orjson.dumps(alias)
        self._member = b""
        """The member as this upstream spells it, once it is known."""
        self._rest = b""
        self._blind = False

    def feed(self, data: bytes) -> bytes:
        """What is complete, with the name replaced."""
        if self._blind:
            return data
        if self._rest:
            data = self._rest + data
        end = max(data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n") + 2, data.rfind(b"\r\r")) + 2
        if end < 4:
            self._rest = data
            if len(data) <= FRAME_BYTES:
                return b""
            self._blind = True
            return self.finish()
        self._rest = data[end:]
        return self._replaced(data[:end] if self._rest else data)

    def finish(self) -> bytes:
        """The stream has ended: what is left of it."""
        rest, self._rest = self._rest, b""
        return self._replaced(rest)

    def _replaced(self, whole: bytes) -> bytes:
        if not self._member:
            found = _MEMBER.search(whole)
            if found is None:
                return whole
            self._member = found[0]
        return whole.replace(self._member, self._alias)
