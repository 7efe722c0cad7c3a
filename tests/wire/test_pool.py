"""Connections over a real socket: reuse, loss, retries, and bodies of any size."""

from __future__ import annotations

import hashlib
import resource
import select
import socket
import threading
import time

import pytest

from penstock.wire import pool
from penstock.wire.exchange import WireError
from support.loopback import Client, Server, body_of, forever, hang_up_rudely, reply, request, take

MEGA = 1 << 20


def test_an_exchange_holds_what_came_and_when():
    with Server(forever(reply(b"hello", "X-Test: yes"))) as server, Client(server.port) as client:
        before = time.monotonic_ns()
        exchange = client.ask(request(b"abc"))
        after = time.monotonic_ns()
    assert (exchange.status, body_of(exchange), exchange.error) == (200, b"hello", None)
    assert exchange.header(b"x-test") == b"yes"
    assert before <= exchange.start <= exchange.sent <= after
    assert exchange.start <= exchange.first_byte <= exchange.end <= after
    assert exchange.end == exchange.times[-1]
    assert exchange.counts[-1] == len(exchange.pieces)
    assert exchange.bytes_received == len(reply(b"hello", "X-Test: yes"))


def test_a_pooled_connection_serves_one_request_after_the_other():
    with Server(forever(reply())) as server, Client(server.port) as client:
        exchanges = [client.ask() for _ in range(5)]
    assert server.connections == 1
    assert [e.reused for e in exchanges] == [False, True, True, True, True]
    assert exchanges[0].connect_ns > 0
    assert [e.connect_ns for e in exchanges[1:]] == [0] * 4


def test_without_reuse_every_request_has_a_connection_of_its_own():
    with Server(forever(reply())) as server, Client(server.port, reuse=False) as client:
        exchanges = [client.ask() for _ in range(3)]
        client.run_until(lambda: server.closed == 3)
    assert server.connections == 3
    assert all(not e.reused and e.connect_ns > 0 for e in exchanges)


def test_requests_at_the_same_time_have_a_connection_each():
    with Server(forever(reply())) as server, Client(server.port) as client:
        exchanges = [client.start() for _ in range(10)]
        client.wait(*exchanges)
        again = [client.start() for _ in range(10)]
        client.wait(*again)
    assert server.connections == 10
    assert [e.status for e in exchanges + again] == [200] * 20


def test_connections_opened_ahead_serve_the_first_requests():
    with Server(forever(reply())) as server, Client(server.port) as client:
        assert client.open_ahead(300) == (300, None)
        exchanges = [client.start() for _ in range(300)]
        client.wait(*exchanges)
        assert server.connections == 300
    assert all(e.connect_ns == 0 and e.status == 200 for e in exchanges)
    assert client.gauge.connects == 300


def test_a_reply_that_says_close_is_the_last_on_its_connection():
    with Server(forever(reply(b"x", "Connection: close"))) as server, Client(server.port) as client:
        assert [client.ask().status for _ in range(3)] == [200, 200, 200]
    assert server.connections == 3


# -- connections that the server has closed ---------------------------------------------------------------------------


