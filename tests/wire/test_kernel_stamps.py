"""Kernel stamps: the time at which bytes arrived, not at which they were read."""

from __future__ import annotations

import socket
import sys
import threading
import time

import pytest

from support.loopback import Client, Server, always_reply, body_of, read_request, reply

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has kernel receive stamps")

MS = 1_000_000


def test_every_read_has_a_kernel_stamp():
    with Server(always_reply(reply())) as server, Client(server.port) as client:
        for _ in range(20):
            client.send()
    assert client.stats.reads >= 20
    assert client.stats.stamped == client.stats.reads
    assert client.stats.delay.n == client.stats.reads


def test_arrival_time_is_correct_if_the_loop_was_blocked():
    answered = threading.Event()
    sent_at = []

    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(reply())
        sent_at.append(time.monotonic_ns())
        answered.set()
        sock.recv(1)

    with Server(handler) as server, Client(server.port) as client:
        client.open_ahead(1)
        exchange = client.start()
        answered.wait(60)
        time.sleep(0.15)  # the loop does not run meanwhile
        client.wait(exchange)
    assert exchange.start <= exchange.first_byte <= exchange.end <= sent_at[0] + 100 * MS
    assert client.stats.delay.largest > 140 * MS


def test_read_of_several_segments_is_marked_as_coalesced():
    sent = threading.Event()

    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        for _ in range(5):
            time.sleep(0.01)
            sock.sendall(b"ab")
        sent.set()
        sock.recv(1)

    with Server(handler) as server, Client(server.port) as client:
        client.open_ahead(1)
        exchange = client.start()
        sent.wait(60)
        time.sleep(0.02)
        client.wait(exchange)
    assert body_of(exchange) == b"ab" * 5
    assert len(exchange.times) == 1
    assert exchange.coalesced == [0]
    assert exchange.earliest == [exchange.start]
    # the stamp is that of the newest segment
    assert exchange.times[0] - exchange.start >= 45 * MS


def test_reads_of_single_segments_are_not_marked():
    read = threading.Semaphore(0)

    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        for _ in range(5):
            read.acquire(timeout=60)
            sock.sendall(b"ab")

    with Server(handler) as server, Client(server.port) as client:
        exchange = client.start()
        for number in range(1, 6):
            client.run_until(lambda number=number: len(exchange.times) == number)
            read.release()
        client.wait(exchange)
    assert len(exchange.times) == 6
    assert exchange.coalesced == []
    assert exchange.times == sorted(exchange.times)
    assert exchange.counts == sorted(exchange.counts)


def test_stamp_is_never_later_than_the_read():
    with Server(always_reply(reply())) as server, Client(server.port) as client:
        for _ in range(50):
            exchange = client.send()
            assert exchange.end <= time.monotonic_ns()
