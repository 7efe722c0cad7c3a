"""Tests of the access log: complete lines, no control characters, and no waiting for a slow reader."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from penstock.errors import UserError
from penstock.gateway.ledger.entry import Attempt, Entry
from penstock.gateway.observe.access_log import AccessLog
from support import TESTS
from support.gateway_traffic import Worker, finished_entry
from support.ledger_entries import eventually

Form = Literal["text", "json", "off"]


@pytest.fixture(autouse=True)
def long_close_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `close` wait for the remaining lines on a busy machine."""
    monkeypatch.setattr("penstock.gateway.observe.access_log.CLOSE_TIMEOUT_S", 60.0)


def log_lines(tmp_path: Path, form: Form, *entries: Entry) -> list[str]:
    path = tmp_path / "access.log"
    log = AccessLog(form, str(path))
    for entry in entries:
        log.write(entry)
    log.close()
    return path.read_text().splitlines() if path.exists() else []


def test_log_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    log_lines(tmp_path, "text", finished_entry())
    assert (tmp_path / "access.log").stat().st_mode & 0o777 == 0o600


def test_text_line_has_all_fields(tmp_path: Path) -> None:
    attempts = [
        Attempt(model="a", upstream="x", provider_key="up", kind="initial", error="timeout"),
        Attempt(model="b", upstream="y", provider_key="up", kind="fallback", status=200),
    ]
    (line,) = log_lines(
        tmp_path,
        "text",
        finished_entry(stream=True, ttft_ms=12.34, finish="completed", attempts=attempts, request_id="req_1"),
    )
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 200 /v1/responses ", line)
    for field in (
        "key=team-a",
        "model=gpt-4o-prod",
        "provider=openai",
        "client=127.0.0.1",
        "stream=yes",
        "usage=upstream",
        "tokens=12+5",
        "ttft=12.3",
        "auth=0.25",
        "upstream=30.00",
        "total=40.00",
        "finish=completed",
        "attempts=2",
        "id=req_1",
    ):
        assert field in line.split()


def test_text_line_shows_refusals_and_blocks(tmp_path: Path) -> None:
    limited, blocked, anonymous = log_lines(
        tmp_path,
        "text",
        finished_entry(status=429, error="rate_limit_exceeded", limited_by="policy"),
        finished_entry(status=422, error="content_filter", blocked=True),
        finished_entry(status=401, error="invalid_api_key", api_key_name="", model="", provider="", phases_ms={}),
    )
    assert "error=rate_limit_exceeded limited_by=policy" in limited
    assert "error=content_filter blocked=yes" in blocked
    assert "401 /v1/responses key=- model=- provider=-" in anonymous


def test_json_line_equals_the_ledger_entry(tmp_path: Path) -> None:
    entry = finished_entry(stream=True, ttft_ms=12.34)
    (line,) = log_lines(tmp_path, "json", entry)
    decoded: dict[str, Any] = msgspec.json.decode(line)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", decoded.pop("time"))
    assert msgspec.convert(decoded, Entry) == entry


HOSTILE_TEXT = '\x1b[2J\r\n2026-01-01T00:00:00.000Z 200 forged\x7f\x9b31m\u2028\u202eevil\0 "quoted" back\\slash'


@pytest.mark.parametrize("form", ["text", "json"])
def test_hostile_values_cannot_break_the_line(tmp_path: Path, form: Form) -> None:
    written = log_lines(
        tmp_path,
        form,
        finished_entry(
            upstream_id=HOSTILE_TEXT,
            finish=HOSTILE_TEXT,
            error=HOSTILE_TEXT,
            client=HOSTILE_TEXT,
            api_key_name=HOSTILE_TEXT,
            request_id="a",
        ),
        finished_entry(upstream_id="\ud800", request_id="b"),
        finished_entry(upstream_id="x" * 1_000_000, finish="é", request_id="c"),
    )
    assert len(written) == 3
    assert all(line.isprintable() for line in written)
    assert all(len(line) < 20_000 for line in written)
    if form == "json":
        assert msgspec.json.decode(written[0])["upstream_id"] == HOSTILE_TEXT
        assert [msgspec.json.decode(line)["request_id"] for line in written] == ["a", "b", "c"]


def test_log_off_writes_nothing(tmp_path: Path) -> None:
    assert log_lines(tmp_path, "off", finished_entry()) == []


def test_workers_share_a_log_without_mixing_lines(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    workers = [Worker(tmp_path / "spool", number, "json", str(path)) for number in range(3)]
    threads = [threading.Thread(target=worker.serve, args=(2000,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in workers:
        worker.end()
    ids = [msgspec.json.decode(line)["request_id"] for line in path.read_text().splitlines()]
    assert sorted(ids) == sorted(f"{worker}-{number}" for worker in range(3) for number in range(2000))


def test_renamed_log_file_is_reopened(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog("text", str(path))
    log.write(finished_entry(request_id="before"))
    eventually(lambda: path.stat().st_size)
    os.rename(path, tmp_path / "access.log.1")
    log.write(finished_entry(request_id="after"))
    log.close()
    assert "id=before" in (tmp_path / "access.log.1").read_text()
    assert "id=after" in path.read_text()


STUCK_READER_SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from support.gateway_traffic import finished_entry
from penstock.gateway.observe import access_log
access_log.MAX_QUEUED_LINES = 2000
access_log.CLOSE_TIMEOUT_S = 60.0
log = access_log.AccessLog("json")
for n in range(20000):
    log.write(finished_entry(request_id=f"r{{n}}"))
print(log.dropped > 0, flush=True)
sys.stdin.readline()
for n in range(20000, 20010):
    log.write(finished_entry(request_id=f"r{{n}}"))
log.close()
print(log.dropped, flush=True)
"""


def test_stuck_reader_delays_no_request() -> None:
    script = STUCK_READER_SCRIPT.format(tests=str(TESTS))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n", "no line was dropped although nobody reads"
    out, err = process.communicate("\n")
    lines = err.splitlines()
    reports = [line for line in lines if line.startswith("penstock gateway: ")]
    ids = [msgspec.json.decode(line)["request_id"] for line in lines if line not in reports]
    assert len(ids) + int(out) == 20010
    assert len(set(ids)) == len(ids)
    assert sum(int(line.split()[2]) for line in reports) == int(out)


def test_unwritable_log_raises_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        AccessLog("text", str(tmp_path / "no" / "such" / "folder"))


def test_lines_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "access.log"
    path.parent.mkdir()
    log = AccessLog("text", str(path))
    os.rename(path.parent, tmp_path / "renamed")  # the log file cannot be created any more
    for number in range(3):
        log.write(finished_entry(request_id=f"lost-{number}"))
    eventually(lambda: log.dropped >= 3)
    path.parent.mkdir()
    log.write(finished_entry(request_id="written"))
    log.close()
    assert log.dropped == 3
    line, report = path.read_text().splitlines()
    assert "id=written" in line
    assert report.startswith("penstock gateway: 3 access log lines were dropped here")
