"""`gateway --take-over`: pass the listening sockets of a running gateway to a new one, so that no connection is lost.

The running gateway listens on a socket in its shared folder, where only its user can connect:

    new gateway    connects
    old gateway    sends its listening sockets
    new gateway    starts its workers on these sockets, and sends READY
    old gateway    finishes its requests and ends

If the new gateway ends before it is ready, the old one continues as before.
"""

from __future__ import annotations

import contextlib
import os
import socket

from penstock.errors import UserError
from penstock.gateway.resources.config import ListenConfig
from penstock.gateway.serving.listeners import Listeners, resolve
from penstock.gateway.serving.runtime import Runtime, running_gateways

READY = b"ready"
MAX_SOCKETS = 1024
TIMEOUT_S = 10.0
_CONTROL = "control"


class TakenOver:
    """The sockets of another gateway, which ends after `confirm`."""

    def __init__(self, connection: socket.socket, status: socket.socket, listeners: list[socket.socket]) -> None:
        self._connection = connection
        self.status = status
        self.listeners = listeners

    def confirm(self) -> None:
        """Tell the other gateway that this one serves."""
        with contextlib.suppress(OSError):  # it has ended meanwhile
            self._connection.sendall(READY)
        self._connection.close()

    def close(self) -> None:
        self._connection.close()


def take_over(listen: ListenConfig) -> TakenOver | None:
    """Return the sockets of the gateway that listens on this address; None if there is none."""
    for folder, running in running_gateways():
        if (running.host, running.port) != (resolve(listen)[1][0], listen.port):
            continue
        if listen.workers < running.workers:
            raise UserError(
                f"The running gateway has {running.workers} workers; with --take-over, set listen.workers to at least as many."
            )
        return _receive(os.path.join(folder, _CONTROL))
    return None


def _receive(path: str) -> TakenOver:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(TIMEOUT_S)
    try:
        connection.connect(path)
        _, descriptors, _, _ = socket.recv_fds(connection, 1, MAX_SOCKETS)
    except OSError as error:
        raise UserError(
            f"The running gateway cannot be taken over ({error.strerror or 'it does not respond'})."
        ) from None
    if not descriptors:
        raise UserError("The running gateway cannot be taken over, because it is ending or is being taken over.")
    status, *listeners = (socket.socket(fileno=descriptor) for descriptor in descriptors)
    return TakenOver(connection, status, listeners)


class HandOver:
    """The side of the running gateway. Call `poll` several times a second."""

    def __init__(self, runtime: Runtime, listeners: Listeners, status: int) -> None:
        self._listeners = listeners
        self._status = status
        self._control = socket.socket(socket.AF_UNIX)
        self._control.bind(os.path.join(runtime.folder, _CONTROL))
        self._control.listen(1)
        self._control.setblocking(False)
        self._successor: socket.socket | None = None

    def poll(self) -> bool:
        """Return whether another gateway has taken over."""
        try:
            if self._successor is None:
                self._successor, _ = self._control.accept()
                self._successor.setblocking(False)
                socket.send_fds(self._successor, [b"."], [self._status, *self._listeners.descriptors()])
            message = self._successor.recv(16)
        except BlockingIOError:
            return False
        except OSError:
            message = b""
        if self._successor is not None:
            self._successor.close()
            self._successor = None
        return message == READY

    def close(self) -> None:
        self._control.close()
