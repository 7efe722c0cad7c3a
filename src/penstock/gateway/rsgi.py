"""The part of Granian's RSGI interface that the gateway uses, as types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

__all__ = ["HTTPProtocol", "Headers", "Scope", "Watch"]


class Headers(Protocol):
    def get(self, key: str) -> str | None:
        """Return the first header of that lower-case name."""

    def get_all(self, key: str) -> list[str]: ...

    def __contains__(self, key: str) -> bool:
        """Return whether there is such a header. `get` and `get_all` leave out values that are not ASCII."""


class Scope(Protocol):
    client: str
    """Address and port."""
    http_version: str
    """`1` (HTTP/1.0) or `1.1`; the gateway offers no other version."""
    method: str
    path: str

    @property
    def headers(self) -> Headers: ...


class Watch(Awaitable[None], Protocol):
    """Done when the caller has disconnected, or when the reply has been sent."""

    def add_done_callback(self, callback: Callable[[Any], None]) -> None: ...


class HTTPProtocol(Protocol):
    def __call__(self) -> Awaitable[bytes]:
        """Return the whole body."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the body in pieces."""

    def client_disconnect(self) -> Watch: ...

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None: ...

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> Any: ...
