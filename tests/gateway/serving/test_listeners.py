"""The listening sockets for callers."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.gateway.resources.config import GatewayConfig, ListenConfig
from penstock.gateway.serving.listeners import Listeners, stop_accepting
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


def test_only_the_descriptors_of_the_listener_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file on another file system may have the inode number of the socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener, open(tmp_path / "spool", "wb", buffering=0) as spool:
        fstat = os.fstat
        inode = fstat(listener.fileno()).st_ino

        def same_inode(file: int) -> os.stat_result:
            status = fstat(file)
            return os.stat_result([status[0], inode, *status[2:]]) if file == spool.fileno() else status

        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", same_inode)
            stop_accepting(listener.fileno(), str(tmp_path))
        spool.write(b"entry")
        assert isinstance(listener.getsockname(), str)  # the path of the socket to which nobody can connect
    assert (tmp_path / "spool").read_bytes() == b"entry"


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
