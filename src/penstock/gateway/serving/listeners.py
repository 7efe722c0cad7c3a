"""The listening sockets for callers: one for each worker, on one port (SO_REUSEPORT).

The main process opens them and keeps them open, so the connections that wait to be accepted survive the end of a worker: its
replacement accepts them. `serving.take_over` passes the sockets to a new gateway in the same way.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import msgspec

from penstock.errors import UserError
from penstock.gateway.resources.config import ListenConfig

BACKLOG = 2048
_SETTING = "listen.port or with --port"


class Listeners:
    """The sockets, by the number of the worker. They accept connections after `listen`."""

    def __init__(self, address: tuple[Any, ...], family: int, sockets: list[socket.socket]) -> None:
        self._address = address
        self._family = family
        self._sockets: list[socket.socket | None] = [*sockets]

    @classmethod
    def open(cls, listen: ListenConfig, inherited: list[socket.socket] | None = None) -> Listeners:
        """Bind a socket for each worker, apart from those that another gateway has passed on. Raise UserError if another
        program uses the port."""
        if inherited:
            listeners = cls(inherited[0].getsockname(), inherited[0].family, inherited)
        else:
            try:
                listeners = cls._reserve(listen)
            except OSError as error:
                raise cannot_listen(listen.host, listen.port, error, _SETTING) from None
        listeners._sockets += [listeners._bind() for _ in range(len(listeners._sockets), listen.workers)]
        return listeners

    @classmethod
    def _reserve(cls, listen: ListenConfig) -> Listeners:
        family, address = resolve(listen)
        # SO_REUSEPORT would also share the port with another gateway of this user; first bind without it to detect one.
        with socket.socket(family, socket.SOCK_STREAM) as exclusive:
            exclusive.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            exclusive.bind(address)
            port = exclusive.getsockname()[1]
        listeners = cls((address[0], port, *address[2:]), family, [])
        listeners._sockets.append(listeners._bind())  # keeps the port
        return listeners

    def _bind(self) -> socket.socket:
        bound = socket.socket(self._family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(self._address)
        return bound

    @property
    def host(self) -> str:
        return str(self._address[0])

    @property
    def port(self) -> int:
        return int(self._address[1])

    def listen(self, worker: int) -> int:
        """Let the worker's socket accept connections, and return its descriptor."""
        bound = self._sockets[worker]
        if bound is None:
            bound = self._sockets[worker] = self._bind()
        # Accepted connections inherit it. Otherwise the first event of a stream may wait 40 ms, until the caller has
        # acknowledged the head.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.listen(BACKLOG)
        return bound.fileno()

    def close(self, worker: int) -> None:
        """Close the socket of a worker that does not run, so that the others get its connections."""
        bound = self._sockets[worker]
        if bound is not None:
            bound.close()
            self._sockets[worker] = None

    def close_all(self) -> None:
        for worker in range(len(self._sockets)):
            self.close(worker)

    def descriptors(self) -> list[int]:
        return [bound.fileno() for bound in self._sockets if bound is not None]

    def configure(self, listen: ListenConfig) -> ListenConfig:
        """Return the settings with the actual address and port."""
        return msgspec.structs.replace(listen, host=self.host, port=self.port)


def resolve(listen: ListenConfig) -> tuple[int, tuple[Any, ...]]:
    """Return the family and the address to listen on. Raise UserError if the host is unknown."""
    try:
        family, _, _, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise cannot_listen(listen.host, listen.port, error, _SETTING) from None
    return family, address


def cannot_listen(host: str, port: int, error: OSError | UnicodeError, setting: str) -> UserError:
    if isinstance(error, UnicodeError):
        return UserError(f"cannot listen on {host}: it is not a host name")
    if isinstance(error, socket.gaierror):
        return UserError(f"cannot listen on {host}: {error.strerror}")
    if error.errno == errno.EADDRINUSE:
        return UserError(f"port {port} on {host} is already in use; choose another port in {setting}")
    return UserError(f"cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}")
