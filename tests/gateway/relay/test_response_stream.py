"""Finding the sockets of callers among the descriptors of the process."""

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
    """The addresses of a hundred connected callers, in the order of their connections."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        clients = [stack.enter_context(socket.create_connection(server.getsockname())) for _ in range(100)]
        for _ in clients:
            stack.enter_context(server.accept()[0])
        yield ["{}:{}".format(*client.getsockname()) for client in clients]


def can_find(client_sockets: ClientSockets, client: str) -> bool:
    file = client_sockets.open(client)
    if file is None:
        return False
    try:
        with response_stream.borrowed(file) as connection:
            return client == "{}:{}".format(*connection.getpeername())
    finally:
        os.close(file)


def test_new_caller_is_found_without_examining_all_descriptors(
    callers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[int] = []
    peer = response_stream._peer
    monkeypatch.setattr(response_stream, "_peer", lambda file: examined.append(file) or peer(file))
    client_sockets = ClientSockets()
    assert can_find(client_sockets, callers[-1])
    assert len(examined) < 50
    assert can_find(client_sockets, callers[50])  # sockets seen on the way are remembered
    examined.clear()
    assert can_find(client_sockets, callers[60])
    assert len(examined) == 2


def test_all_callers_are_found_and_unknown_ones_are_not(callers: list[str]) -> None:
    client_sockets = ClientSockets()
    assert all(can_find(client_sockets, client) for client in callers)
    assert not can_find(client_sockets, "127.0.0.1:1")
    assert set(callers) <= set(client_sockets.all())


def test_closed_callers_are_forgotten(callers: list[str]) -> None:
    client_sockets = ClientSockets()
    client_sockets._descriptors_by_address = {f"10.0.0.1:{port}": port for port in range(60_000)}
    assert can_find(client_sockets, callers[0])
    assert len(client_sockets._descriptors_by_address) < 1000


def test_search_accepts_sockets_of_any_family() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
        caller = stack.enter_context(socket.create_connection(server.getsockname()[:2]))
        stack.enter_context(server.accept()[0])
        for end in socket.socketpair():
            stack.enter_context(end)
        if hasattr(socket, "AF_NETLINK"):
            stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
        client_sockets = ClientSockets()
        address = "[{}]:{}".format(*caller.getsockname())
        file = client_sockets.open(address)
        assert file is not None
        os.close(file)
        assert address in client_sockets.all()
        os.fstat(caller.fileno())  # the search closes no descriptor
