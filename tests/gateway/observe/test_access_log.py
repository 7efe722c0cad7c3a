"""One line for each request: whole lines, nothing in them that a terminal obeys, and nobody waits for the reader."""

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
from support.gateway_traffic import Worker, ended
from support.ledger_entries import eventually

Form = Literal["text", "json", "off"]


@pytest.fixture(autouse=True)
def patient_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the remaining lines however busy the machine is."""
    monkeypatch.setattr("penstock.gateway.observe.access_log.CLOSE_TIMEOUT_S", 60.0)


def lines(tmp_path: Path, form: Form, *entries: Entry) -> list[str]:
    path = tmp_path / "access.log"
    log = AccessLog(form, str(path))
    for entry in entries:
        log.write(entry)
    log.close()
    return path.read_text().splitlines() if path.exists() else []


def test_a_line_of_text(tmp_path: Path) -> None:
    tries = [
        Attempt(model="a", upstream="x", provider_key="up", kind="initial", error="timeout"),
        Attempt(model="b", upstream="y", provider_key="up", kind="fallback", status=200),
    ]
    (line,) = lines(
        tmp_path, "text", ended(stream=True, ttft_ms=12.34, finish="completed", attempts=tries, request_id="req_1")
    )
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 200 /v1/responses ", line)
    for word in (
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
        assert word in line.split()


def test_refusals_and_blocks(tmp_path: Path) -> None:
    limited, blocked, anonymous = lines(
        tmp_path,
        "text",
        ended(status=429, error="rate_limit_exceeded", limited_by="policy"),
        ended(status=422, error="content_filter", blocked=True),
        ended(status=401, error="invalid_api_key", api_key_name="", model="", provider="", phases_ms={}),
    )
    assert "error=rate_limit_exceeded limited_by=policy" in limited
    assert "error=content_filter blocked=yes" in blocked
    assert "401 /v1/responses key=- model=- provider=-" in anonymous


def test_json_holds_what_the_ledger_holds(tmp_path: Path) -> None:
    entry = ended(stream=True, ttft_ms=12.34)
    (line,) = lines(tmp_path, "json", entry)
    said: dict[str, Any] = msgspec.json.decode(line)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", said.pop("time"))
    assert msgspec.convert(said, Entry) == entry


EVIL = '\x1b[2J\r\n2026-01-01T00:00:00.000Z 200 forged\x7f\x9b31m\u2028\u202eevil\0 "quoted" back\\slash'


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_others_made_up_cannot_break_the_line(tmp_path: Path, form: Form) -> None:
    found = lines(
        tmp_path,
        form,
        ended(upstream_id=EVIL, finish=EVIL, error=EVIL, client=EVIL, api_key_name=EVIL, request_id="a"),
        ended(upstream_id="\ud800", request_id="b"),
        ended(upstream_id="x" * 1_000_000, finish="é", request_id="c"),
    )
    assert len(found) == 3
    assert all(line.isprintable() for line in found)
    assert all(len(line) < 20_000 for line in found)
    if form == "json":
        assert msgspec.json.decode(found[0])["upstream_id"] == EVIL
        assert [msgspec.json.decode(line)["request_id"] for line in found] == ["a", "b", "c"]


def test_off_is_off(tmp_path: Path) -> None:
    assert lines(tmp_path, "off", ended()) == []


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


def test_a_log_that_was_moved_away_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog("text", str(path))
    log.write(ended(request_id="before"))
    eventually(lambda: path.stat().st_size)
    os.rename(path, tmp_path / "access.log.1")
    log.write(ended(request_id="after"))
    log.close()
    assert "id=before" in (tmp_path / "access.log.1").read_text()
    assert "id=after" in path.read_text()


STUCK = """
import sys
sys.path.insert(0, {here!r})
from support.gateway_traffic import ended
from penstock.gateway.observe import access_log
access_log.BACKLOG_LINES = 2000
access_log.CLOSE_TIMEOUT_S = 60.0
log = access_log.AccessLog("json")
for n in range(20000):
    log.write(ended(request_id=f"r{{n}}"))
print(log.dropped > 0, flush=True)
sys.stdin.readline()
for n in range(20000, 20010):
    log.write(ended(request_id=f"r{{n}}"))
log.close()
print(log.dropped, flush=True)
"""


def test_a_reader_that_stands_still_holds_up_nobody() -> None:
    script = STUCK.format(here=str(TESTS))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n", "all were written though nobody reads"
    out, err = process.communicate("\n")
    said = err.splitlines()
    told = [line for line in said if line.startswith("penstock gateway: ")]
    ids = [msgspec.json.decode(line)["request_id"] for line in said if line not in told]
    assert len(ids) + int(out) == 20010
    assert len(set(ids)) == len(ids)
    assert sum(int(line.split()[2]) for line in told) == int(out)


def test_a_log_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        AccessLog("text", str(tmp_path / "no" / "such" / "folder"))


def test_lines_that_the_disk_does_not_take_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "access.log"
    path.parent.mkdir()
    log = AccessLog("text", str(path))
    os.rename(path.parent, tmp_path / "away")  # there is no place for the file any more
    for number in range(3):
        log.write(ended(request_id=f"lost-{number}"))
    eventually(lambda: log.dropped >= 3)
    path.parent.mkdir()
    log.write(ended(request_id="back"))
    log.close()
    assert log.dropped == 3
    line, told = path.read_text().splitlines()
    assert "id=back" in line
    assert told.startswith("penstock gateway: 3 access log lines were left out here")
