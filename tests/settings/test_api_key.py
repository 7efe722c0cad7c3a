"""Where the API key comes from."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import EndpointSettings

OPENAI = "https://api.openai.com/v1"


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def endpoint(*flags: str) -> EndpointSettings:
    return resolve(parse(PROFILE, ("-m", "m", *flags))).endpoint


def key(*flags: str) -> str | None:
    secret = endpoint(*flags).api_key
    return None if secret is None else secret.reveal()


def refused(*flags: str) -> str:
    with pytest.raises(UserError) as caught:
        endpoint(*flags)
    return str(caught.value)


def test_key_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-file\n")
    assert key("--api-key-file", str(path)) == "sk-file"


def test_key_is_read_from_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", "sk-env")
    assert key("--api-key-env", "TEAM_KEY", "-u", "https://elsewhere.example") == "sk-env"


def test_key_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("sk-stdin\nanother line"))
    assert key("--api-key", "-") == "sk-stdin"


def test_key_is_asked_for_on_a_terminal_without_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", lambda prompt: "sk-typed")
    assert key("--api-key", "-") == "sk-typed"


def test_unusable_sources_are_refused_without_showing_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    assert "cannot be read: No such file" in refused("--api-key-file", str(path))
    path.write_text("")
    assert "has no API key" in refused("--api-key-file", str(path))
    path.write_text("hunter2\nhunter3")
    message = refused("--api-key-file", str(path))
    assert "an HTTP header cannot contain" in message
    assert "hunter" not in message
    path.write_bytes(b"\xff\xfe")
    assert "is not a text file" in refused("--api-key-file", str(path))
    assert "NO_SUCH_KEY (--api-key-env) has no API key" in refused("--api-key-env", "NO_SUCH_KEY")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert "Standard input (--api-key -) has no API key" in refused("--api-key", "-")


def test_two_sources_are_refused() -> None:
    message = refused("--api-key", "hunter2", "--api-key-env", "TEAM_KEY")
    assert "set twice, by --api-key and by --api-key-env" in message


@pytest.mark.parametrize(
    ("urls", "used"),
    [
        ((OPENAI,), True),
        (("localhost:8000",), True),
        (("http://127.8.9.1:1",), True),
        (("http://[::1]:1",), True),
        (("http://api.openai.com/v1",), False),
        (("https://api.openai.com.evil.example",), False),
        (("https://10.0.0.1",), False),
        (("http://localhost.evil.example",), False),
        (("localhost:1", "http://elsewhere.example"), False),
        (("mock://",), False),
    ],
)
def test_openai_api_key_is_used_only_for_openai_and_this_machine(
    monkeypatch: pytest.MonkeyPatch, urls: tuple[str, ...], used: bool
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-default")
    settings = endpoint("-u", *urls)
    assert settings.default_api_key is used
    assert key("-u", *urls) == ("sk-default" if used else None)


@pytest.mark.parametrize("flags", [("--api-key", "sk-1"), ("-H", "Authorization:x"), ("-u", "http://u:p@localhost")])
def test_openai_api_key_is_not_used_beside_another_credential(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-default")
    assert not endpoint(*flags).default_api_key
    assert key(*flags) != "sk-default"
