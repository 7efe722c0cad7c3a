"""The hub, played by local servers that answer, refuse, stay silent or are slow."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import penstock
from penstock.datasets.load import load as load_dataset
from penstock.datasets.public import fetch
from penstock.errors import UserError
from penstock.settings.schema import InputSettings
from penstock.tokens.hub import ANSWER_S
from penstock.tokens.load import load
from support.prompts import conversations_of

Json = Callable[..., bytes]
Answer = Callable[[BaseHTTPRequestHandler], None]
HUNG_S = 30
"""A test that takes longer would not have ended at all."""
PATH = "/org/model/resolve/main/tokenizer.json"


class Hub:
    def __init__(self, answer: Answer) -> None:
        self.requests: list[tuple[str, str, str | None]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.requests.append((self.command, self.path, self.headers["Authorization"]))
                with contextlib.suppress(OSError):
                    answer(self)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def downloads(self) -> list[str]:
        return [path for method, path, _ in self.requests if method == "GET"]


@pytest.fixture
def serve(use_hub: Callable[[str], None]) -> Iterator[Callable[[Answer], Hub]]:
    hubs: list[Hub] = []

    def start(answer: Answer) -> Hub:
        hub = Hub(answer)
        threading.Thread(target=hub.server.serve_forever, args=(0.05,), daemon=True).start()
        use_hub(hub.url)
        hubs.append(hub)
        return hub

    yield start
    for hub in hubs:
        hub.server.shutdown()
        hub.server.server_close()


@pytest.fixture
def real_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tokens.hub.ANSWER_S", ANSWER_S)


def send_head(request: BaseHTTPRequestHandler, size: int, status: int = 200, **headers: str) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(size))
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()


def sends(data: bytes, status: int = 200, **headers: str) -> Answer:
    headers = {"X_Repo_Commit": "c0ffee", "ETag": f'"{sha1(data).hexdigest()}"', **headers}

    def answer(request: BaseHTTPRequestHandler) -> None:
        send_head(request, len(data), status, **headers)
        if request.command == "GET":
            request.wfile.write(data)

    return answer


def redirects(url: str, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        send_head(request, 0, 307, Location=url, **headers)

    return answer


def test_second_load_uses_the_cache_and_not_the_network(
    serve: Callable[..., Hub],
    tokenizer_json: Json,
    use_hub: Callable[[str], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    hub = serve(sends(tokenizer_json()))
    loaded = load(None, "org/model")
    assert (loaded.tokenizer.source, loaded.note, loaded.tokenizer.count("red green")) == ("hub", None, 2)
    assert hub.downloads == [PATH]
    use_hub("http://127.0.0.1:9")
    for name in ("org/model", None):
        assert load(name, "org/model").tokenizer.source == "cache"
    assert capfd.readouterr() == ("", "")


def test_each_revision_is_downloaded_once(serve: Callable[..., Hub], tokenizer_json: Json) -> None:
    hubs = [serve(sends(tokenizer_json(), X_Repo_Commit=commit)) for commit in ("c0ffee", "beef")]
    load("org/model", "m", "refs/pr/7")
    assert [hub.downloads for hub in hubs] == [[], ["/org/model/resolve/refs%2Fpr%2F7/tokenizer.json"]]
    assert load("org/model", "m", "refs/pr/7").tokenizer.source == "cache"
    assert load("org/model", "m").tokenizer.source == "hub"


def test_damaged_copy_is_downloaded_again(serve: Callable[..., Hub], tokenizer_json: Json, empty_cache: Path) -> None:
    hub = serve(sends(tokenizer_json()))
    load("org/model", "m")
    (copy,) = empty_cache.rglob("tokenizer.json")
    copy.write_bytes(b"{")
    assert load("org/model", "m").tokenizer.source == "hub"
    assert len(hub.downloads) == 2
    assert copy.read_bytes() == tokenizer_json()


def test_cache_that_cannot_be_written_does_not_fail_the_load(
    serve: Callable[..., Hub], tokenizer_json: Json, empty_cache: Path
) -> None:
    serve(sends(tokenizer_json()))
    empty_cache.parent.write_text("a file where the folder should be")
    assert load("org/model", "m").tokenizer.source == "hub"


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (404, {"X_Error_Code": "EntryNotFound"}, "the hub has no tokenizer.json for it (HTTP 404)"),
        (401, {}, "the hub refused it (HTTP 401): it does not exist there or needs a token in HF_TOKEN"),
        (
            403,
            {"X_Error_Code": "GatedRepo"},
            "the hub refused it (HTTP 403): accept the model's terms on the hub and set HF_TOKEN",
        ),
        (503, {}, "the hub answered with HTTP 503"),
    ],
)
def test_error_status_of_the_hub_is_explained(
    serve: Callable[..., Hub], status: int, headers: dict[str, str], reason: str
) -> None:
    serve(sends(b"", status, **headers))
    with pytest.raises(UserError) as caught:
        load("org/model", "m")
    assert reason in str(caught.value)
    note = load(None, "org/model").note
    assert note is not None
    assert reason in note


def test_page_of_a_captive_portal_is_not_taken_for_the_hub(serve: Callable[..., Hub], empty_cache: Path) -> None:
    page = b"<html>Please sign in to this network</html>"

    def answer(request: BaseHTTPRequestHandler) -> None:
        send_head(request, len(page))
        request.wfile.write(page if request.command == "GET" else b"")

    serve(answer)
    with pytest.raises(UserError, match="the hub did not answer like a Hugging Face hub; check HF_ENDPOINT"):
        load("org/model", "m")
    assert not list(empty_cache.rglob("tokenizer.json"))


def test_file_that_is_not_a_tokenizer_is_an_error(serve: Callable[..., Hub]) -> None:
    serve(sends(b"<html></html>"))
    with pytest.raises(UserError, match="the file from the hub is not a tokenizer"):
        load("org/model", "m")


@pytest.mark.slow
def test_broken_connection_is_not_taken_for_the_whole_file(
    serve: Callable[..., Hub], tokenizer_json: Json, monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    data = tokenizer_json()

    def half(request: BaseHTTPRequestHandler) -> None:
        send_head(request, len(data), X_Repo_Commit="c0ffee", ETag='"1"')
        if request.command == "GET":
            request.wfile.write(data[: len(data) // 2])

    serve(half)
    monkeypatch.setattr("penstock.tokens.load._DOWNLOAD_S", 5.0)
    with pytest.raises(UserError, match="the hub did not deliver the file within 5 s"):
        load("org/model", "m")
    assert not list(empty_cache.rglob("tokenizer.json"))


def test_token_is_sent_to_the_hub_and_to_no_other_host(
    serve: Callable[..., Hub], tokenizer_json: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tokenizer_json()
    storage = serve(sends(data))
    other_host = storage.url.replace("127.0.0.1", "localhost")
    head = {"X_Repo_Commit": "c0ffee", "X_Linked_ETag": '"1"', "X_Linked_Size": str(len(data))}
    hub = serve(redirects(f"{other_host}/blob", **head))
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert load("org/model", "m").tokenizer.source == "hub"
    assert {request[1:] for request in hub.requests} == {(PATH, "Bearer secret")}
    assert {request[1:] for request in storage.requests} == {("/blob", None)}


def test_renamed_model_is_followed_with_the_token(
    serve: Callable[..., Hub], tokenizer_json: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        old = request.path.startswith("/old/")
        (redirects(request.path.replace("old", "new")) if old else sends(tokenizer_json()))(request)

    hub = serve(answer)
    monkeypatch.setenv("HF_TOKEN", "secret")
    load("old/model", "m")
    assert {token for _, _, token in hub.requests} == {"Bearer secret"}


@pytest.mark.slow
@pytest.mark.usefixtures("real_limit")
def test_silent_hub_costs_two_seconds(use_hub: Callable[[str], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_hub(f"http://127.0.0.1:{silent.getsockname()[1]}")
        begin = time.monotonic()
        with pytest.raises(UserError, match="the hub did not answer within 2 s"):
            load("org/model", "m")
        assert 1.9 < time.monotonic() - begin < HUNG_S


@pytest.mark.slow
def test_process_ends_while_the_hub_is_silent(tmp_path: Path) -> None:
    code = "from penstock.tokens.load import load; print(load(None, 'org/model').note)"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = {
            **os.environ,
            "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "HF_HOME": str(tmp_path),
            "PYTHONPATH": os.path.dirname(os.path.dirname(penstock.__file__)),
        }
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=HUNG_S)
    assert "the hub did not answer within 2 s" in run.stdout
    assert (run.stderr, run.returncode) == ("", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("real_limit")
def test_hanging_name_server_costs_two_seconds(monkeypatch: pytest.MonkeyPatch, use_hub: Callable[[str], None]) -> None:
    stop = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: stop.wait(2 * HUNG_S))
    use_hub("http://hub.invalid")
    begin = time.monotonic()
    loaded = load(None, "org/model")
    stop.set()
    assert loaded.note is not None
    assert "did not answer within 2 s" in loaded.note
    assert 1.9 < time.monotonic() - begin < HUNG_S


def test_unknown_host_is_reported_without_waiting(
    monkeypatch: pytest.MonkeyPatch, use_hub: Callable[[str], None]
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    use_hub("https://hub.invalid")
    with pytest.raises(UserError, match=r"the hub could not be reached \(Name or service not known\)"):
        load("org/model", "m")


@pytest.mark.slow
def test_slow_download_ends_for_the_model_and_goes_on_for_a_named_tokenizer(
    serve: Callable[..., Hub], tokenizer_json: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit for the whole file applies here, not the one for the beginning of the answer."""
    data = tokenizer_json()
    more = threading.Event()

    def slow(request: BaseHTTPRequestHandler) -> None:
        send_head(request, len(data), X_Repo_Commit="c0ffee", ETag='"1"')
        if request.command == "GET":
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


