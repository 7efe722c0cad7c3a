"""The stream to the caller: its head, its body as it arrives, and backpressure.

Granian buffers without limit what the caller has not read. To slow the upstream down for a slow caller, and to bound
memory, the stream polls the caller's socket after every 64 KiB. It finds the socket among the descriptors of this
process by the caller's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

from penstock.gateway.rsgi import HTTPProtocol

__all__ = ["ClientSockets", "ResponseStream", "borrowed"]

CHECK_BYTES = 1 << 16
"""Bytes that a stream may send between two polls of its socket. Most streams are shorter."""

_FOLDER = "/dev/fd"


class ClientSockets:
    """Finds callers' sockets by their addresses. A search asks each descriptor of the process for its peer, which blocks
    the event loop for 2 µs each."""

    def __init__(self) -> None:
        self._descriptors_by_address: dict[str, int] = {}

    def open(self, client: str) -> int | None:
        """Return a duplicate descriptor of the connection from that address, or None if there is none."""
        known = self._descriptors_by_address.get(client)
        if known is None or _peer(known) != client:
            known = self._find(client)
        if known is None:
            return None
        with contextlib.suppress(OSError):
            duplicate = os.dup(known)
            if _peer(duplicate) == client:  # the descriptor may have been closed and reused
                return duplicate
            os.close(duplicate)
        return None

    def is_closed(self, client: str) -> bool:
        """Return whether that caller has closed its side."""
        file = self.open(client)
        if file is None:
            return True
        try:
            with borrowed(file) as connection:
                return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            os.close(file)

    def all(self) -> dict[str, int]:
        """Return the descriptors of all connections of this process, including those to providers, by peer address."""
        self._descriptors_by_address.clear()
        self._find(None)
        return self._descriptors_by_address

    def _find(self, client: str | None) -> int | None:
        """Search for a caller, and remember the others found on the way."""
        files = _open_descriptors()
        if len(self._descriptors_by_address) > 2 * len(files):  # most of them are closed
            self._descriptors_by_address.clear()
        # Unknown descriptors first, and the highest numbers first: they are usually the newest.
        known = set(self._descriptors_by_address.values())
        for file in sorted(files, key=lambda file: (file not in known, file), reverse=True):
            peer = _peer(file)
            if peer is not None:
                self._descriptors_by_address[peer] = file
                if peer == client:
                    return file
        return None


def _open_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_FOLDER) if name.isdigit()]
    except OSError:
        return []


@contextlib.contextmanager
def borrowed(file: int) -> Iterator[socket.socket]:
    """Use a descriptor that has another owner as a socket. Raise OSError if it is no socket."""
    held = socket.socket(fileno=file)
    try:
        yield held
    finally:
        held.detach()


def _peer(file: int) -> str | None:
    # There may be thousands. With family and type given, the constructor does not ask the kernel for them, which saves a
    # quarter of the time. AF_INET6 has room for IPv4 addresses, too.
    try:
        held = socket.SocketType(socket.AF_INET6, socket.SOCK_STREAM, 0, file)
        try:
            address = held.getpeername()
        finally:
            held.detach()
    except OSError:
        return None
    # A netlink socket, opened during a name lookup, has an address of two integers.
    if not isinstance(address, tuple) or not isinstance(address[0], str):
        return None
    host = address[0]
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


class ResponseStream:
    """A streamed response to a caller. The constructor sends its head."""

    __slots__ = (
        "_client_sockets",
        "_file",
        "_loop",
        "_on_writable",
        "_poll",
        "_since_check",
        "_transport",
        "client",
        "closed",
        "full",
        "sent",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client_sockets: ClientSockets,
        client: str,
        protocol: HTTPProtocol,
        status: int,
        headers: list[tuple[str, str]],
    ) -> None:
        self._loop = loop
        self._client_sockets = client_sockets
        self.client = client
        self._transport: Any = protocol.response_stream(status, headers)
        self._since_check = 0
        self._file: int | None = None
        self._poll: Any = None
        self._on_writable: Callable[[], None] | None = None
        self.sent = 0
        self.closed = False
        """True if the caller has closed the connection."""
        self.full = False
        """True if the caller's socket takes no more data: wait until it is writable."""

    def send(self, data: bytes) -> None:
        if self._transport is None:
            return
        awaitable = self._transport.send_bytes(data)
        if hasattr(awaitable, "add_done_callback"):
            # A server with its own backpressure.
            if not awaitable.done():
                self.full = True
                awaitable.add_done_callback(self._on_sent)
        else:
            try:
                next(awaitable)
            except StopIteration:
                pass
            except RuntimeError as error:  # granian.rsgi.ProtocolClosed
                # The awaitable keeps the error, whose traceback keeps this frame, which keeps the awaitable: a cycle through
                # Rust that the garbage collector does not see, 16 KB for each caller that disconnects.
                error.__traceback__ = None
                self.closed = True
                return
        self.sent += len(data)
        self._since_check += len(data)
        if self._since_check >= CHECK_BYTES and not self.full:
            self._check()

    def _check(self) -> None:
        self._since_check = 0
        if self._poll is None:
            self._file = self._client_sockets.open(self.client)
            self._poll = select.poll()
            if self._file is not None:
                self._poll.register(self._file, select.POLLOUT)
        if self._file is not None and not self._poll.poll(0):
            self.full = True
            self._loop.add_writer(self._file, self._socket_writable)

    def wait_until_writable(self, on_writable: Callable[[], None]) -> None:
        """Call `on_writable` once, when the caller has read on or has disconnected."""
        self._on_writable = on_writable

    def _socket_writable(self) -> None:
        assert self._file is not None
        self._loop.remove_writer(self._file)
        self._resume()

    def _on_sent(self, awaitable: Any) -> None:
        if awaitable.exception() is not None:
            self.closed = True
        self._resume()

    def _resume(self) -> None:
        self.full = False
        on_writable, self._on_writable = self._on_writable, None
        if on_writable is not None:
            on_writable()

    def close(self) -> None:
        """End the body: the server finishes the reply when its transport is no longer referenced."""
        self._transport = None
        self._on_writable = None
        if self._file is not None:
            self._loop.remove_writer(self._file)
            os.close(self._file)
            self._file = None
