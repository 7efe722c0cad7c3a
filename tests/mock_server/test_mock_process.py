"""The server process: start, end and command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli.main import main
from penstock.errors import RunError
from penstock.mock_server.behaviour import Behaviour
from penstock.mock_server.mock_process import MockProcess
from support.mock_client import RawConnection, chat_body
from support.programs import wait_for

SOURCE = str(Path(penstock.__file__).parent.parent)
ENV = {**os.environ, "PYTHONPATH": SOURCE}
COMMAND = [sys.executable, "-m", "penstock", "mock"]


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return sys.platform == "linux" and "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_process_starts_and_ends_with_its_context() -> None:
    with MockProcess(Behaviour(tokens=3)) as mock:
        process: Any = mock._process
        with RawConnection(mock.url) as connection:
            assert connection.exchange(chat_body()).json["usage"]["completion_tokens"] == 3
    assert process.returncode == 0
    with pytest.raises(OSError, match="refused"):
        RawConnection(mock.url)


def test_process_ends_when_its_parent_is_killed() -> None:
    code = (
        "import time; from penstock.mock_server.mock_process import *; b = MockProcess(parse_mock_url('mock://')); b.start();"
        "print(b._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], env=ENV, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: has_ended(pid), what="the end of the server")


def test_process_is_in_its_own_process_group() -> None:
    with MockProcess(Behaviour()) as mock:
        process: Any = mock._process
        assert os.getpgid(process.pid) != os.getpgid(0)


def test_failed_start_raises_a_run_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="did not start"):
        MockProcess(Behaviour(), log=str(tmp_path / "no" / "such" / "folder")).start()


def test_server_does_not_import_heavy_modules() -> None:
    code = "import sys, penstock.mock_server.run_server; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True, check=True).stdout
    assert not {"rich", "numpy", "pydantic", "argparse", "email"} & set(loaded.split())


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_command_serves_until_a_signal(signal_number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    options = ["--port", "0", "--ttft", "5", "--separate", "--log", str(log), "--log-hash"]
    with subprocess.Popen([*COMMAND, *options], env=ENV, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Penstock mock on http://127.0.0.1:")
        assert "ttft 5 ms, itl 0 ms, 100 tokens, separate writes" in line
        with RawConnection(line.split(" ")[3]) as connection:
            assert connection.exchange(chat_body()).status == 200
        process.send_signal(signal_number)
        assert process.stdout.read().strip() == "Served 1 request."
    assert process.returncode == 0
    assert json.loads(log.read_text())["body_sha256"]


def test_port_in_use_is_reported_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert main(["mock", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"penstock mock: port {port} on 127.0.0.1 is already in use")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "fragment"),
    [
        (["--ttft", "soon"], "ttft must be a number of milliseconds"),
        (["--bogus"], "--bogus"),
        (["--port", "x"], "--port must be"),
        (["--log-writes"], "--log FILE"),
        (["--log", "/no/such/folder/file", "--port", "0"], "cannot write the log"),
        (["--host", "256.1.1.1", "--port", "0"], "cannot listen on"),
        (["--tools", "--refusal"], "exclude each other"),
    ],
)
def test_invalid_arguments_are_reported_in_one_sentence(
    argv: list[str], fragment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mock", *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("penstock mock: ")
    assert fragment in error
    assert error.count("\n") == 1


def test_help_ends_with_examples_that_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli.mock import COMMAND_LINE
    from penstock.settings.parse import parse

    assert main(["mock", "--help"]) == 0
    shown = capsys.readouterr().out
    commands = [words for _, words in COMMAND_LINE.examples]
    assert len(commands) >= 4
    for command in commands:
        assert f"    penstock {command}\n" in shown
        parse(COMMAND_LINE, command.split()[1:])
