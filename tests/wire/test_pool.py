"""Connection pool over real sockets: reuse, lost connections, retries, and large bodies."""

from __future__ import annotations

import hashlib
import resource
import socket
import threading
import time

import pytest

from penstock.wire import connection, kernel_stamps
from penstock.wire.connection import Connection
from penstock.wire.exchange import WireError
from support.loopback import Client, Server, always_reply, body_of, close_with_reset, read_request, reply, request

MEGA = 1 << 20


def test_exchange_holds_reply_and_times():
    with Server(always_reply(reply(b"hello", "X-Test: yes"))) as server, Client(server.port) as client:
        before = time.monotonic_ns()
        exchange = client.send(request(b"abc"))
        after = time.monotonic_ns()
    assert (exchange.status, body_of(exchange), exchange.error) == (200, b"hello", None)
    assert exchange.header(b"x-test") == b"yes"
    assert before <= exchange.start <= exchange.sent <= after
    assert exchange.start <= exchange.first_byte <= exchange.end <= after
    assert exchange.end == exchange.times[-1]
    assert exchange.counts[-1] == len(exchange.pieces)
    assert exchange.bytes_received == len(reply(b"hello", "X-Test: yes"))


def test_idle_connection_is_reused():
    with Server(always_reply(reply())) as server, Client(server.port) as client:
        exchanges = [client.send() for _ in range(5)]
    assert server.connections == 1
    assert [e.reused for e in exchanges] == [False, True, True, True, True]
    assert exchanges[0].connect_ns > 0
    assert [e.connect_ns for e in exchanges[1:]] == [0] * 4


def test_without_reuse_each_request_opens_a_connection():
    with Server(always_reply(reply())) as server, Client(server.port, reuse=False) as client:
        exchanges = [client.send() for _ in range(3)]
        client.run_until(lambda: server.closed == 3)
    assert server.connections == 3
    assert all(not e.reused and e.connect_ns > 0 for e in exchanges)


def test_owner_keeps_its_connection_until_it_is_released():
    with Server(always_reply(reply())) as server, Client(server.port, reuse=False) as client:
        reused = [client.send(owner=owner).reused for owner in ("a", "b", "a", "b", "a")]
        assert reused == [False, False, True, True, True]
        client.pool.release("a")
        client.run_until(lambda: server.closed == 1)
        assert not client.send(owner="a").reused
        client.pool.release_all()
        client.run_until(lambda: server.closed == 3)
    assert server.connections == 3


def test_concurrent_requests_use_separate_connections():
    with Server(always_reply(reply())) as server, Client(server.port) as client:
        exchanges = [client.start() for _ in range(10)]
        client.wait(*exchanges)
        again = [client.start() for _ in range(10)]
        client.wait(*again)
    assert server.connections == 10
    assert [e.status for e in exchanges + again] == [200] * 20


def test_connections_opened_ahead_serve_the_first_requests():
    with Server(always_reply(reply())) as server, Client(server.port) as client:
        assert client.open_ahead(300) == (300, None)
        exchanges = [client.start() for _ in range(300)]
        client.wait(*exchanges)
        assert server.connections == 300
    assert all(e.connect_ns == 0 and e.status == 200 for e in exchanges)
    assert client.stats.connects == 300


def test_connection_close_header_prevents_reuse():
    with Server(always_reply(reply(b"x", "Connection: close"))) as server, Client(server.port) as client:
        assert [client.send().status for _ in range(3)] == [200, 200, 200]
    assert server.connections == 3


# -- connections that the server has closed ---------------------------------------------------------------------------


class OneReply:
    """Sends one reply and closes the connection when `leave` is set."""

    def __init__(self, close=socket.socket.close) -> None:
        self._close = close
        self.leave = threading.Event()

    def __call__(self, sock: socket.socket, _: int) -> None:
        if read_request(sock) is not None:
            sock.sendall(reply())
            self.leave.wait(60)
            self._close(sock)


