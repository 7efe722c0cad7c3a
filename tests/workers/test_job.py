"""Targets: addresses and request heads."""

from __future__ import annotations

import pickle

import pytest

from penstock import __version__
from penstock.errors import UserError
from penstock.secrets import Secret
from penstock.settings.schema import EndpointSettings
from penstock.workers.job import Job, join, restore_secrets, take_secrets, targets


@pytest.mark.parametrize(
    ("base", "path", "joined"),
    [
        ("", "/v1/chat/completions", "/v1/chat/completions"),
        ("/", "/v1/chat/completions", "/v1/chat/completions"),
        ("/v1", "/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions", "/v1/chat/completions"),
        ("/api/v1", "/v1/completions", "/api/v1/completions"),
        ("/v1/chat/completions", "/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat", "/v1/chat/completions", "/v1/chat/completions"),
        ("/v10", "/v1/completions", "/v10/v1/completions"),
        ("/a/b", "/c", "/a/b/c"),
        ("", "", "/"),
    ],
)
def test_segments_that_base_and_path_share_are_not_repeated(base, path, joined):
    assert join(base, path) == joined


def head_lines(**settings) -> list[str]:
    (target,) = targets(EndpointSettings(urls=("http://127.0.0.1:8000/base?x=1",), **settings), "/v1/chat/completions")
    assert target.head.endswith(b"\r\n")
    return target.head.decode().removesuffix("\r\n").split("\r\n")


def test_head_has_the_default_headers():
    assert head_lines() == [
        "POST /base/v1/chat/completions?x=1 HTTP/1.1",
        "Host: 127.0.0.1:8000",
        f"User-Agent: penstock/{__version__}",
        "Accept: application/json",
        "Content-Type: application/json",
    ]


def test_head_has_the_key_and_the_given_headers():
    lines = head_lines(streaming=True, api_key=Secret("sk-1"), headers=(("X-Team", Secret("blue")),))
    assert "Authorization: Bearer sk-1" in lines
    assert "X-Team: blue" in lines
    assert "Accept: text/event-stream" in lines


def test_given_headers_replace_the_defaults():
    lines = head_lines(headers=(("accept", Secret("*/*")), ("CONTENT-TYPE", Secret("text/plain"))))
    assert [line for line in lines if line.lower().startswith(("accept:", "content-type:"))] == [
        "accept: */*",
        "CONTENT-TYPE: text/plain",
    ]


@pytest.mark.parametrize(
    ("url", "port", "host"),
    [
        ("http://127.0.0.1", 80, "127.0.0.1"),
        ("https://127.0.0.1", 443, "127.0.0.1"),
        ("http://[::1]:8000", 8000, "[::1]:8000"),
        ("http://localhost:9", 9, "localhost:9"),
    ],
)
def test_port_and_host_header_follow_from_the_url(url, port, host):
    (target,) = targets(EndpointSettings(urls=(url,)), "/x")
    assert target.origin.port == port
    assert (target.origin.tls is not None) == url.startswith("https")
    assert f"Host: {host}\r\n".encode() in target.head


def test_unknown_host_is_an_error():
    with pytest.raises(UserError, match=r"The host 'no-such-host.invalid' of .* cannot be found; check the --url."):
        targets(EndpointSettings(urls=("http://no-such-host.invalid:1",)), "/x")


def test_proxy_reads_requests_without_tls_in_absolute_form():
    proxy = Secret("http://ann:pw@127.0.0.1:3128")
    settings = EndpointSettings(urls=("http://server.example:8000/base?x=1",), proxy=proxy)
    (target,) = targets(settings, "/v1/x")
    assert (target.origin.address[:2], target.origin.proxy) == (("127.0.0.1", 3128), "127.0.0.1:3128")
    assert target.origin.tunnel_request == b""
    lines = target.head.decode().split("\r\n")
    assert lines[:2] == ["POST http://server.example:8000/base/v1/x?x=1 HTTP/1.1", "Host: server.example:8000"]
    assert "Proxy-Authorization: Basic YW5uOnB3" in lines


def test_proxy_gets_a_tunnel_request_for_https():
    settings = EndpointSettings(urls=("https://[2001:db8::1]/",), proxy=Secret("http://ann:pw@127.0.0.1:3128"))
    (target,) = targets(settings, "/v1/x")
    assert target.head.startswith(b"POST /v1/x HTTP/1.1\r\n")
    assert b"Proxy-Authorization" not in target.head
    assert target.origin.tunnel_request == (
        b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\nProxy-Authorization: Basic YW5uOnB3\r\n\r\n"
    )


def test_unknown_proxy_is_an_error():
    with pytest.raises(UserError, match=r"The proxy no-such-host.invalid:80 cannot be found"):
        targets(EndpointSettings(urls=("http://a:1",), proxy=Secret("no-such-host.invalid")), "/x")


SECRETS = ("sk-api-key", "user:url-password", "query-token", "header-value", "proxy-password")


def make_job() -> Job:
    settings = EndpointSettings(
        urls=(f"http://{SECRETS[1]}@127.0.0.1:8000/v1?api_key={SECRETS[2]}",),
        api_key=Secret(SECRETS[0]),
        headers=(("X-Tenant", Secret(SECRETS[3])),),
        proxy=Secret(f"http://ann:{SECRETS[4]}@127.0.0.1:3128"),
    )
    return Job(log="log", settings=settings, files=("a",), sampling="shuffle", seed=3, preconnect=4)


def test_pickled_job_holds_no_secret_and_gets_them_back():
    public, secrets = take_secrets(make_job())
    data = pickle.dumps(public)
    for secret in SECRETS:
        assert secret.encode() not in data
    assert restore_secrets(pickle.loads(data), pickle.loads(pickle.dumps(secrets))) == make_job()


def test_job_with_secrets_cannot_be_pickled():
    with pytest.raises(TypeError, match="a secret cannot be pickled"):
        pickle.dumps(make_job())
