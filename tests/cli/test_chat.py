"""The command `chat`: conversations with a scripted server in process, and one in a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from support.fork_server import ForkedProcess
from support.programs import BIN, MockServer
from support.scripted_server import ScriptedServer


def stream(*texts: str, usage: bool = True, **delta: str) -> bytes:
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": text, **delta}}]} for text in texts]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage:
        counts = {"prompt_tokens": 7, "completion_tokens": len(texts), "prompt_tokens_details": {"cached_tokens": 3}}
        chunks.append({"choices": [], "usage": counts})
    events = [json.dumps({"object": "chat.completion.chunk", "model": "m", **chunk}) for chunk in chunks]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda _, number: stream("Reply ", f"number {number}")) as server:
        yield server


class Input(io.TextIOWrapper):
    def __init__(self, text: str) -> None:
        super().__init__(io.BytesIO(text.encode()), "utf-8")


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(typed: str, url: str, *flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", Input(typed))
        monkeypatch.setattr("sys.argv", ["penstock"])
        status = main(["chat", "--model", "m", "--url", url, *flags])
        return (status, *capsys.readouterr())

    return run


Chat = Callable[..., tuple[int, str, str]]


def test_each_line_of_standard_input_is_a_turn_with_the_earlier_ones(chat: Chat, server: ScriptedServer) -> None:
    status, out, err = chat("One\n\nTwo\n", server.url, "--system-prompt", "Be brief.")
    assert (status, out) == (0, "Reply number 0\nReply number 1\n")
    system = {"role": "system", "content": "Be brief."}
    first, answer = {"role": "user", "content": "One"}, {"role": "assistant", "content": "Reply number 0"}
    assert server.bodies[0]["messages"] == [system, first]
    assert server.bodies[1]["messages"] == [system, first, answer, {"role": "user", "content": "Two"}]
    assert server.bodies[0]["stream"] is True
    assert len(server.conversations()) == 1
    assert err.count("2 output tokens, 7 input tokens (3 cached)") == 2


def test_without_history_each_turn_is_sent_alone(chat: Chat, server: ScriptedServer) -> None:
    chat("One\nTwo\n", server.url, "--no-history")
    assert [len(body["messages"]) for body in server.bodies] == [1, 1]


def test_quick_sends_one_text_and_does_not_read_standard_input(chat: Chat, server: ScriptedServer) -> None:
    status, out, _ = chat("Unread\n", server.url, "--quick", "A\nB", "--extra-inputs", "temperature:0")
    assert (status, out) == (0, "Reply number 0\n")
    (body,) = server.bodies
    assert body["messages"] == [{"role": "user", "content": "A\nB"}]
    assert body["temperature"] == 0


def test_reasoning_is_shown_before_the_text_on_lines_of_its_own(chat: Chat) -> None:
    chunks = stream("", reasoning_content="Hmm", usage=False).partition(b"data: [DONE]")[0] + stream("Yes")
    with ScriptedServer(lambda *_: chunks) as server:
        assert chat("Hi\n", server.url)[1] == "Hmm\nYes\n"


def test_server_without_token_counts_has_chunks(chat: Chat) -> None:
    with ScriptedServer(lambda *_: stream("A", "B", "C", usage=False)) as server:
        _, out, err = chat("Hi\n", server.url)
    assert out == "ABC\n"
    assert "3 chunks; the server counts no tokens" in err
    assert "ITL" not in err


def test_reply_that_is_not_streamed_is_shown_too(chat: Chat) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Whole"}, "finish_reason": "stop"}
    reply = {"object": "chat.completion", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    with ScriptedServer(lambda *_: reply) as server:
        status, out, err = chat("Hi\n", server.url)
    assert (status, out) == (0, "Whole\n")
    assert "1 output token, 1 input token\n" in err


def test_failed_request_ends_the_command_with_its_reason(chat: Chat) -> None:
    with ScriptedServer(lambda *_: {"error": {"message": "no such model as k-123"}}) as server:
        status, out, err = chat("Hi\nUnsent\n", server.url, "--api-key", "k-123")
    assert (status, out) == (1, "")
    assert err.startswith("The request failed: ")
    assert "no such model" in err
    assert "k-123" not in err
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model", "b"], "A conversation has one model on one server; give one value for --model."),
        (["--url", "localhost:2"], "A conversation has one model on one server; give one value for --url."),
        (["--endpoint-type", "embeddings"], "--endpoint-type embeddings does not answer texts with texts; use chat."),
        (["--concurrency", "2"], "There is no option --concurrency"),
    ],
)
def test_bad_flags_are_refused_in_one_sentence(chat: Chat, flags: list[str], sentence: str) -> None:
    status, out, err = chat("Hi\n", "localhost:1", *flags)
    assert (status, out) == (2, "")
    assert err.startswith(f"penstock chat: {sentence}")
    assert err.count("\n") == 1


class Terminal:
    """A program in a terminal."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._fd, inner = pty.openpty()
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", "PYTHONUTF8": "1"}
        arguments = (str(BIN / "penstock"), *arguments)
        self.process = ForkedProcess(
            arguments, cwd=folder, env=environment, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
        )
        os.close(inner)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, pattern: str) -> None:
        """Wait until the terminal shows the pattern, and drop what it has shown up to there."""
        while not (match := re.search(pattern, self.shown)):
            assert select.select([self._fd], [], [], 60)[0], f"{pattern} was not shown: {self.shown}"
            self.shown += os.read(self._fd, 4096).decode()
        self.shown = self.shown[match.end() :]

    def close(self) -> None:
        os.close(self._fd)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)


def test_ctrl_c_stops_a_reply_and_ctrl_d_ends_the_conversation(mock: Callable[..., MockServer], tmp_path: Path) -> None:
    server = mock(ttft=20, itl=600_000, tokens=3)  # the second token does not arrive during the test
    terminal = Terminal(tmp_path, "chat", "--model", "m", "--url", server.url)
    try:
        terminal.wait_for("> ")
        terminal.type("Hello\n")
        terminal.wait_for(r"Hello\r?\n.* [a-z]+")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("Stopped")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
    (request,) = server.logged_requests()
    assert (request["tokens"], request["end"]) == (1, "aborted")


def test_figures_are_those_of_the_server(mock: Callable[..., MockServer], chat: Chat) -> None:
    server = mock(ttft=30, itl=3, tokens=6, prefix_cache=100, block_size=1)
    status, out, err = chat("One\nTwo\n", server.url)
    assert status == 0
    assert len(out.splitlines()) == 2
    first, second = (re.findall(r"[\d.,]+(?= (?:ms|output|input|cached))", line) for line in err.splitlines())
    logged = server.logged_requests()
    for figures, request in zip((first, second), logged, strict=True):
        ttft, *itl, total, output, prompt, cached = map(float, figures)
        assert 30 <= ttft <= total
        # A reply that a busy client reads at once has no ITL.
        assert itl == [pytest.approx((total - ttft) / 5, abs=0.02)] or not itl
        assert (output, prompt, cached) == (6, request["prompt_tokens"], request["cached_tokens"])
    assert logged[1]["cached_tokens"] > 0