SHAREGPT = b"""[{"conversations": [{"from": "human", "value": "Which river is the longest of all?"},
 {"from": "gpt", "value": "The Nile, or the Amazon."}]}]"""
SHAREGPT_PATH = (
    "/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/main/ShareGPT_V3_unfiltered_cleaned_split.json"
)


def test_public_dataset_is_downloaded_once(serve: Callable[..., Hub], use_hub: Callable[[str], None]) -> None:
    hub = serve(sends(SHAREGPT))
    settings = InputSettings(public="sharegpt", file="sharegpt.json", format="sharegpt", seed=1)
    for _ in range(2):
        (conversation,) = conversations_of(load_dataset(settings, 1, lambda: load("builtin", "m").tokenizer))
        assert conversation.turns[0].texts == ("Which river is the longest of all?",)
        assert hub.downloads == [SHAREGPT_PATH]
        use_hub("http://127.0.0.1:9")


@pytest.mark.parametrize("status", [404, 503])
def test_public_dataset_that_the_hub_does_not_deliver_is_one_sentence(serve: Callable[..., Hub], status: int) -> None:
    serve(sends(b"", status))
    with pytest.raises(
        UserError, match=f"The dataset 'sharegpt' is not in the cache, and the hub .*HTTP {status}"
    ) as caught:
        fetch("sharegpt")
    assert "\n" not in str(caught.value)


def test_public_dataset_without_a_network_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"the hub could not be reached .*; download ShareGPT_V3"):
        fetch("sharegpt")
