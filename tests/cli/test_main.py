"""The program as a process: exit statuses, streams, and errors as one sentence without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import penstock
from penstock import __version__
from penstock.cli.commands import COMMANDS
from penstock.cli.main import main
from penstock.errors import RunError, UserError
from penstock.runs.points import Experiment
from penstock.settings.schema import Settings

SOURCE = str(Path(penstock.__file__).parent.parent)


def call(*words: str, module: str = "penstock") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, env=env)


@pytest.mark.parametrize("module", ["penstock", "penstock.cli.main"])
def test_version_is_printed(module: str) -> None:
    done = call("--version", module=module)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_help_prints_the_overview(words: tuple[str, ...]) -> None:
    done = call(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Commands" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "--help"),
        ("help", "profile"),
        ("profile", "--concurrency", "-h"),
        ("profile", "--no-such-thing", "--concurrency", "zero", "--help"),
        ("gateway", "validate", "--help"),
        ("mock", "--no-such-thing", "-h"),
    ],
)
def test_help_has_precedence_over_mistakes(words: tuple[str, ...]) -> None:
    done = call(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage:")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("profile",), "penstock profile: --model is missing"),
        (("profile", "--streeming"), "penstock profile: There is no option --streeming; did you mean --streaming?"),
        (("profile", "--", "--help"), "penstock profile: profile takes options only"),
        (("profile", "-m", "m", "--api-host", "3"), "penstock profile: --api-host is an AIPerf option"),
        (("profile", "-m", "m", "--url", "a:0"), "penstock profile: --url 'a:0' needs a host"),
        (("profle",), "penstock: There is no command 'profle'; did you mean profile?"),
        (("zebra",), "penstock: There is no command 'zebra'; see `penstock --help`."),
        (("kube",), "penstock: kube is an AIPerf command that this version of Penstock does not have yet."),
        (
            ("--model", "m"),
            "penstock: There is no option --model here; options come after a command, as in `penstock prof",
        ),
        (("--hepl",), "penstock: There is no option --hepl here; did you mean --help?"),
        (("help", "nope"), "penstock: There is no command 'nope'; see `penstock --help`."),
        (("help", "prfile"), "penstock: There is no command 'prfile'; did you mean profile?"),
        (("help", "kube"), "penstock: kube is an AIPerf command that this version of Penstock does not have yet."),
        (("mock", "--prot", "1"), "penstock mock: There is no option --prot; did you mean --port?"),
        (("gateway", "--prt", "1"), "penstock gateway: There is no option --prt; did you mean --port?"),
        (
            ("gateway", "vaildate", "x"),
            "penstock gateway: The gateway has no command 'vaildate'; did you mean validate?",
        ),
        (("report", "--tokeniser", "x"), "penstock report: There is no option --tokeniser; did you mean --tokenizer?"),
        (("verify", "--zebra"), "penstock verify: There is no option --zebra; see `penstock verify --help`."),
        (
            ("completion",),
            "penstock completion: SHELL is missing: name the shell to complete in: bash, zsh or fish; see",
        ),
    ],
)
def test_user_errors_exit_with_2_and_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    done = call(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_messages_use_the_name_the_program_was_called_by(command: str) -> None:
    """Users who run `aiperf` must not see `penstock` commands."""
    argument = "mystery" if command == "completion" else "--no-such-option"
    aiperf = str(Path(sys.executable).parent / "aiperf")
    refused = subprocess.run([aiperf, command, argument], capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"aiperf {command}: ")
    assert refused.stderr.count("\n") == 1
    help_ = subprocess.run([aiperf, command, "--help"], capture_output=True, text=True)
    assert help_.returncode == 0
    assert f"aiperf {command}" in help_.stdout
    assert f"penstock {command}" not in refused.stderr + help_.stdout


def test_completion_prints_a_script() -> None:
    assert call("completion", "bash").stdout.startswith("_penstock() {")
    assert "Usage" in call("completion", "--help").stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_pipe_exits_silently(unbuffered: str) -> None:
    env = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "penstock", "profile", "--help"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=env)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Replaces the module that executes runs."""
    module = ModuleType("penstock.cli.run")
    monkeypatch.setitem(sys.modules, "penstock.cli.run", module)
    return module


def test_profile_receives_settings_and_the_command_line(profile: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    def run(experiment: Experiment) -> int:
        seen.append(experiment.settings)
        return 7

    profile.profile = run  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/aiperf", "profile", "-m", "m"])
    assert main() == 7
    assert seen[0].command == "aiperf profile -m m"


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (UserError("Change it."), 2, "aiperf profile: Change it.\n"),
        (RunError("No luck."), 1, "aiperf profile: No luck.\n"),
        (ValueError("odd\nthing"), 1, "failed unexpectedly: ValueError: odd thing (this is a fault in Penstock; set"),
        (BrokenPipeError("a socket"), 1, "failed unexpectedly: BrokenPipeError: a socket"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exceptions_become_one_sentence_and_an_exit_status(
    error: BaseException,
    status: int,
    sentence: str,
    *,
    profile: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(settings: Settings) -> int:
        raise error

    profile.profile = run  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "argv", ["aiperf"])
    monkeypatch.delenv("PENSTOCK_DEBUG", raising=False)
    assert main(["profile", "-m", "m"]) == status
    error_output = capsys.readouterr().err
    assert sentence in error_output
    assert "Traceback" not in error_output


def test_penstock_debug_prints_the_traceback(
    profile: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(settings: Settings) -> int:
        raise ValueError("odd")

    profile.profile = run  # type: ignore[attr-defined]
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    assert main(["profile", "-m", "m"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from penstock.cli.main import main; main(['profile', '--help']); "
        "print(sorted({'msgspec', 'numpy', 'rich', 'uvloop', 'asyncio', 'json'} & set(sys.modules)), file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("cores", [None, "2"])
def test_commands_start_no_threads_of_numpy_unless_the_user_asks_for_them(cores: str | None) -> None:
    code = (
        "import os, sys; from penstock.cli.main import main; sys.stdout = sys.stderr; main(['--version']); import numpy; "
        "threads = len(os.listdir('/proc/self/task')); sys.__stdout__.write(f'{threads}')"
    )
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    env |= {"PYTHONPATH": SOURCE} | ({"OPENBLAS_NUM_THREADS": cores} if cores else {})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout == (cores or "1")


def test_interrupt_before_a_run_exits_with_130() -> None:
    code = (
        "import os, signal, sys; import penstock.cli.main as m, penstock.cli.runs as r; "
        "r.run = lambda given: os.kill(os.getpid(), signal.SIGINT) or 0; "
        "sys.exit(m.main(['runs']))"
    )
    env = {**os.environ, "PYTHONPATH": SOURCE}
    restore = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, preexec_fn=restore)
    assert (done.returncode, done.stderr) == (130, "")
