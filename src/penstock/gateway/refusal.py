"""The error with which the gateway itself ends a request: its status and its body."""

from __future__ import annotations

from typing import Any

import orjson


class Refusal(Exception):
    """An error response. `message` goes to the caller: it never contains a secret, a matched text or data of another
    caller."""

    def __init__(
        self,
        status: int,
        type_: str,
        message: str,
        *,
        code: str | float | None = None,
        param: str | float | None = None,
        policy: dict[str, str] | None = None,
        retry_after: int | str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        limited_by: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.message = message
        self.code: str | float | None = type_ if code is None else code
        self.param = param
        self.policy = policy
        self.retry_after = retry_after
        self.headers = headers
        self.limited_by = limited_by
        """For the ledger: the layer whose limit caused a 429."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.__dict__,)

    def body(self) -> bytes:
        error: dict[str, Any] = {"message": self.message, "type": self.type}
        for name in ("param", "code", "policy"):
            value = getattr(self, name)
            if value is not None:
                error[name] = value
        return orjson.dumps({"error": error})


def _restore(members: dict[str, Any]) -> Refusal:
    """Unpickle a refusal of another process."""
    refusal = Refusal(members["status"], members["type"], members["message"])
    refusal.__dict__.update(members)
    return refusal
