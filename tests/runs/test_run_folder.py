"""The artifact folder of a run: the log of the previous run is kept until the new run begins."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.runs.run_folder import RunFolder


def write_log(path: Path, text: str) -> None:
    path.mkdir(parents=True)
    (path / "payloads.bin").write_bytes(b"")
    (path / "run.json").write_text(text)


def test_run_that_does_not_begin_leaves_no_folder(tmp_path: Path) -> None:
    with RunFolder(str(tmp_path / "run")) as folder:
        Path(folder.log, "payloads.bin").write_bytes(b"x")
    assert not (tmp_path / "run").exists()


def test_run_that_does_not_begin_keeps_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with RunFolder(str(tmp_path)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_run_that_does_not_begin_restores_the_previous_log(tmp_path: Path) -> None:
    write_log(tmp_path / "log", "previous")
    with RunFolder(str(tmp_path)) as folder:
        assert folder.replaces is not None
        assert folder.previous_log == str(tmp_path / "log.old")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert (tmp_path / "log" / "run.json").read_text() == "previous"


def test_folder_that_cannot_be_written_keeps_the_previous_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "log", "previous")

    mkdir = os.mkdir

    def full_disk(path: str, *mode: int) -> None:
        if path == str(tmp_path / "log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        mkdir(path, *mode)

    monkeypatch.setattr("os.mkdir", full_disk)
    with pytest.raises(UserError, match="No space left on device"), RunFolder(str(tmp_path)):
        pass
    assert (tmp_path / "log" / "run.json").read_text() == "previous"


def test_run_that_begins_replaces_the_previous_log_and_artifacts(tmp_path: Path) -> None:
    write_log(tmp_path / "log", "previous")
    artifact = tmp_path / "profile_export.jsonl"
    artifact.write_text("previous")
    with RunFolder(str(tmp_path)) as folder:
        folder.begin([str(artifact), str(tmp_path / "no-such-file")])
        assert folder.previous_log is None
        Path(folder.log, "run.json").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert (tmp_path / "log" / "run.json").read_text() == "new"


@pytest.mark.parametrize("previous", [False, True])
def test_roll_back_can_be_repeated_at_any_time(tmp_path: Path, previous: bool) -> None:
    path = tmp_path / "run"
    if previous:
        write_log(path / "log", "previous")
    folder = RunFolder(str(path))
    folder.roll_back()
    with folder:
        folder.roll_back()
        folder.roll_back()
    folder.roll_back()
    assert path.exists() == previous
    if previous:
        assert (path / "log" / "run.json").read_text() == "previous"


def test_log_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    """A run that was killed before its first request leaves its own log and that of the run before it."""
    write_log(tmp_path / "log", "killed")
    write_log(tmp_path / "log.old", "previous")
    with RunFolder(str(tmp_path)):
        assert list((tmp_path / "log").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert (tmp_path / "log" / "run.json").read_text() == "previous"


@pytest.mark.parametrize("name", ["log", "log.old", "log.gone"])
def test_folder_that_is_no_log_is_refused_and_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not the log of a run"), RunFolder(str(tmp_path)):
        pass
    assert (tmp_path / name / "notes.txt").read_text() == "mine"


def test_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with RunFolder(str(tmp_path)):
        with pytest.raises(UserError, match="Another run is writing to"), RunFolder(str(tmp_path)):
            pass
        assert (tmp_path / "log").is_dir()


def test_resume_waits_for_the_workers_of_a_killed_run(tmp_path):
    before = RunFolder(str(tmp_path))
    before.__enter__()
    threading.Timer(0.2, before.__exit__).start()
    with RunFolder(str(tmp_path), resume=True) as folder:
        assert folder.began
