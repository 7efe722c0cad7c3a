"""Kernel stamps: what the server did, not when we looked."""

from __future__ import annotations

import socket
import sys
import threading
import time

import pytest

from support.loopback import Client, Server, body_of, forever, reply, take

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernel receive stamps are Linux's")

MS = 1_000_000


def test_every_read_carries_a_kernel_stamp():
    with Server(forever(reply())) as server, Client(server.port) as client:
        for _ in range(20):
            client.ask()
    assert client.gauge.reads >= 20
    assert client.gauge.stamped == client.gauge.reads
    assert client.gauge.delay.n == client.gauge.reads


def test_a_loop_that_was_blocked_still_knows_when_the_reply_came():
    answered = threading.Event()
    at = []

    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(reply())
        at.append(time.monotonic_ns())
        answered.set()
        sock.recv(1)

    with Server(talk) as server, Client(server.port) as client:
        client.open_ahead(1)
        exchange = client.start()
        answered.wait(20)
        time.sleep(0.15)  # the loop is busy with something else
        client.wait(exchange)
    assert exchange.start <= exchange.first_byte <= exchange.end <= at[0] + MS
    assert client.gauge.delay.largest > 140 * MS


def test_segments_that_one_read_covers_are_marked():
    sent = threading.Event()

    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        for _ in range(5):
            time.sleep(0.01)
            sock.sendall(b"ab")
        sent.set()
        sock.recv(1)

    with Server(talk) as server, Client(server.port) as client:
        client.open_ahead(1)
        exchange = client.start()
        sent.wait(20)
        time.sleep(0.02)
        client.wait(exchange)
    assert body_of(exchange) == b"ab" * 5
    assert len(exchange.times) == 1
    assert exchange.coarse == [0]
    # the one stamp is the newest segment's
    assert exchange.times[0] - exchange.start >= 45 * MS


def test_segments_that_are_read_one_by_one_are_not_marked():
    read = threading.Semaphore(0)

    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        for _ in range(5):
            read.acquire(timeout=20)
            sock.sendall(b"ab")

    with Server(talk) as server, Client(server.port) as client:
        exchange = client.start()
        for number in range(1, 6):
            client.run_until(lambda number=number: len(exchange.times) == number)
            read.release()
        client.wait(exchange)
    assert len(exchange.times) == 6
    assert exchange.coarse == []
    assert exchange.times == sorted(exchange.times)
    assert exchange.counts == sorted(exchange.counts)


def test_a_stamp_is_never_later_than_the_read():
    with Server(forever(reply())) as server, Client(server.port) as client:
        for _ in range(50):
            exchange = client.ask()
            assert exchange.end <= time.monotonic_ns()
