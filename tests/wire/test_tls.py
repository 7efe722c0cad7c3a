"""TLS: certificates that are trusted, refused, or accepted without verification."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from cryptography import x509

from penstock.wire.tls import TLS, client_context
from support.certificates import Certificates
from support.loopback import Client, Server, always_reply, body_of, read_request, reply, request


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def test_server_with_a_trusted_certificate_is_accepted(certificates):
    server = Server(always_reply(reply()), tls=certificates.server())
    with server, Client(server.port, tls=certificates.client()) as client:
        exchanges = [client.send() for _ in range(3)]
    assert [(e.status, body_of(e), e.error) for e in exchanges] == [(200, b"hello", None)] * 3
    assert server.connections == 1
    first = exchanges[0]
    assert first.connect_ns > 0
    assert first.start <= first.sent
    assert first.start <= first.first_byte <= first.end


@pytest.mark.parametrize(
    "defect",
    [{"signed": False}, {"names": (x509.DNSName("elsewhere.example"),)}, {"days": -1}],
    ids=["self-signed", "another host", "expired"],
)
def test_untrusted_certificate_is_refused_and_the_message_names_insecure(certificates, defect):
    server = Server(always_reply(reply()), tls=certificates.server(**defect))
    with server, Client(server.port, tls=certificates.client()) as client:
        exchange = client.send()
    assert exchange.error is not None
    assert (exchange.error.type, exchange.error.owner) == ("CertificateError", "server")
    assert f"127.0.0.1:{server.port}" in exchange.error.message
    assert "--insecure" in exchange.error.message


@pytest.mark.parametrize("defect", [{"signed": False}, {"names": (x509.DNSName("elsewhere.example"),)}])
def test_verification_can_be_disabled(certificates, defect):
    server = Server(always_reply(reply()), tls=certificates.server(**defect))
    with server, Client(server.port, tls=client_context(False)) as client:
        assert client.open_ahead(2) == (2, None)
        assert client.send().status == 200


def test_server_without_tls_is_a_tls_error_not_a_certificate_error():
    def handler(sock: socket.socket, _: int) -> None:
        sock.recv(100)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        sock.recv(100)

    with Server(handler) as server, Client(server.port, tls=client_context(False)) as client:
        opened, error = client.open_ahead(1)
    assert opened == 0
    assert error is not None
    assert error.type == "TLSError"


def test_http_to_a_tls_port_fails_with_a_hint(certificates):
    with Server(always_reply(reply()), tls=certificates.server()) as server, Client(server.port) as client:
        exchange = client.send()
    assert exchange.error is not None
    assert "https://" in exchange.error.message


def test_tls_alert_in_reply_to_http_is_named():
    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(b"\x15\x03\x01\x00\x02\x02\x46")

    with Server(handler) as server, Client(server.port) as client:
        exchange = client.send()
    assert exchange.error is not None
    assert (exchange.error.type, exchange.error.owner) == ("ProtocolError", "server")
    assert "TLS alert: it speaks https:// there" in exchange.error.message


def test_lost_connection_gives_no_tls_hint_after_a_reply():
    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(reply())
        read_request(sock)

    with Server(handler) as server, Client(server.port) as client:
        client.send()
        exchange = client.send()
    assert exchange.error is not None
    assert exchange.error.message == "The server closed the connection before it replied."


def test_close_during_the_handshake_fails_without_a_retry(certificates):
    def handler(sock: socket.socket, _: int) -> None:
        sock.recv(100)

    with Server(handler) as server, Client(server.port, tls=certificates.client()) as client:
        exchange = client.send()
    assert exchange.error is not None
    assert exchange.retries == 0


def test_large_bodies_pass_in_both_directions(certificates):
    body = bytes(range(256)) * 40_000  # 10 MB

    def handler(sock: socket.socket, _: int) -> None:
        time.sleep(0.1)
        body_received = read_request(sock)
        assert body_received is not None
        sock.sendall(reply(body_received[::-1]))

    server = Server(handler, tls=certificates.server())
    with server, Client(server.port, tls=certificates.client()) as client:
        exchange = client.send(request(body))
    assert exchange.error is None
    assert body_of(exchange) == body[::-1]


def test_body_without_length_ends_with_the_connection(certificates):
    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")
        sock.unwrap()

    server = Server(handler, tls=certificates.server())
    with server, Client(server.port, tls=certificates.client()) as client:
        exchange = client.send()
    assert (exchange.status, body_of(exchange), exchange.error) == (200, b"hello", None)


def test_stale_connection_is_replaced(certificates):
    leave = threading.Event()

    def handler(sock: socket.socket, _: int) -> None:
        read_request(sock)
        sock.sendall(reply())
        leave.wait(60)

    server = Server(handler, tls=certificates.server())
    with server, Client(server.port, tls=certificates.client()) as client:
        client.send()
        leave.set()
        client.wait_for_close()
        second = client.send()
    assert (second.status, second.retries, server.connections) == (200, 0, 2)


def relay_to(port: int, connects: list[bytes], status: bytes = b"200 Connection established"):
    """Return a handler that is an HTTP proxy for one tunnel, whatever its target."""

    def handler(sock: socket.socket, _: int) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(1000)
        connects.append(head)
        for byte in b"HTTP/1.1 " + status + b"\r\n\r\n":
            sock.send(bytes([byte]))
        if not status.startswith(b"200"):
            return
        with socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=pump, args=(server, sock), daemon=True)
            back.start()
            pump(sock, server)

    return handler


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def test_tls_passes_through_a_tunnel_of_a_proxy(certificates):
    connects: list[bytes] = []
    server = Server(always_reply(reply()), tls=certificates.server())
    with (
        server,
        Server(relay_to(server.port, connects)) as proxy,
        Client(proxy.port, tls=certificates.client()) as client,
    ):
        name = f"127.0.0.1:{proxy.port}"
        origin = client.pool._origin._replace(port=server.port, proxy=name, proxy_authorization="Basic x")
        client.pool._origin = origin
        assert client.open_ahead(1) == (1, None)
        exchanges = [client.send() for _ in range(2)]
    assert [(exchange.status, body_of(exchange), exchange.reused) for exchange in exchanges] == [
        (200, b"hello", True)
    ] * 2
    target = b"127.0.0.1:%d" % server.port
    assert connects == [
        b"CONNECT " + target + b" HTTP/1.1\r\nHost: " + target + b"\r\nProxy-Authorization: Basic x\r\n\r\n"
    ]


@pytest.mark.parametrize(
    ("status", "reason"),
    [(b"407 Proxy Authentication Required", "HTTP status 407"), (b"nonsense", "its reply is not valid HTTP/1.1")],
)
def test_refused_tunnel_is_an_error_that_names_the_proxy(certificates, status, reason):
    with Server(relay_to(0, [], status)) as proxy, Client(proxy.port, tls=certificates.client()) as client:
        client.pool._origin = client.pool._origin._replace(host="server.example", port=443, proxy="proxy.example:3128")
        exchange = client.send()
    assert exchange.error is not None
    assert (exchange.error.type, exchange.error.owner) == ("ProxyError", "network")
    assert (
        exchange.error.message == f"The proxy proxy.example:3128 did not open a tunnel to server.example:443: {reason}."
    )


def test_tls_reads_keep_kernel_stamps(certificates):
    answered: list[int] = []

    def handler(sock: socket.socket, _: int) -> None:
        while read_request(sock) is not None:
            sock.sendall(reply())
            answered.append(time.monotonic_ns())

    server = Server(handler, tls=certificates.server())
    with server, Client(server.port, tls=certificates.client()) as client:
        client.send()
        exchange = client.start()
        while len(answered) < 2:
            time.sleep(0.01)  # the loop does not run meanwhile
        time.sleep(0.15)
        client.wait(exchange)
    # the loop read the reply at least 150 ms later
    assert exchange.end <= answered[1] + 100_000_000


def test_large_request_is_encrypted_in_parts(certificates, monkeypatch):
    """Encrypting it in one call would block the event loop."""
    sizes: list[int] = []
    encrypt = TLS.encrypt
    monkeypatch.setattr(TLS, "encrypt", lambda tls, data: sizes.append(len(data)) or encrypt(tls, data))
    for length in (10, 300_000, 5_000_000):
        sizes.clear()
        server = Server(always_reply(reply()), tls=certificates.server())
        body = bytes(range(256)) * (length // 256)
        with server, Client(server.port, tls=certificates.client()) as client:
            exchange = client.send(request(body))
        assert (exchange.status, body_of(exchange), exchange.error) == (200, b"hello", None)
        assert exchange.sent >= exchange.start
        assert max(sizes) <= 1 << 18
        assert sum(sizes) >= len(body)
