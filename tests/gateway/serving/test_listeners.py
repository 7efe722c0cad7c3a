"""The listening sockets for callers."""

from __future__ import annotations

import socket

from penstock.gateway.resources.config import ListenConfig
from penstock.gateway.serving.listeners import Listeners


def test_accepted_connections_send_small_pieces_at_once() -> None:
    """With Nagle's algorithm, the first event of a stream would wait for the acknowledgement of its head."""
    listeners = Listeners.open(ListenConfig(port=0, workers=1))
    try:
        with (
            socket.socket(fileno=socket.dup(listeners.listen(0))) as listener,
            socket.create_connection(("127.0.0.1", listeners.port), timeout=60),
        ):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        listeners.close_all()
