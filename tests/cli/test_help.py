from __future__ import annotations

import os
import re
import shlex
from importlib import import_module

import pytest

from penstock.cli.commands import COMMANDS
from penstock.cli.help import help_text, overview
from penstock.cli.main import main
from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.cli.terminal import Paint, columns, fit, wrap
from penstock.settings.command_line import HELP
from penstock.settings.flags import FLAGS, GROUPS, UNSUPPORTED_FLAGS
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve


def test_profile_help_lists_every_flag_choice_and_group() -> None:
    text = help_text(PROFILE, "aiperf")
    words = text.replace(",", " ").split()
    for flag in FLAGS:
        assert set(flag.spellings) <= set(words)
        assert set(flag.choices) <= set(re.findall(r"[\w-]+", text))
    for group in GROUPS:
        assert f"\n{group.title}\n" in text
    assert "aiperf profile --model NAME" in text
    assert "Exit status" in text
    assert "[at least 1; default: 550]" in text
    assert "[Penstock only; 0 to 1; default: 0]" in " ".join(text.split())


def test_help_lists_no_unsupported_flag() -> None:
    unsupported = {row.name for row in UNSUPPORTED_FLAGS}
    assert not unsupported & set(help_text(PROFILE, "aiperf").split())


@pytest.mark.parametrize("command", [None, *(command.name for command in COMMANDS)])
def test_every_help_fits_eighty_columns(
    command: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands to copy are not wrapped, so they may be longer."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", ["penstock"])
    assert main([command, "--help"] if command else []) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: penstock")
    assert [line for line in text.splitlines() if len(line) > 80 and not line.strip().startswith("penstock ")] == []


@pytest.mark.parametrize("name", [*(command.name for command in COMMANDS), "gateway_validate", "usage_purge"])
def test_every_command_has_a_help_flag_and_valid_examples(name: str) -> None:
    command = import_module(f"penstock.cli.{name}".replace("-", "_")).COMMAND_LINE
    assert HELP in command.flags
    spellings = [spelling for flag in command.flags for spelling in flag.spellings]
    assert len(spellings) == len(set(spellings))
    for _, example in command.examples:
        words = shlex.split(example)[len(command.name.split()) :]
        if words[:1] != ["validate"]:  # a subcommand of gateway
            parse(command, words)


def test_fit_wraps_paragraphs_and_the_right_column() -> None:
    text = "Usage: a b\n       a c\n\none two\nthree four\n\n  --long NAME  one two three\n  a command that stays as it is\n"
    assert fit(text, 24).splitlines() == [
        "Usage: a b",
        "       a c",
        "",
        "one two three four",
        "",
        "  --long NAME  one two",
        "               three",
        "  a command that stays as it is",
    ]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_profile_help_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    body = help_text(PROFILE, "penstock").partition("Exit status")[0]
    too_long = [line for line in body.splitlines() if len(line) > width and " --" not in line.strip()]
    assert [line for line in too_long if len(line.split()) > 1 and "|" not in line] == []


def test_profile_examples_are_valid() -> None:
    for _, line in PROFILE.examples:
        command, *words = shlex.split(line)
        assert command == "profile"
        assert resolve(parse(PROFILE, words)).endpoint.urls == ("mock://",)


def test_overview_lists_the_commands() -> None:
    text = overview("aiperf")
    for part in ("profile", "mock", "completion", "version", "Examples", "aiperf profile"):
        assert part in text


def test_styles_are_used_only_on_a_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in help_text(PROFILE, "aiperf")
    assert Paint(True).bold("x") == "\x1b[1mx\x1b[0m"
    assert Paint(True).dim("x") == "\x1b[2mx\x1b[0m"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\x1b[1m" in help_text(PROFILE, "aiperf")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in help_text(PROFILE, "aiperf")


def test_wrap_indents_and_columns_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrap("a bb ccc dddddddddddd", 8, 2) == ["  a bb", "  ccc", "  dddddddddddd"]
    monkeypatch.setenv("COLUMNS", "10")
    assert columns() == 60
    monkeypatch.setenv("COLUMNS", "500")
    assert columns() == 110
    monkeypatch.setenv("COLUMNS", "wide")
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((90, 24)))
    assert columns() == 90

    def no_terminal(_: int) -> None:
        raise OSError

    monkeypatch.setattr("os.get_terminal_size", no_terminal)
    assert columns() == 100
