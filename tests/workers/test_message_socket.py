"""Messages between the runner and its workers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.workers.message_socket import MessageSocket, wait_for

HIGH = 1100
"""Above the largest descriptor that `select.select` accepts."""


@pytest.fixture
def pair() -> Iterator[tuple[MessageSocket, MessageSocket]]:
    """Two connected sockets with high descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] <= HIGH + 2:
        pytest.skip("the system allows too few open files")
    with contextlib.ExitStack() as stack:
        if limits[0] <= HIGH + 2:
            resource.setrlimit(resource.RLIMIT_NOFILE, (HIGH + 100, limits[1]))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        both = []
        for low in socket.socketpair():
            with low:
                high = MessageSocket(socket.socket(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH)))
            stack.callback(high.close)
            both.append(high)
        assert min(messages.fileno() for messages in both) >= HIGH
        yield both[0], both[1]


def test_message_arrives_on_a_high_descriptor(pair: tuple[MessageSocket, MessageSocket]) -> None:
    ours, theirs = pair
    ours.send({"a": 1})
    wait_for([theirs])
    assert theirs.receive() == [{"a": 1}]


def test_flush_all_waits_until_everything_is_read(pair: tuple[MessageSocket, MessageSocket]) -> None:
    ours, theirs = pair
    large = os.urandom(4 << 20)
    ours.send(large)
    assert ours.unsent
    received: list[bytes] = []

    def read() -> None:
        while not received:
            wait_for([theirs])
            received.extend(theirs.receive())

    reader = threading.Thread(target=read)
    reader.start()
    ours.flush_all()
    reader.join()
    assert received == [large]
    assert not ours.unsent


def test_wait_ends_at_its_timeout_and_for_sockets_that_can_be_written(
    pair: tuple[MessageSocket, MessageSocket],
) -> None:
    ours, _ = pair
    wait_for([ours], timeout=0.001)
    wait_for([ours], [ours])
    wait_for(timeout=0.001)