@pytest.fixture
def late_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a close that arrives between the check of an idle connection and the send."""
    check_open = Connection.check_open
    monkeypatch.setattr(Connection, "check_open", lambda connection: check_open(connection) or True)


CLOSES = pytest.mark.parametrize("close", [socket.socket.close, close_with_reset], ids=["FIN", "RST"])


@CLOSES
def test_connection_with_a_pending_close_is_replaced_before_the_send(close):
    once = OneReply(close)
    with Server(once) as server, Client(server.port) as client:
        assert client.send().status == 200
        once.leave.set()
        client.wait_for_close()
        second = client.send()
    assert (second.status, second.retries, second.error) == (200, 0, None)
    assert not second.reused
    assert client.stats.stale == 0
    assert server.connections == 2


@pytest.mark.skipif(not kernel_stamps.AVAILABLE, reason="needs TCP_INFO")
@pytest.mark.usefixtures("late_close")
@CLOSES
def test_request_that_crosses_a_close_is_sent_again_on_a_new_connection(close, monkeypatch):
    monkeypatch.setattr(connection, "round_trip_ns", lambda _: 60_000_000_000)
    once = OneReply(close)
    with Server(once) as server, Client(server.port) as client:
        assert client.send().status == 200
        once.leave.set()
        client.wait_for_close()
        second = client.send()
    assert (second.status, second.retries, second.error) == (200, 1, None)
    assert not second.reused
    assert second.start <= second.first_byte
    assert second.lost_ns > 0
    assert client.stats.stale == 1
    assert server.connections == 2


@pytest.mark.usefixtures("late_close")
def test_reset_later_than_a_round_trip_after_the_send_is_a_failure(monkeypatch):
    """A reset acknowledges nothing, so the server may have read the request."""
    monkeypatch.setattr(connection, "round_trip_ns", lambda _: 0)
    once = OneReply(close_with_reset)
    with Server(once) as server, Client(server.port) as client:
        client.send()
        once.leave.set()
        client.wait_for_close()
        second = client.send()
    assert second.error is not None
    assert (second.error.type, second.error.owner, second.retries) == ("ConnectionLost", "server", 0)


def test_closed_idle_connection_is_dropped_without_a_retry():
    once = OneReply()
    with Server(once) as server, Client(server.port) as client:
        client.send()
        once.leave.set()
        client.run_until(lambda: not client.pool._idle)
        second = client.send()
    assert (second.status, second.retries) == (200, 0)
    assert client.stats.stale == 0


def closes_without_reply(requests: list[int]):
    """Return a handler that reads a request and closes the connection without a reply."""

    def handler(sock: socket.socket, number: int) -> None:
        if read_request(sock) is not None:
            requests.append(number)

    return handler


@pytest.mark.parametrize(
    ("close", "pause"),
    [(socket.socket.close, 0), (socket.socket.close, 0.05), (close_with_reset, 0.05)],
    ids=["FIN at once", "FIN later", "RST later"],
)
def test_request_that_the_server_read_and_dropped_fails_without_a_retry(close, pause):
    requests: list[bytes | None] = []

    def handler(sock: socket.socket, _: int) -> None:
        requests.append(read_request(sock))
        time.sleep(pause)
        close(sock)

    with Server(handler) as server, Client(server.port) as client:
        client.open_ahead(1)
        exchange = client.send()
    assert exchange.error is not None
    assert (exchange.error.type, exchange.error.owner) == ("ConnectionLost", "server")
    assert (exchange.retries, exchange.lost_ns, client.stats.stale) == (0, 0, 0)
    assert requests == [b"{}"]


@pytest.mark.skipif(not kernel_stamps.AVAILABLE, reason="needs TCP_INFO")
@pytest.mark.usefixtures("late_close")
def test_request_is_sent_at_most_twice():
    leave = threading.Event()
    requests: list[int] = []

    def handler(sock: socket.socket, number: int) -> None:
        if number == 0:
            leave.wait(60)
        elif read_request(sock) is not None:
            requests.append(number)

    with Server(handler) as server, Client(server.port) as client:
        client.open_ahead(1)
        leave.set()
        client.wait_for_close()
        exchange = client.send()
    assert exchange.error is not None
    assert exchange.error.type == "ConnectionLost"
    assert "before it replied" in exchange.error.message
    assert exchange.error.owner == "server"
    assert exchange.retries == 1
    assert requests == [1]


def test_request_on_a_new_connection_is_not_sent_again():
    requests: list[int] = []
    with Server(closes_without_reply(requests)) as server, Client(server.port, reuse=False) as client:
        exchange = client.send()
    assert exchange.error is not None
    assert exchange.retries == 0
    assert len(requests) == 1


@pytest.mark.parametrize("part", [b"H", b"HTTP/1.1 200 OK\r\nContent-Le", reply(b"hello")[:-1]])
def test_request_is_not_sent_again_after_a_partial_reply(part):
    requests: list[int] = []

    def handler(sock: socket.socket, number: int) -> None:
        while read_request(sock) is not None:
            requests.append(number)
            sock.sendall(part)
            return

    with Server(handler) as server, Client(server.port) as client:
        client.open_ahead(1)
        exchange = client.send()
    assert len(requests) == 1
    assert exchange.error is not None
    assert "in the middle of its reply" in exchange.error.message
    assert exchange.retries == 0


# -- errors ---------------------------------------------------------------------------------------------------------

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.mark.parametrize("close", [socket.socket.close, close_with_reset], ids=["FIN", "RST"])
@pytest.mark.parametrize("pause", [0, 0.05], ids=["at once", "later"])
@pytest.mark.parametrize("part", [reply(b"hello world")[:-6], CHUNKED], ids=["content-length", "chunked"])
def test_truncated_reply_fails_and_keeps_received_bytes(part, pause, close):
    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(part)
        time.sleep(pause)
        close(sock)

    with Server(handler) as server, Client(server.port) as client:
        exchange = client.send()
    assert exchange.status == 200
    assert body_of(exchange) == b"hello"
    assert exchange.error is not None
    assert exchange.error.type == "ConnectionLost"
    assert exchange.error.owner == "server"


def test_reset_after_a_complete_reply_is_no_error():
    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(reply())
        close_with_reset(sock)

    with Server(handler) as server, Client(server.port) as client:
        for n in range(20):
            exchange = client.send()
            assert (exchange.status, body_of(exchange), exchange.error) == (200, b"hello", None)
            client.run_until(lambda n=n: server.closed == n + 1 and not client.pool._idle)  # the reset has arrived


def test_reset_inside_a_long_reply_ends_the_exchange():
    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + bytes(2 * MEGA))
        close_with_reset(sock)

    with Server(handler) as server, Client(server.port) as client:
        for _ in range(5):
            exchange = client.send()
            assert exchange.error is not None
            assert exchange.error.type == "ConnectionLost"


def test_unreported_reset_is_detected_by_check_resets():
    reset_now = threading.Event()

    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
        reset_now.wait(60)
        close_with_reset(sock)

    with Server(handler) as server, Client(server.port) as client:
        exchange = client.start()
        client.run_until(lambda: exchange.times)
        client.pool.pause(exchange)  # libuv also stops polling after an error
        reset_now.set()
        client.run(0.05)
        assert not exchange.tag.done()
        client.run_until(lambda: client.pool.check_resets(time.monotonic_ns()) or exchange.tag.done())
    assert exchange.error is not None
    assert exchange.error.type == "ConnectionLost"


def test_body_without_length_ends_with_the_connection():
    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello ")
        sock.sendall(b"world")

    with Server(handler) as server, Client(server.port) as client:
        exchange = client.send()
    assert (exchange.status, body_of(exchange), exchange.error) == (200, b"hello world", None)


def test_refused_connection_is_the_servers_error():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # never listens, and keeps other processes from using the port
        port = bound.getsockname()[1]
        with Client(port) as client:
            exchange = client.send()
            opened, error = client.open_ahead(3)
    for failure in (exchange.error, error):
        assert failure is not None
        assert (failure.type, failure.owner) == ("ConnectionRefused", "server")
        assert f"127.0.0.1:{port}" in failure.message
    assert opened == 0


def test_reply_of_another_protocol_is_a_protocol_error():
    with Server(always_reply(b"220 mail.example.com ESMTP\r\n")) as server, Client(server.port) as client:
        exchange = client.send()
    assert exchange.error is not None
    assert (exchange.error.type, exchange.error.owner) == ("ProtocolError", "server")


def test_protocol_switch_is_a_protocol_error():
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    with Server(always_reply(upgrade)) as server, Client(server.port) as client:
        exchange = client.send()
    assert exchange.error is not None
    assert exchange.error.type == "ProtocolError"


@pytest.mark.parametrize("excess", [b"garbage", reply(b"a second one")])
def test_bytes_after_a_reply_close_the_connection_but_keep_the_reply(excess):
    with Server(always_reply(reply() + excess)) as server, Client(server.port) as client:
        exchanges = [client.send() for _ in range(3)]
    assert [(e.status, body_of(e), e.error) for e in exchanges] == [(200, b"hello", None)] * 3
    assert server.connections == 3


def test_bytes_on_an_idle_connection_close_it():
    send_more = threading.Event()

    def handler(sock: socket.socket, _: int) -> None:
        while read_request(sock) is not None:
            sock.sendall(reply())
            send_more.wait(60)
            sock.sendall(reply(b"unasked"))

    with Server(handler) as server, Client(server.port) as client:
        client.send()
        send_more.set()
        client.run_until(lambda: not client.pool._idle)
        second = client.send()
    assert body_of(second) == b"hello"
    assert server.connections == 2


def test_missing_socket_is_penstocks_error():
    with Server(always_reply(reply())) as server, Client(server.port) as client:
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


def test_aborted_exchange_keeps_received_bytes():
    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(CHUNKED)
        sock.recv(1)

    with Server(handler) as server, Client(server.port) as client:
        exchange = client.start()
        client.run_until(lambda: exchange.times)
        client.pool.abort(exchange, WireError("Timeout", "too slow", "server"))
        client.run_until(lambda: server.closed == 1)
    assert exchange.error is not None
    assert exchange.error.type == "Timeout"
    assert body_of(exchange) == b"hello"
    assert exchange.end >= exchange.times[-1]


# -- size -------------------------------------------------------------------------------------------------------------


def test_large_request_is_sent_as_fast_as_the_server_reads():
    body = bytes(range(256)) * 4 * 8192  # 8 MB
    digests: list[str] = []

    def handler(sock: socket.socket, _: int) -> None:
        digest, left = hashlib.sha256(), len(request(body))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.recv(1, socket.MSG_PEEK)  # the client has started to send
        time.sleep(0.2)
        while left:
            part = sock.recv(min(left, 200_000))
            left -= len(part)
            digest.update(part)
            if left > len(body) // 2:
                time.sleep(0.005)
        digests.append(digest.hexdigest())
        sock.sendall(reply())

    with Server(handler) as server, Client(server.port) as client:
        exchange = client.send(request(body))
    assert digests == [hashlib.sha256(request(body)).hexdigest()]
    assert exchange.status == 200
    assert exchange.sent - exchange.start > 100_000_000


def test_slow_server_does_not_delay_other_requests():
    gate = threading.Event()

    def handler(sock: socket.socket, number: int) -> None:
        if number == 0:
            gate.wait(60)
        while read_request(sock) is not None:
            sock.sendall(reply(b"%d" % number))

    with Server(handler) as server, Client(server.port) as client:
        slow = client.start(request(bytes(32 * MEGA)))
        client.run_until(lambda: slow.start >= 0)
        quick = client.send()
        assert slow.sent < 0
        gate.set()
        client.wait(slow)
    assert body_of(quick) == b"1"
    assert body_of(slow) == b"0"


def test_reply_before_the_request_is_fully_sent_ends_the_exchange():
    def handler(sock: socket.socket, _: int) -> None:
        sock.recv(1000)
        sock.sendall(reply(b"too large", status="413 Content Too Large"))
        while sock.recv(MEGA):
            time.sleep(0.001)

    with Server(handler) as server, Client(server.port) as client:
        exchange = client.send(request(bytes(32 * MEGA)))
        client.run_until(lambda: server.closed == 1)
    assert (exchange.status, body_of(exchange), exchange.error) == (413, b"too large", None)


@pytest.mark.parametrize("chunked", [False, True])
def test_reply_of_200_megabytes_is_read_in_linear_time(chunked):
    """This takes about one second; a quadratic reader would take an hour."""
    size, block = 200 * MEGA, bytes(16384)

    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        sock.sendall(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        piece = b"%x\r\n%b\r\n" % (len(block), block) if chunked else block
        pieces = piece * 16
        for _ in range(size // len(block) // 16):
            sock.sendall(pieces)
        if chunked:
            sock.sendall(b"0\r\n\r\n")

    with Server(handler) as server, Client(server.port) as client:
        exchange = client.send(timeout=300)
    assert exchange.error is None
    assert sum(map(len, exchange.pieces)) == size


# -- relaying ---------------------------------------------------------------------------------------------------------


def test_relayed_reply_is_passed_on_as_it_arrives_and_can_be_paused():
    sent = [0]

    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 * MEGA))
        for _ in range(64):
            sock.sendall(bytes(MEGA))
            sent[0] += 1

    with Server(handler) as server, Client(server.port) as client:
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
