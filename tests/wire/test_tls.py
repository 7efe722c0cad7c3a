"""TLS: verified, refused, or accepted all the same."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.wire.tls import client_context
from support.loopback import Client, Server, body_of, forever, reply, request, take

HERE = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
NOW = datetime.datetime.now(datetime.UTC)


class Certificates:
    """A certificate authority, and servers that it vouches for or not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        authority = self._builder(self._name, self._name, self._key, ca=True, days=1).sign(self._key, hashes.SHA256())
        self.file = str(folder / "authority.pem")
        Path(self.file).write_bytes(authority.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool, days: int
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - datetime.timedelta(days=10))
            .not_valid_after(NOW + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )

    def server(self, names=tuple(HERE), *, signed: bool = True, days: int = 1) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        builder = self._builder(subject, self._name if signed else subject, key, ca=False, days=days)
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
        certificate = builder.sign(self._key if signed else key, hashes.SHA256())
        path = self._folder / f"server-{certificate.serial_number}.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def client(self) -> ssl.SSLContext:
        context = client_context(True)
        context.load_verify_locations(self.file)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def test_a_server_that_is_vouched_for_is_trusted(certificates):
    server = Server(forever(reply()), tls=certificates.server())
    with server, Client(server.port, tls=certificates.client()) as client:
        exchanges = [client.ask() for _ in range(3)]
    assert [(e.status, body_of(e), e.error) for e in exchanges] == [(200, b"hello", None)] * 3
    assert server.connections == 1
    first = exchanges[0]
    assert first.connect_ns > 0
    assert first.start <= first.sent
    assert first.start <= first.first_byte <= first.end


@pytest.mark.parametrize(
    "flaw",
    [{"signed": False}, {"names": (x509.DNSName("elsewhere.example"),)}, {"days": -1}],
    ids=["self-signed", "another host", "expired"],
)
def test_a_server_that_is_not_is_refused_and_the_sentence_says_what_to_do(certificates, flaw):
    server = Server(forever(reply()), tls=certificates.server(**flaw))
    with server, Client(server.port, tls=certificates.client()) as client:
        exchange = client.ask()
    assert exchange.error is not None
    assert (exchange.error.type, exchange.error.owner) == ("CertificateError", "server")
    assert f"127.0.0.1:{server.port}" in exchange.error.message
    assert "--insecure" in exchange.error.message


@pytest.mark.parametrize("flaw", [{"signed": False}, {"names": (x509.DNSName("elsewhere.example"),)}])
def test_verification_can_be_switched_off(certificates, flaw):
    server = Server(forever(reply()), tls=certificates.server(**flaw))
    with server, Client(server.port, tls=client_context(False)) as client:
        assert client.open_ahead(2) == (2, None)
        assert client.ask().status == 200


def test_a_server_without_tls_is_told_from_one_with_a_bad_certificate():
    def talk(sock: socket.socket, _: int) -> None:
        sock.recv(100)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        sock.recv(100)

    with Server(talk) as server, Client(server.port, tls=client_context(False)) as client:
        opened, trouble = client.open_ahead(1)
    assert opened == 0
    assert trouble is not None
    assert trouble.type == "TLSError"


def test_a_server_that_hangs_up_in_the_handshake(certificates):
    def talk(sock: socket.socket, _: int) -> None:
        sock.recv(100)

    with Server(talk) as server, Client(server.port, tls=certificates.client()) as client:
        exchange = client.ask()
    assert exchange.error is not None
    assert exchange.retries == 0


def test_large_bodies_pass_both_ways(certificates):
    body = bytes(range(256)) * 40_000  # 10 MB

    def talk(sock: socket.socket, _: int) -> None:
        time.sleep(0.1)
        asked = take(sock)
        assert asked is not None
        sock.sendall(reply(asked[::-1]))

    server = Server(talk, tls=certificates.server())
    with server, Client(server.port, tls=certificates.client()) as client:
        exchange = client.ask(request(body))
    assert exchange.error is None
    assert body_of(exchange) == body[::-1]


def test_a_body_that_ends_with_the_connection_is_whole(certificates):
    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")
        sock.unwrap()

    server = Server(talk, tls=certificates.server())
    with server, Client(server.port, tls=certificates.client()) as client:
        exchange = client.ask()
    assert (exchange.status, body_of(exchange), exchange.error) == (200, b"hello", None)


def test_a_stale_connection_is_replaced(certificates):
    leave = threading.Event()

    def talk(sock: socket.socket, _: int) -> None:
        take(sock)
        sock.sendall(reply())
        leave.wait(20)

    server = Server(talk, tls=certificates.server())
    with server, Client(server.port, tls=certificates.client()) as client:
        client.ask()
        leave.set()
        time.sleep(0.1)
        second = client.ask()
    assert (second.status, second.retries) == (200, 1)


def test_stamps_stay_the_kernels(certificates):
    answered: list[int] = []

    def talk(sock: socket.socket, _: int) -> None:
        while take(sock) is not None:
            sock.sendall(reply())
            answered.append(time.monotonic_ns())

    server = Server(talk, tls=certificates.server())
    with server, Client(server.port, tls=certificates.client()) as client:
        client.ask()
        exchange = client.start()
        while len(answered) < 2:
            time.sleep(0.01)  # the loop sleeps, too
        time.sleep(0.15)
        client.wait(exchange)
    assert exchange.end <= answered[1] + 1_000_000
