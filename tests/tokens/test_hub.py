"""The hub, played by local servers: one that answers, one that never does, one that is slow, one that refuses."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.tokens.hub import ANSWER_S
from penstock.tokens.load import load

Json = Callable[..., bytes]
HUNG_S = 30
"""What takes longer would not have ended at all."""


class Hub:
    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
        self.asked: list[tuple[str, str | None]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.asked.append((self.path, self.headers["Authorization"]))
                with contextlib.suppress(OSError):
                    answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[BaseHTTPRequestHandler], None]], Hub]]:
    hubs: list[Hub] = []

    def start(answer: Callable[[BaseHTTPRequestHandler], None]) -> Hub:
        hub = Hub(answer)
        threading.Thread(target=hub.server.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hubs.append(hub)
        return hub

    yield start
    for hub in hubs:
        hub.server.shutdown()
        hub.server.server_close()


@pytest.fixture
def two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a user waits."""
    monkeypatch.setattr("penstock.tokens.hub.ANSWER_S", ANSWER_S)


def sending(data: bytes, status: int = 200) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    return answer


def redirecting(url: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(307)
        request.send_header("Location", url)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def test_the_hub_is_asked_once_and_the_next_run_needs_no_network(
    serve: Callable[..., Hub],
    tokenizer_json: Json,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    hub = serve(sending(tokenizer_json()))
    loaded = load(None, "org/model")
    assert (loaded.tokenizer.source, loaded.note, loaded.tokenizer.count("red green")) == ("hub", None, 2)
    assert hub.asked == [("/org/model/resolve/main/tokenizer.json", None)]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in ("org/model", None):
        assert load(name, "org/model").tokenizer.source == "cache"
    assert capfd.readouterr() == ("", "")


def test_a_revision_has_a_copy_of_its_own(serve: Callable[..., Hub], tokenizer_json: Json) -> None:
    hub = serve(sending(tokenizer_json()))
    for revision in ("main", "refs/pr/7", "main"):
        load("org/model", "m", revision)
    assert [path for path, _ in hub.asked] == [
        "/org/model/resolve/main/tokenizer.json",
        "/org/model/resolve/refs%2Fpr%2F7/tokenizer.json",
    ]


def test_a_damaged_copy_is_fetched_again(serve: Callable[..., Hub], tokenizer_json: Json, tmp_path: Path) -> None:
    hub = serve(sending(tokenizer_json()))
    load("org/model", "m")
    (copy,) = (tmp_path / "cache").rglob("tokenizer.json")
    copy.write_bytes(b"{")
    assert load("org/model", "m").tokenizer.source == "hub"
    assert len(hub.asked) == 2
    assert copy.read_bytes() == tokenizer_json()


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(
    serve: Callable[..., Hub], tokenizer_json: Json, tmp_path: Path
) -> None:
    serve(sending(tokenizer_json()))
    (tmp_path / "cache").write_text("in the way")
    assert load("org/model", "m").tokenizer.source == "hub"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, "the hub has no tokenizer.json for it (HTTP 404)"),
        (401, "the hub refused it (HTTP 401): it does not exist there or needs a token in HF_TOKEN"),
        (503, "the hub answered with HTTP 503"),
    ],
)
def test_what_the_hub_answers_is_said(serve: Callable[..., Hub], status: int, said: str) -> None:
    serve(sending(b"", status))
    with pytest.raises(UserError) as caught:
        load("org/model", "m")
    assert said in str(caught.value)
    note = load(None, "org/model").note
    assert note is not None
    assert said in note


def test_something_else_than_a_tokenizer_is_not_kept(serve: Callable[..., Hub], tmp_path: Path) -> None:
    serve(sending(b"<html>Please sign in to this network</html>"))
    with pytest.raises(UserError, match="what the hub sent is not a tokenizer"):
        load("org/model", "m")
    assert not list(tmp_path.rglob("tokenizer.json"))


def test_a_connection_that_breaks_is_not_taken_for_the_whole_file(
    serve: Callable[..., Hub], tokenizer_json: Json
) -> None:
    def half(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "100000")
        request.end_headers()
        request.wfile.write(tokenizer_json())

    serve(half)
    with pytest.raises(UserError, match="closed the connection before the file was complete"):
        load("org/model", "m")


def test_the_token_goes_to_the_hub_and_to_no_other_host(
    serve: Callable[..., Hub], tokenizer_json: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = serve(sending(tokenizer_json()))
    hub = serve(redirecting(f"{storage.url}/blob"))
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert load("org/model", "m").tokenizer.source == "hub"
    assert hub.asked == [("/org/model/resolve/main/tokenizer.json", "Bearer secret")]
    assert storage.asked == [("/blob", None)]


def test_a_renamed_model_is_followed_with_the_token(
    serve: Callable[..., Hub], tokenizer_json: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        old = request.path.startswith("/old/")
        (redirecting(request.path.replace("old", "new")) if old else sending(tokenizer_json()))(request)

    hub = serve(answer)
    monkeypatch.setenv("HF_TOKEN", "secret")
    load("old/model", "m")
    assert [token for _, token in hub.asked] == ["Bearer secret", "Bearer secret"]


@pytest.mark.usefixtures("two_seconds")
def test_a_hub_that_never_answers_costs_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        begin = time.monotonic()
        with pytest.raises(UserError, match="the hub did not answer within 2 s"):
            load("org/model", "m")
        assert 1.9 < time.monotonic() - begin < HUNG_S


@pytest.mark.usefixtures("two_seconds")
def test_a_name_server_that_hangs_costs_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: stop.wait(2 * HUNG_S))
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    begin = time.monotonic()
    loaded = load(None, "org/model")
    stop.set()
    assert loaded.note is not None
    assert "did not answer within 2 s" in loaded.note
    assert 1.9 < time.monotonic() - begin < HUNG_S


def test_a_name_that_does_not_resolve_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    with pytest.raises(UserError, match=r"the hub could not be reached \(Name or service not known\)"):
        load("org/model", "m")


def test_a_slow_download_is_given_up_for_the_model_and_awaited_for_a_name(
    serve: Callable[..., Hub], tokenizer_json: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for the whole file counts here, and not the one for the beginning of the answer."""
    data = tokenizer_json()
    more = threading.Event()

    def slow(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data[:100])
        more.wait(HUNG_S)
        request.wfile.write(data[100:])

    serve(slow)
    monkeypatch.setattr("penstock.tokens.hub.ANSWER_S", 5.0)
    note = load(None, "org/model").note
    assert note is not None
    assert "did not deliver the file within 5 s" in note
    threading.Timer(5.5, more.set).start()
    begin = time.monotonic()
    assert load("org/model", "m").tokenizer.source == "hub"
    assert time.monotonic() - begin > 5
