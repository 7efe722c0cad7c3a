"""Messages over a stream socket, each pickled and preceded by its length. Only `flush_all` blocks."""

from __future__ import annotations

import pickle
import selectors
import socket
import struct
from collections.abc import Iterable
from typing import Any

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 16


class MessageSocket:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._received = bytearray()
        self._unsent = bytearray()
        self.closed = False
        """True once the other side has closed its socket."""

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def unsent(self) -> bool:
        """True if `flush` has to be called again."""
        return bool(self._unsent)

    def send(self, message: Any) -> None:
        """Send a message, or keep it for `flush` while the other side does not read."""
        data = pickle.dumps(message)
        self._unsent += _LENGTH.pack(len(data)) + data
        self.flush()

    def flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
            self._unsent.clear()

    def flush_all(self) -> None:
        """Send everything that is left. This blocks until the other side has read it or closed its socket."""
        while self._unsent and not self.closed:
            wait_for(writable=[self])
            self.flush()

    def receive(self) -> list[Any]:
        """Return the complete messages that have arrived."""
        try:
            while data := self._sock.recv(_READ_BYTES):
                self._received += data
            self.closed = True
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        messages = []
        received = self._received
        while len(received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
            if len(received) < end:
                break
            messages.append(pickle.loads(received[_LENGTH.size : end]))  # noqa: S301 - from our own process
            del received[:end]
        return messages

    def close(self) -> None:
        self._sock.close()


def wait_for(
    readable: Iterable[MessageSocket] = (), writable: Iterable[MessageSocket] = (), timeout: float | None = None
) -> None:
    """Wait until one of these sockets can be read or written, or until `timeout` seconds have passed.

    `select.select` would refuse descriptors above 1,023, which a process with many open files has.
    """
    events = dict.fromkeys(readable, selectors.EVENT_READ)
    for messages in writable:
        events[messages] = events.get(messages, 0) | selectors.EVENT_WRITE
    with selectors.PollSelector() as selector:
        for messages, mask in events.items():
            selector.register(messages, mask)
        selector.select(timeout)