class OneReply:
    """Answers once, and ends the connection when it is told to."""

    def __init__(self, close=socket.socket.close) -> None:
        self._close = close
        self.leave = threading.Event()

    def __call__(self, sock: socket.socket, _: int) -> None:
        if take(sock) is not None:
            sock.sendall(reply())
            self.leave.wait(20)
            self._close(sock)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need longer than a round trip to see that a connection is gone."""
    monkeypatch.setattr(pool, "_AT_ONCE_NS", 60_000_000_000)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("close", [socket.socket.close, hang_up_rudely], ids=["FIN", "RST"])
def test_a_stale_connection_is_replaced_and_the_request_sent_again(close):
    once = OneReply(close)
    with Server(once) as server, Client(server.port) as client:
        assert client.ask().status == 200
        once.leave.set()
        time.sleep(0.1)  # the loop sleeps too, so nobody noticed
        second = client.ask()
    assert (second.status, second.retries, second.error) == (200, 1, None)
    assert not second.reused
    assert second.start <= second.first_byte
    assert second.lost_ns > 0
    assert client.gauge.stale == 1
    assert server.connections == 2


def test_an_idle_connection_that_ends_is_forgotten_without_a_retry():
    once = OneReply()
    with Server(once) as server, Client(server.port) as client:
        client.ask()
        once.leave.set()
        client.run_until(lambda: server.closed == 1)
        client.run(0.05)
        second = client.ask()
    assert (second.status, second.retries) == (200, 0)
    assert client.gauge.stale == 0


def silent(asked: list[int]):
    """Takes a request and leaves."""

    def talk(sock: socket.socket, number: int) -> None:
        if take(sock) is not None:
            asked.append(number)

    return talk


@pytest.mark.parametrize(
    ("close", "patience"),
    [(socket.socket.close, pool._AT_ONCE_NS), (hang_up_rudely, pool._RESET_NS)],
    ids=["FIN", "RST"],
)
def test_a_request_that_the_server_took_and_dropped_has_failed(close, patience):
    asked: list[bytes | None] = []
    drop = threading.Event()

    def talk(sock: socket.socket, _: int) -> None:
        asked.append(take(sock))
        drop.wait(20)
        close(sock)

    with Server(talk) as server, Client(server.port) as client:
        client.open_ahead(1)
        exchange = client.start()
        client.run_until(lambda: asked)
        client.run((patience + 3 * client.gauge.connect.largest) / 1e9)
        drop.set()
        client.wait(exchange)
    assert exchange.error is not None
    assert (exchange.error.type, exchange.error.owner) == ("ConnectionLost", "server")
    assert (exchange.retries, exchange.lost_ns, client.gauge.stale) == (0, 0, 0)
    assert asked == [b"{}"]


def test_a_busy_server_that_closes_without_having_read_had_no_request(monkeypatch):
    monkeypatch.setattr(pool, "_RESET_NS", 60_000_000_000)
    monkeypatch.setattr(pool, "_AT_ONCE_NS", 0)

    def talk(sock: socket.socket, number: int) -> None:
        if number == 0:
            select.select([sock], [], [], 20)
            time.sleep(0.1)
        else:
            assert take(sock) == b"{}"
            sock.sendall(reply())

    with Server(talk) as server, Client(server.port) as client:
        client.open_ahead(1)
        exchange = client.ask()
    assert (exchange.status, exchange.retries, exchange.error) == (200, 1, None)


def test_a_connection_that_took_long_to_open_is_given_three_times_as_long(monkeypatch):
    """A round trip to a server far away may be longer than any fixed time."""
    monkeypatch.setattr(pool, "_AT_ONCE_NS", 0)
    asked: list[int] = []
    with Server(silent(asked)) as server, Client(server.port) as client:
        client.open_ahead(1)
        connection = next(iter(client.pool._idle))
        connection.opening -= 60_000_000_000
        exchange = client.ask()
    assert exchange.retries == 1
    assert len(asked) == 2


@pytest.mark.usefixtures("patient")
def test_a_request_is_sent_at_most_twice():
    asked: list[int] = []
    with Server(silent(asked)) as server, Client(server.port) as client:
        client.open_ahead(1)
        exchange = client.ask()
    assert exchange.error is not None
    assert exchange.error.type == "ConnectionLost"
    assert "before it replied" in exchange.error.message
    assert exchange.error.owner == "server"
    assert exchange.retries == 1
    assert len(asked) == 2


def test_a_request_on_a_new_connection_is_not_sent_again():
    asked: list[int] = []
    with Server(silent(asked)) as server, Client(server.port, reuse=False) as client:
        exchange = client.ask()
    assert exchange.error is not None
    assert exchange.retries == 0
    assert len(asked) == 1


@pytest.mark.parametrize("part", [b"H", b"HTTP/1.1 200 OK\r\nContent-Le", reply(b"hello")[:-1]])
def test_a_request_is_not_sent_again_once_something_came_back(part):
    asked: list[int] = []

    def talk(sock: socket.socket, number: int) -> None:
        while take(sock) is not None:
            asked.append(number)
            sock.sendall(part)
            return

    with Server(talk) as server, Client(server.port) as client:
        client.open_ahead(1)
        exchange = client.ask()
    assert len(asked) == 1
    assert exchange.error is not None
    assert "in the middle of its reply" in exchange.error.message
    assert exchange.retries == 0


# -- what goes wrong --------------------------------------------------------------------------------------------------

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.mark.parametrize("close", [socket.socket.close, hang_up_rudely], ids=["FIN", "RST"])
@pytest.mark.parametrize("pause", [0, 0.05], ids=["at once", "later"])
@pytest.mark.parametrize("part", [reply(b"hello world")[:-6], CHUNKED], ids=["content-length", "chunked"])
def test_a_reply_that_is_cut_has_failed_and_keeps_what_came(part, pause, close):
    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(part)
        time.sleep(pause)
        close(sock)

    with Server(talk) as server, Client(server.port) as client:
        exchange = client.ask()
    assert exchange.status == 200
    assert body_of(exchange) == b"hello"
    assert exchange.error is not None
    assert exchange.error.type == "ConnectionLost"
    assert exchange.error.owner == "server"


def test_a_whole_reply_with_a_reset_right_behind_it_stands():
    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(reply())
        hang_up_rudely(sock)

    with Server(talk) as server, Client(server.port) as client:
        exchanges = [client.ask() for _ in range(20)]
    assert [(e.status, body_of(e), e.error) for e in exchanges] == [(200, b"hello", None)] * 20


def test_a_long_reply_with_a_reset_in_it_ends():
    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + bytes(2 * MEGA))
        hang_up_rudely(sock)

    with Server(talk) as server, Client(server.port) as client:
        for _ in range(5):
            exchange = client.ask()
            assert exchange.error is not None
            assert exchange.error.type == "ConnectionLost"


def test_a_reset_that_nobody_told_us_of_is_found():
    gone = threading.Event()

    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
        gone.wait(20)
        hang_up_rudely(sock)

    with Server(talk) as server, Client(server.port) as client:
        exchange = client.start()
        client.run_until(lambda: exchange.times)
        client.pool.pause(exchange)  # as libuv does after an error: it watches no more
        gone.set()
        client.run(0.05)
        assert not exchange.tag.done()
        client.run_until(lambda: client.pool.look(time.monotonic_ns()) or exchange.tag.done())
    assert exchange.error is not None
    assert exchange.error.type == "ConnectionLost"


def test_a_body_that_ends_with_the_connection_is_whole():
    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello ")
        sock.sendall(b"world")

    with Server(talk) as server, Client(server.port) as client:
        exchange = client.ask()
    assert (exchange.status, body_of(exchange), exchange.error) == (200, b"hello world", None)


def test_nobody_listens():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # and never listens, so that nobody else does
        port = deaf.getsockname()[1]
        with Client(port) as client:
            exchange = client.ask()
            opened, trouble = client.open_ahead(3)
    for found in (exchange.error, trouble):
        assert found is not None
        assert (found.type, found.owner) == ("ConnectionRefused", "server")
        assert f"127.0.0.1:{port}" in found.message
    assert opened == 0


def test_a_server_that_speaks_something_else():
    with Server(forever(b"220 mail.example.com ESMTP\r\n")) as server, Client(server.port) as client:
        exchange = client.ask()
    assert exchange.error is not None
    assert (exchange.error.type, exchange.error.owner) == ("ProtocolError", "server")


def test_a_server_that_changes_the_protocol_is_refused_at_once():
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    with Server(forever(upgrade)) as server, Client(server.port) as client:
        exchange = client.ask()
    assert exchange.error is not None
    assert exchange.error.type == "ProtocolError"


@pytest.mark.parametrize("excess", [b"garbage", reply(b"a second one")])
def test_bytes_behind_a_reply_cost_the_connection_and_nothing_else(excess):
    with Server(forever(reply() + excess)) as server, Client(server.port) as client:
        exchanges = [client.ask() for _ in range(3)]
    assert [(e.status, body_of(e), e.error) for e in exchanges] == [(200, b"hello", None)] * 3
    assert server.connections == 3


def test_bytes_that_nobody_asked_for_cost_the_connection():
    taken = threading.Event()

    def talk(sock: socket.socket, _: int) -> None:
        while take(sock) is not None:
            sock.sendall(reply())
            taken.wait(20)
            sock.sendall(reply(b"unasked"))

    with Server(talk) as server, Client(server.port) as client:
        client.ask()
        taken.set()
        client.run_until(lambda: not client.pool._idle)
        second = client.ask()
    assert body_of(second) == b"hello"
    assert server.connections == 2


def test_a_system_without_sockets_is_our_own_fault():
    with Server(forever(reply())) as server, Client(server.port) as client:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as probe:
            resource.setrlimit(resource.RLIMIT_NOFILE, (probe.fileno(), hard))
        try:
            exchange = client.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.wait(exchange)
    assert exchange.error is not None
    assert (exchange.error.type, exchange.error.owner) == ("NoSocket", "penstock")


def test_an_exchange_can_be_given_up_and_keeps_what_came():
    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(CHUNKED)
        sock.recv(1)

    with Server(talk) as server, Client(server.port) as client:
        exchange = client.start()
        client.run_until(lambda: exchange.times)
        client.pool.abort(exchange, WireError("Timeout", "too slow", "server"))
        client.run_until(lambda: server.closed == 1)
    assert exchange.error is not None
    assert exchange.error.type == "Timeout"
    assert body_of(exchange) == b"hello"
    assert exchange.end >= exchange.times[-1]


# -- size -------------------------------------------------------------------------------------------------------------


def test_a_big_request_goes_out_as_fast_as_the_server_reads_it():
    body = bytes(range(256)) * 4 * 8192  # 8 MB
    digests: list[str] = []

    def talk(sock: socket.socket, _: int) -> None:
        digest, left = hashlib.sha256(), len(request(body))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        time.sleep(0.2)
        while left:
            part = sock.recv(min(left, 200_000))
            left -= len(part)
            digest.update(part)
            if left > len(body) // 2:
                time.sleep(0.005)
        digests.append(digest.hexdigest())
        sock.sendall(reply())

    with Server(talk) as server, Client(server.port) as client:
        exchange = client.ask(request(body))
    assert digests == [hashlib.sha256(request(body)).hexdigest()]
    assert exchange.status == 200
    assert exchange.sent - exchange.start > 100_000_000


def test_a_slow_reader_does_not_hold_up_the_others():
    gate = threading.Event()

    def talk(sock: socket.socket, number: int) -> None:
        if number == 0:
            gate.wait(20)
        while take(sock) is not None:
            sock.sendall(reply(b"%d" % number))

    with Server(talk) as server, Client(server.port) as client:
        slow = client.start(request(bytes(32 * MEGA)))
        client.run_until(lambda: slow.start >= 0)
        quick = client.ask()
        assert slow.sent < 0
        gate.set()
        client.wait(slow)
    assert body_of(quick) == b"1"
    assert body_of(slow) == b"0"


def test_a_reply_before_the_request_is_out_ends_the_exchange():
    def talk(sock: socket.socket, _: int) -> None:
        sock.recv(1000)
        sock.sendall(reply(b"too large", status="413 Content Too Large"))
        while sock.recv(MEGA):
            time.sleep(0.001)

    with Server(talk) as server, Client(server.port) as client:
        exchange = client.ask(request(bytes(32 * MEGA)))
        client.run_until(lambda: server.closed == 1)
    assert (exchange.status, body_of(exchange), exchange.error) == (413, b"too large", None)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_reply_of_200_megabytes_is_read_in_time(chunked):
    """One second here; with a quadratic reader an hour."""
    size, block = 200 * MEGA, bytes(16384)

    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        sock.sendall(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        piece = b"%x\r\n%b\r\n" % (len(block), block) if chunked else block
        pieces = piece * 16
        for _ in range(size // len(block) // 16):
            sock.sendall(pieces)
        if chunked:
            sock.sendall(b"0\r\n\r\n")

    with Server(talk) as server, Client(server.port) as client:
        exchange = client.ask(timeout=300)
    assert exchange.error is None
    assert sum(map(len, exchange.pieces)) == size


# -- relaying ---------------------------------------------------------------------------------------------------------


def test_a_relayed_reply_comes_as_it_arrives_and_can_be_held_back():
    sent = [0]

    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 * MEGA))
        for _ in range(64):
            sock.sendall(bytes(MEGA))
            sent[0] += 1

    with Server(talk) as server, Client(server.port) as client:
        got: list[int] = []
        exchange = client.start()

        def on_data(relayed) -> None:
            got.append(sum(map(len, relayed.pieces)))
            relayed.pieces.clear()
            if len(got) == 1:
                client.pool.pause(relayed)

        exchange.on_data = on_data
        client.run_until(lambda: got)
        client.run(0.2)
        assert len(got) == 1
        assert sent[0] < 64
        client.pool.resume(exchange)
        client.wait(exchange)
    assert sum(got) == 64 * MEGA
    assert exchange.pieces == []
    assert exchange.error is None
