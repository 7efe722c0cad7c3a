from __future__ import annotations

import contextlib
import os
import shlex

import pytest

from penstock.cli.commands import COMMANDS
from penstock.cli.help import help_text, overview, unsupported_help
from penstock.cli.main import main
from penstock.cli.parse import parse
from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.cli.terminal import Paint, columns, fit, wrap
from penstock.settings.flags import FLAGS, GROUPS, UNSUPPORTED_FLAGS
from penstock.settings.resolve import resolve


def test_the_help_of_profile_is_complete() -> None:
    text = help_text(PROFILE, "aiperf")
    words = text.replace(",", " ").split()
    for flag in FLAGS:
        assert set(flag.spellings) <= set(words)
        assert set(flag.choices) <= set(text.replace("|", " ").split())
    for group in GROUPS:
        assert f"\n{group.title}\n" in text
    assert "aiperf profile --model NAME" in text
    assert "Exit status" in text
    assert "[at least 1; default: 550]" in text
    assert "[Penstock only; 0 to 1; default: 0]" in " ".join(text.split())


def test_what_is_not_built_has_a_list_of_its_own() -> None:
    listed = unsupported_help(PROFILE, "aiperf").split()
    unbuilt = {row.name for row in UNSUPPORTED_FLAGS}
    assert unbuilt <= set(listed)
    assert not unbuilt & set(help_text(PROFILE, "aiperf").split())
    assert "--help-unbuilt" in help_text(PROFILE, "aiperf")


@pytest.mark.parametrize("command", [None, *(command.name for command in COMMANDS if command.name != "version")])
def test_every_help_fits_eighty_columns(
    command: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for commands to copy, which are not broken."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", ["penstock"])
    with contextlib.suppress(SystemExit):
        main([command, "--help"] if command else [])
    text = capsys.readouterr().out
    assert text.startswith("Usage: penstock")
    assert [line for line in text.splitlines() if len(line) > 80 and not line.strip().startswith("penstock ")] == []


def test_a_text_is_fitted() -> None:
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
def test_lines_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    body = help_text(PROFILE, "penstock").partition("Exit status")[0]
    too_long = [line for line in body.splitlines() if len(line) > width and " --" not in line.strip()]
    assert [line for line in too_long if len(line.split()) > 1 and "|" not in line] == []


def test_examples_are_valid_commands() -> None:
    for _, line in PROFILE.examples:
        command, *words = shlex.split(line)
        assert command == "profile"
        assert resolve(parse(PROFILE, words)).endpoint.urls == ("mock://",)


def test_the_overview_names_the_commands() -> None:
    text = overview("aiperf")
    for part in ("profile", "mock", "completion", "version", "Examples", "aiperf profile"):
        assert part in text


def test_bold_only_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in help_text(PROFILE, "aiperf")
    assert Paint(True).bold("x") == "\x1b[1mx\x1b[0m"
    assert Paint(True).dim("x") == "\x1b[2mx\x1b[0m"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "\x1b[1m" in help_text(PROFILE, "aiperf")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in help_text(PROFILE, "aiperf")


def test_wrap_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
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
