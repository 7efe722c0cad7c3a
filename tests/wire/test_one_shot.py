"""Single requests outside the workers, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import __version__
from penstock.wire.connection import Origin
from penstock.wire.one_shot import KeptConnections, RequestFailed, Response, send, send_blocking
from penstock.wire.pool import resolve
from support.certificates import Certificates
from support.loopback import Handler, Server, close_with_reset, reply


def origin_of(port: int, tls: ssl.SSLContext | None = None) -> Origin:
    return resolve("127.0.0.1", port, tls)[0]


def answering(data: bytes, received: list[bytes]) -> Handler:
    """Return a handler that stores one request, without waiting for a body that is not announced, and sends `data`."""

    def handler(sock: socket.socket, _: int) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += sock.recv(65536)
        head, _, body = request.partition(b"\r\n\r\n")
        _, announced, rest = head.partition(b"Content-Length: ")
        while announced and len(body) < int(rest.split(b"\r\n")[0]):
            body += sock.recv(65536)
        received.append(head + b"\r\n\r\n" + body)
        sock.sendall(data)

    return handler


def send_on_a_loop(origin: Origin, method: str, target: str, **options: object) -> Response:
    return asyncio.run(send(origin, method, target, **options))  # type: ignore[arg-type]


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\nto the end"
COMPRESSED = reply(gzip.compress(b"plain"), "Content-Encoding: gzip")


@pytest.mark.parametrize("sender", [send_on_a_loop, send_blocking])
@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (reply(b"hello", "X-Test: yes"), 200, b"hello"),
        (reply(b"no", "X-Test: yes", status="503 Service Unavailable"), 503, b"no"),
        (CHUNKED, 200, b"abcde"),
        (UNTIL_CLOSE, 200, b"to the end"),
        (COMPRESSED, 200, b"plain"),
        (reply(b"x" * 300_000), 200, b"x" * 300_000),
    ],
    ids=["length", "error status", "chunked", "until close", "gzip", "larger than the buffer"],
)
def test_response_is_returned_whatever_its_form(
    sender: Callable[..., Response], data: bytes, status: int, body: bytes
) -> None:
    with Server(answering(data, [])) as server:
        response = sender(origin_of(server.port), "GET", "/metrics", timeout_s=60)
    assert (response.status, response.body) == (status, body)
    assert response.header(b"x-test") == (b"yes" if b"X-Test" in data else None)


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("GET", {}, "User-Agent: penstock/{version}\r\n\r\n"),
        ("GET", {"headers": [("user-agent", "mine")]}, "user-agent: mine\r\n\r\n"),
        ("POST", {}, "User-Agent: penstock/{version}\r\nContent-Length: 0\r\n\r\n"),
        (
            "PUT",
            {"headers": [("x-api-key", "k")], "body": b"{}"},
            "User-Agent: penstock/{version}\r\nx-api-key: k\r\nContent-Length: 2\r\n\r\n{{}}",
        ),
    ],
)
def test_request_has_the_given_method_headers_and_body(method: str, options: dict[str, object], expected: str) -> None:
    received: list[bytes] = []
    with Server(answering(reply(), received)) as server:
        send_blocking(origin_of(server.port), method, "/a?b=c", timeout_s=60, **options)  # type: ignore[arg-type]
        start = f"{method} /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    assert received == [(start + expected.format(version=__version__)).encode()]


def test_proxy_gets_the_absolute_url_and_its_credential() -> None:
    received: list[bytes] = []
    with Server(answering(reply(), received)) as proxy:
        direct = origin_of(proxy.port)
        origin = direct._replace(host="server.example", port=80, proxy="proxy:1", proxy_authorization="Basic x")
        assert send_blocking(origin, "GET", "/health", timeout_s=60).status == 200
    head = received[0].decode()
    assert head.startswith("GET http://server.example/health HTTP/1.1\r\nHost: server.example\r\n")
    assert "Proxy-Authorization: Basic x\r\n" in head


def test_tls_is_verified(tmp_path_factory: pytest.TempPathFactory) -> None:
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    with Server(answering(reply(), []), tls=certificates.server()) as server:
        assert send_blocking(origin_of(server.port, certificates.client()), "GET", "/", timeout_s=60).body == b"hello"
    with (
        Server(answering(reply(), []), tls=certificates.server(signed=False)) as server,
        pytest.raises(RequestFailed, match="is not trusted") as failed,
    ):
        send_blocking(origin_of(server.port, certificates.client()), "GET", "/", timeout_s=60)
    assert failed.value.error.type == "CertificateError"


def test_refused_connection_is_an_error_of_the_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RequestFailed, match=f"Nothing listens on 127.0.0.1:{port}") as failed:
        send_blocking(origin_of(port), "GET", "/", timeout_s=60)
    assert (failed.value.error.type, failed.value.error.owner) == ("ConnectionRefused", "server")


@pytest.mark.parametrize("start", [b"", CHUNKED[:-5]], ids=["silent", "in the middle of the reply"])
def test_server_that_does_not_finish_is_a_timeout(start: bytes) -> None:
    release = threading.Event()

    def handler(sock: socket.socket, _: int) -> None:
        sock.sendall(start)
        release.wait(60)

    with Server(handler) as server:
        with pytest.raises(RequestFailed, match=r"within 0\.05 s") as failed:
            send_blocking(origin_of(server.port), "GET", "/", timeout_s=0.05)
        release.set()
    assert failed.value.error.type == "Timeout"


@pytest.mark.parametrize(
    ("data", "type_"),
    [
        (b"", "ConnectionLost"),
        (CHUNKED[:-5], "ConnectionLost"),
        (b"nonsense\r\n\r\n", "ProtocolError"),
        (reply(b"not gzip", "Content-Encoding: gzip"), "BadEncoding"),
    ],
)
def test_unusable_reply_is_an_error(data: bytes, type_: str) -> None:
    with Server(answering(data, [])) as server, pytest.raises(RequestFailed) as failed:
        send_blocking(origin_of(server.port), "GET", "/", timeout_s=60)
    assert (failed.value.error.type, failed.value.error.owner) == (type_, "server")


def test_reset_is_an_error() -> None:
    def handler(sock: socket.socket, _: int) -> None:
        sock.recv(65536)
        close_with_reset(sock)

    with Server(handler) as server, pytest.raises(RequestFailed, match="before it replied"):
        send_blocking(origin_of(server.port), "GET", "/", timeout_s=60)


def test_requests_of_several_threads_do_not_mix_their_replies() -> None:
    bodies = [bytes([65 + number]) * 2_000_000 for number in range(4)]

    def handler(sock: socket.socket, _: int) -> None:
        number = int(sock.recv(65536).split(b" ")[1][1:])
        sock.sendall(reply(bodies[number]))

    with Server(handler) as server, ThreadPoolExecutor(4) as threads:
        origin = origin_of(server.port)
        responses = threads.map(lambda n: send_blocking(origin, "GET", f"/{n}", timeout_s=60), range(4))
        assert [response.body for response in responses] == bodies


def test_cancelled_request_closes_its_connection() -> None:
    connected, closed = threading.Event(), threading.Event()

    def handler(sock: socket.socket, _: int) -> None:
        sock.recv(65536)
        connected.set()
        assert sock.recv(1) == b""
        closed.set()

    async def cancel(port: int) -> None:
        task = asyncio.ensure_future(send(origin_of(port), "GET", "/", timeout_s=60))
        await asyncio.to_thread(connected.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Server(handler) as server:
        asyncio.run(cancel(server.port))
        assert closed.wait(60)


@pytest.mark.parametrize(("closes", "connections"), [(False, 1), (True, 3)])
def test_kept_connection_is_used_again_unless_the_server_closes_it(closes: bool, connections: int) -> None:
    data = reply(b"hello", *(["Connection: close"] if closes else []))
    numbers: list[int] = []

    def handler(sock: socket.socket, number: int) -> None:
        request = b""
        while received := sock.recv(65536):
            request += received
            if request.endswith(b"\r\n\r\n"):
                numbers.append(number)
                sock.sendall(data)
                request = b""
                if closes:
                    return

    async def get_three(origin: Origin) -> list[Response]:
        kept = KeptConnections()
        try:
            return [await kept.get(origin, "/metrics", timeout_s=60) for _ in range(3)]
        finally:
            kept.close()

    with Server(handler) as server:
        responses = asyncio.run(get_three(origin_of(server.port)))
    assert [response.body for response in responses] == [b"hello"] * 3
    assert len(set(numbers)) == connections


def test_kept_connections_report_a_server_that_is_gone() -> None:
    async def get(origin: Origin) -> Response:
        return await KeptConnections().get(origin, "/", timeout_s=60)

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen
        with pytest.raises(RequestFailed, match="refused"):
            asyncio.run(get(origin_of(bound.getsockname()[1])))
