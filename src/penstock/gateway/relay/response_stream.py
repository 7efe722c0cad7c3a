"""The caller's side of a stream: a head, pieces of body as they come, and a sign when the caller does not keep up.

The server takes whatever it is given and keeps it until the caller has read it. So that a slow caller slows its upstream
down, and does not fill our memory, the socket itself is asked from time to time whether it still takes data: its
descriptor is one of this process's, and is found by the caller's address when a stream has become long enough to matter.
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

__all__ = ["Peers", "ResponseStream", "borrowed"]

CHECK_BYTES = 1 << 16
"""How much a stream may send between two looks at its socket. Most streams are shorter than that altogether."""

_FOLDER = "/dev/fd"


class Peers:
    """Callers' sockets by their addresses. Found by looking through the descriptors: 2 µs for each, and nobody is served
    meanwhile."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def open(self, client: str) -> int | None:
        """A descriptor of our own for the connection from that address; None when there is none to be found."""
        known = self._known.get(client)
        if known is None or _peer(known) != client:
            known = self._find(client)
        if known is None:
            return None
        with contextlib.suppress(OSError):
            own = os.dup(known)
            if _peer(own) == client:  # it may have been closed and used again in between
                return own
            os.close(own)
        return None

    def gone(self, client: str) -> bool:
        """Whether that caller has closed its side."""
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
        """Every connection of this process, those to providers included."""
        self._known.clear()
        self._find(None)
        return self._known

    def _find(self, client: str | None) -> int | None:
        """Looks until that one is found, and remembers those on the way."""
        files = _descriptors()
        if len(self._known) > 2 * len(files):  # most of them are gone
            self._known.clear()
        # Those that nobody was found at come first, and of them the newest, which mostly have the highest numbers.
        known = set(self._known.values())
        for file in sorted(files, key=lambda file: (file not in known, file), reverse=True):
            peer = _peer(file)
            if peer is not None:
                self._known[peer] = file
                if peer == client:
                    return file
        return None


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_FOLDER) if name.isdigit()]
    except OSError:
        return []


@contextlib.contextmanager
def borrowed(file: int) -> Iterator[socket.socket]:
    """A descriptor of somebody else's as a socket; OSError when it is none."""
    held = socket.socket(fileno=file)
    try:
        yield held
    finally:
        held.detach()


def _peer(file: int) -> str | None:
    # Thousands may be asked. A socket that is told what it is does not ask the kernel (a quarter of the time), and the
    # address of an IPv4 peer fits where one of IPv6 would.
    try:
        held = socket.SocketType(socket.AF_INET6, socket.SOCK_STREAM, 0, file)
        try:
            address = held.getpeername()
        finally:
            held.detach()
    except OSError:
        return None
    # Looking up a name opens a socket for a moment whose address is two numbers.
    if not isinstance(address, tuple) or not isinstance(address[0], str):
        return None
    host = address[0]
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


class ResponseStream:
    __slots__ = (
        "_file",
        "_loop",
        "_on_room",
        "_peers",
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
        peers: Peers,
        client: str,
        protocol: HTTPProtocol,
        status: int,
        headers: list[tuple[str, str]],
    ) -> None:
        """Sends the head."""
        self._loop = loop
        self._peers = peers
        self.client = client
        self._transport: Any = protocol.response_stream(status, headers)
        self._since_check = 0
        self._file: int | None = None
        self._poll: Any = None
        self._on_room: Callable[[], None] | None = None
        self.sent = 0
        self.closed = False
        """The caller is gone."""
        self.full = False
        """The caller has not read what it was sent: wait for room."""

    def send(self, data: bytes) -> None:
        if self._transport is None:
            return
        awaitable = self._transport.send_bytes(data)
        if hasattr(awaitable, "add_done_callback"):
            # A server that waits for room by itself.
            if not awaitable.done():
                self.full = True
                awaitable.add_done_callback(self._taken)
        else:
            try:
                next(awaitable)
            except StopIteration:
                pass
            except RuntimeError as gone:  # granian.rsgi.ProtocolClosed
                # The awaitable keeps the error, and the error's traceback would keep this frame and with it the awaitable:
                # a circle through Rust that no collection sees, 16 KB for each caller that goes away.
                gone.__traceback__ = None
                self.closed = True
                return
        self.sent += len(data)
        self._since_check += len(data)
        if self._since_check >= CHECK_BYTES and not self.full:
            self._check()

    def _check(self) -> None:
        self._since_check = 0
        if self._poll is None:
            self._file = self._peers.open(self.client)
            self._poll = select.poll()
            if self._file is not None:
                self._poll.register(self._file, select.POLLOUT)
        if self._file is not None and not self._poll.poll(0):
            self.full = True
            self._loop.add_writer(self._file, self._room)

    def wait_for_room(self, on_room: Callable[[], None]) -> None:
        """Called once, when the caller has read on or is gone."""
        self._on_room = on_room

    def _room(self) -> None:
        assert self._file is not None
        self._loop.remove_writer(self._file)
        self._go_on()

    def _taken(self, awaitable: Any) -> None:
        if awaitable.exception() is not None:
            self.closed = True
        self._go_on()

    def _go_on(self) -> None:
        self.full = False
        on_room, self._on_room = self._on_room, None
        if on_room is not None:
            on_room()

    def close(self) -> None:
        """The end of the body: the server finishes the reply when nobody holds its transport any more."""
        self._transport = None
        self._on_room = None
        if self._file is not None:
            self._loop.remove_writer(self._file)
            os.close(self._file)
            self._file = None
