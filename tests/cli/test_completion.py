from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.cli.completion import COMMAND_LINE, SHELLS, script
from penstock.datasets.formats import FORMATS
from penstock.errors import UserError
from penstock.settings.flags import ENDPOINT_TYPES, FLAGS
from penstock.settings.parse import parse


@pytest.mark.parametrize("shell", SHELLS)
def test_script_contains_every_flag_and_choice(shell: str) -> None:
    text = script(shell)
    for flag in FLAGS:
        for word in (*flag.spellings, *flag.choices):
            assert word.lstrip("-") in text or word in ("-v", "-vv")
    assert "aiperf" in text
    assert "penstock" in text


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script(shell))
    subprocess.run([program, "-n", str(path)], check=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pro"], {"profile"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["profile", "--endpoint-t"], {"--endpoint-type"}),
        (["profile", "--endpoint-type", ""], set(ENDPOINT_TYPES)),
        (["profile", "--endpoint-type", "=", "com"], {"completions"}),
        (["profile", "--concurrency", ""], set()),
        (["profile", "--streaming", "--insec"], {"--insecure"}),
        (["profile", "--custom-dataset-type", ""], {known.name for known in FORMATS}),
        (["verify", "run", "--custom-dataset-type", "raw"], {"raw_payload"}),
        (["verify", "run", "--ag"], {"--against"}),
        (["verify", "run", "--against", ""], set()),
        (["mock", "--stall-a"], {"--stall-after"}),
        (["mock", "--tools", "--por"], {"--port"}),
        (["mock", "--port", "8"], set()),
        (["usage", "--s"], {"--since"}),
        (["report", "--tok"], {"--tokenizer"}),
        (
            ["gateway", ""],
            {"validate", "--help", "--resources", "--config", "--port", "--host", "--take-over", "--demo"},
        ),
        (["compare", "--js"], {"--json"}),
        (["compare", "--url", "a", "--concurrency-r"], {"--concurrency-ramp-duration"}),
        (["help", "pro"], {"profile"}),
        (["profile", "--hel"], {"--help"}),
    ],
)
def test_bash_completes_commands_flags_and_choices(words: list[str], expected: set[str], tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    path = tmp_path / "script"
    path.write_text(script("bash"))
    query = 'source "$0"; COMP_WORDS=("aiperf" "$@"); COMP_CWORD=$#; _penstock; echo "${COMPREPLY[@]}"'
    process = subprocess.run([bash, "-c", query, str(path), *words], capture_output=True, text=True, check=True)
    assert set(process.stdout.split()) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("aiperf pro", {"profile"}),
        ("aiperf completion ", {"bash", "zsh", "fish"}),
        ("aiperf profile --endpoint-type com", {"completions"}),
        ("aiperf profile --concurrency ", set()),
        ("penstock mock --stall-a", {"--stall-after"}),
        ("penstock help pro", {"profile"}),
    ],
)
def test_fish_completes_commands_flags_and_choices(line: str, expected: set[str], tmp_path: Path) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("fish is not installed")
    path = tmp_path / "script"
    path.write_text(script("fish"))
    query = [fish, "--no-config", "-c", f"source {path}; complete -C '{line}'"]
    process = subprocess.run(query, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert {line.split("\t")[0] for line in process.stdout.splitlines()} == expected


def test_unknown_shell_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean bash"):
        parse(COMMAND_LINE, ["bahs"])
    with pytest.raises(UserError, match="one of bash, zsh, fish"):
        parse(COMMAND_LINE, ["powershell"])
