"""The listening sockets for callers."""

from __future__ import annotations

import socket

import pytest

from penstock.errors import UserError
from penstock.gateway.resources.config import GatewayConfig, ListenConfig
from penstock.gateway.serving.listeners import Listeners
from penstock.gateway.serving.runtime import Runtime
from penstock.gateway.serving.take_over import take_over


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


def test_invalid_host_is_an_error_of_the_user() -> None:
    listen = ListenConfig(host="a..b")
    with pytest.raises(UserError, match=r"cannot listen on a\.\.b"):
        Listeners.open(listen)
    runtime = Runtime.create(GatewayConfig())  # the address of a running gateway is compared
    try:
        with pytest.raises(UserError, match=r"cannot listen on a\.\.b"):
            take_over(listen)
    finally:
        runtime.remove()
