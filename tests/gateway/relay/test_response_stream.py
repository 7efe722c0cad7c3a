"""The sockets of callers, found among the descriptors of the process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.gateway.relay import response_stream
from penstock.gateway.relay.response_stream import ClientSockets


@pytest.fixture
def callers() -> Iterator[list[str]]:
    """The addresses of a hundred that are connected, in the order in which they came."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        made = [stack.enter_context(socket.create_connection(server.getsockname())) for _ in range(100)]
        for _ in made:
            stack.enter_context(server.accept()[0])
        yield ["{}:{}".format(*one.getsockname()) for one in made]


def found(client_sockets: ClientSockets, client: str) -> bool:
    file = client_sockets.open(client)
    if file is None:
        return False
    try:
        with response_stream.borrowed(file) as connection:
            return client == "{}:{}".format(*connection.getpeername())
    finally:
        os.close(file)


def test_a_new_caller_is_found_without_looking_at_all_the_others(
    callers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    peer = response_stream._peer
    monkeypatch.setattr(response_stream, "_peer", lambda file: looks.append(file) or peer(file))
    client_sockets = ClientSockets()
    assert found(client_sockets, callers[-1])
    assert len(looks) < 50
    assert found(client_sockets, callers[50])  # those on the way are remembered
    looks.clear()
    assert found(client_sockets, callers[60])
    assert len(looks) == 2


def test_everybody_is_found_and_nobody_else(callers: list[str]) -> None:
    client_sockets = ClientSockets()
    assert all(found(client_sockets, client) for client in callers)
    assert not found(client_sockets, "127.0.0.1:1")
    assert set(callers) <= set(client_sockets.all())


def test_those_that_have_left_are_forgotten(callers: list[str]) -> None:
    client_sockets = ClientSockets()
    client_sockets._descriptors_by_address = {f"10.0.0.1:{port}": port for port in range(60_000)}
    assert found(client_sockets, callers[0])
    assert len(client_sockets._descriptors_by_address) < 1000


def test_sockets_of_any_kind_are_looked_at() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
        caller = stack.enter_context(socket.create_connection(server.getsockname()[:2]))
        stack.enter_context(server.accept()[0])
        for one in socket.socketpair():
            stack.enter_context(one)
        if hasattr(socket, "AF_NETLINK"):
            stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
        client_sockets = ClientSockets()
        address = "[{}]:{}".format(*caller.getsockname())
        file = client_sockets.open(address)
        assert file is not None
        os.close(file)
        assert address in client_sockets.all()
        os.fstat(caller.fileno())  # nobody was closed for being looked at
