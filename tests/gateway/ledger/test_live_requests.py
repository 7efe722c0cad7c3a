"""The file with the requests that a worker is serving."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.gateway.ledger.live_requests import LiveRequests, live_paths, read_lost
from support.ledger_entries import make_entry


def test_requests_are_noted_on_a_system_without_posix_fallocate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    live = LiveRequests(str(tmp_path), 0)
    for number in range(600):  # more than the file has room for at first
        live.begin(make_entry(request_id=f"r{number}"), 7)
    for number in range(599):
        live.end(f"r{number}")
    (path,) = live_paths(str(tmp_path))
    assert [(entry.request_id, entry.input_tokens) for entry in read_lost(path)] == [("r599", 7)]
    live.close()


def test_file_that_a_full_disk_cut_is_read(tmp_path: Path) -> None:
    live = LiveRequests(str(tmp_path), 0)
    live.begin(make_entry(), 7)
    (path,) = live_paths(str(tmp_path))
    os.truncate(path, 1025)
    assert len(read_lost(path)) <= 1
    live.close()
