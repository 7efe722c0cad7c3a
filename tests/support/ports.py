"""Ports for programs and tests that cannot let the system choose one."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_numbers = random.SystemRandom()


def unused_port(*addresses: str) -> int:
    """Return a port that is free on all addresses.

    It lies below the range from which Linux and macOS take the ports of outgoing connections, so that no connection of
    another test gets it before it is used.
    """
    while True:
        port = _numbers.randrange(10_000, 32_000)
        try:
            for address in addresses:
                with socket.socket() as probe:
                    probe.bind((address, port))
        except OSError:
            continue
        return port


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port that nothing listens on. It stays bound, so that no other test gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
