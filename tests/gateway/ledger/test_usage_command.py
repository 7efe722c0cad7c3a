"""Tests of `penstock usage`: the table, the JSON and the error messages."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.cli.main import main
from penstock.gateway.ledger.ledger import open_ledger
from support.ledger_entries import JUNE_1, make_entry
from support.postgres_cluster import PASSWORD, QUOTED_PASSWORD

DAY = 86400.0


@pytest.fixture
def filled_ledger(url: str) -> str:
    ledger = open_ledger(url)
    ledger.insert(
        [
            *(make_entry(input_tokens=1000, output_tokens=200, cached_tokens=100) for _ in range(3)),
            make_entry(at=JUNE_1 + DAY, api_key_name="team-b", model="fast", usage_source="estimated"),
            make_entry(at=JUNE_1 + DAY, status=422, error="content_filter", blocked=True),
            make_entry(
                at=JUNE_1 + 1.5 * DAY, status=401, error="invalid_api_key", api_key_name="", api_key_id="", model=""
            ),
        ]
    )
    ledger.close()
    return url


def usage_output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main(["usage", *arguments])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return out


def usage_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return msgspec.json.decode(usage_output(capsys, *arguments, "--json"))


def test_table_shows_groups_and_total(filled_ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split() for line in usage_output(capsys, "--ledger", filled_ledger).splitlines()]
    numbers = ["requests", "errors", "blocked", "input", "output", "reasoning", "cached", "estimated"]
    assert lines[0] == ["day", "key", "model", *numbers]
    assert lines[1] == ["2026-06-01", "team-a", "gpt-4o-prod", "3", "0", "0", "3,000", "600", "0", "300", "-"]
    assert lines[2][:6] == ["2026-06-02", "(no", "key)", "(no", "model)", "1"]
    assert lines[3] == ["2026-06-02", "team-a", "gpt-4o-prod", "1", "0", "1", "12", "5", "0", "0", "-"]
    assert lines[4] == ["2026-06-02", "team-b", "fast", "1", "0", "0", "12", "5", "0", "0", "100%"]
    assert lines[-1] == ["total", "6", "1", "1", "3,036", "615", "0", "300", "<1%"]


def test_json_output_has_rows_and_total(filled_ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = usage_output(
        capsys, "--ledger", filled_ledger, "--by", "key", "--since", "2026-06-01", "--until", "2026-06-01", "--json"
    )
    report = msgspec.json.decode(text)
    assert (report["since"], report["until"]) == ("2026-06-01T00:00:00Z", "2026-06-02T00:00:00Z")
    (row,) = report["rows"]
    assert row == {
        "key": "team-a",
        "requests": 3,
        "errors": 0,
        "blocked": 0,
        "input_tokens": 3000,
        "output_tokens": 600,
        "reasoning_tokens": 0,
        "cached_tokens": 300,
        "estimated_tokens": 0,
        "estimated_share": 0.0,
    }
    assert report["total"]["requests"] == 3
    assert PASSWORD not in text
    assert QUOTED_PASSWORD not in text


@pytest.mark.parametrize(
    ("arguments", "requests"),
    [
        ([], 6),
        (["--since", "2026-06-02"], 3),
        (["--until", "2026-06-01"], 3),
        (["--until", "2026-06-02"], 6),
        (["--since", "2026-06-02T12:00Z"], 1),
        (["--since", "2026-06-02T13:00+01:00"], 1),
        (["--key", "team-b"], 1),
        (["--key", "team-b", "--key", "team-a"], 5),
        (["--model", "fast"], 1),
        (["--model", "none of that name"], 0),
    ],
)
def test_options_filter_requests(
    filled_ledger: str, arguments: list[str], requests: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert usage_json(capsys, "--ledger", filled_ledger, "--by", "none", *arguments)["total"]["requests"] == requests


def test_usage_is_grouped_by_team(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    ledger = open_ledger(url)
    ledger.insert([make_entry(team_id=team) for team in ("search", "search", "ads", None)])
    ledger.close()
    rows = usage_json(capsys, "--ledger", url, "--by", "team")["rows"]
    assert [(row["team"], row["requests"]) for row in rows] == [("", 1), ("ads", 1), ("search", 2)]
    assert "(no team)" in usage_output(capsys, "--ledger", url, "--by", "team,key")


def test_purge_deletes_entries_before_a_time(filled_ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert usage_output(capsys, "purge", "--ledger", filled_ledger, "--before", "2026-06-02") == "Deleted 3 entries.\n"
    assert usage_json(capsys, "--ledger", filled_ledger, "--by", "none")["total"]["requests"] == 3


def test_purge_needs_a_time_and_an_existing_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    assert main(["usage", "purge", "--ledger", url]) == 2
    assert "usage purge --before 90d" in capsys.readouterr().err
    assert main(["usage", "purge", "--ledger", url, "--before", "90d"]) == 2
    assert "There is no ledger at" in capsys.readouterr().err
    assert not (tmp_path / "usage.db").exists()


def test_since_accepts_ages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    ledger = open_ledger(url)
    ledger.insert([make_entry(at=time.time() - 1800), make_entry(at=time.time() - 5 * DAY)])
    ledger.close()
    for since, requests in (("20m", 0), ("1h", 1), ("4d", 1), ("1w", 2)):
        assert usage_json(capsys, "--ledger", url, "--since", since)["total"]["requests"] == requests


def test_default_ledger_is_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_LEDGER", raising=False)
    assert main(["usage"]) == 2
    assert capsys.readouterr().err == (
        "penstock usage: There is no ledger at penstock-usage.db; give the URL of the gateway's ledger with --ledger.\n"
    )
    open_ledger("sqlite:///penstock-usage.db").close()
    assert usage_output(capsys) == "No requests.\n"
    assert usage_output(capsys, "--ledger", "penstock-usage.db") == "No requests.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "colour"], "--by takes key, team, model and day"),
        (["--since", "yesterday"], "--since takes a date"),
        (["--since", "2026-06-02", "--until", "2026-06-01"], "is not before"),
        (["--sinse", "7d"], "There is no option --sinse; did you mean --since?"),
        (["--ledger", "redis://x:hush@here"], "neither sqlite"),
    ],
)
def test_invalid_option_is_reported_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["usage", *arguments]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("penstock usage: ")
    assert message in err
    assert (out, err.count("\n")) == ("", 1)
    assert "hush" not in err


def test_unavailable_database_is_reported_without_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--ledger", "postgresql://me:hush@127.0.0.1:1/usage"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("penstock usage: The ledger postgresql://<redacted>@127.0.0.1:1/usage cannot be used")
    assert "hush" not in err


def test_control_characters_in_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/usage.db"
    ledger = open_ledger(url)
    ledger.insert([make_entry(api_key_name="red\x1b[31m\n2099-01-01  admin")])
    ledger.close()
    out = usage_output(capsys, "--ledger", url)
    assert "\x1b" not in out
    assert len(out.splitlines()) == 4


def test_command_exit_status_and_output(filled_ledger: str) -> None:
    command = [sys.executable, "-m", "penstock", "usage", "--by", "key", "--key", "team-b", "--ledger"]
    done = subprocess.run([*command, filled_ledger], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    _, row, _, total = (line.split()[:2] for line in done.stdout.splitlines())
    assert (row, total) == (["team-b", "1"], ["total", "1"])
    done = subprocess.run([*command, "sqlite:///no-such.db"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("penstock usage: There is no ledger at no-such.db")


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--help"]) == 0
    assert "penstock usage --by key --since 30d" in capsys.readouterr().out
