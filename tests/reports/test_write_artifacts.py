"""Which files there are, and when."""

import json
import os

import pytest

from penstock.errors import UserError
from penstock.records.log import RunLog
from penstock.reports.artifacts import replacing
from penstock.reports.write_artifacts import finish
from support.runs import load_words, record, run, write_log

ALL = {
    "profile_export_aiperf.json",
    "profile_export_aiperf.csv",
    "profile_export.jsonl",
    "profile_export_console.txt",
    "inputs.json",
}


def test_all_of_them_and_nothing_else(tmp_path):
    done = run(tmp_path, [record()])
    assert set(os.listdir(done.folder)) == ALL
    assert not [name for name in os.listdir(tmp_path / "log") if name.startswith("columns-")]


def test_a_prefix(tmp_path):
    done = run(tmp_path, [record()], prefix="mine")
    assert set(os.listdir(done.folder)) == {"mine.json", "mine.csv", "mine.jsonl", "mine_console.txt", "inputs.json"}


def test_a_replay_of_the_very_file_leaves_it_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "inputs.json").write_text("the user's")
    done = run(tmp_path, [record()], dataset="inputs_json", payload_files=[str(tmp_path / "out" / "inputs.json")])
    assert done.read("inputs.json") == "the user's"
    assert "was left as it is" in done.read("profile_export_console.txt")


def test_the_same_log_makes_the_same_files(tmp_path):
    done = run(tmp_path, [record(), record(number=1, at=105)])
    first = {name: done.read(name) for name in ALL}
    again = run(tmp_path, [record(), record(number=1, at=105)])
    assert {name: again.read(name) for name in ALL} == first


def test_progress(tmp_path):
    log = RunLog(write_log(tmp_path, [record() for _ in range(1200)], requests=1000))
    seen = []
    finish(log, str(tmp_path / "a"), load_words, lambda body: ["x"], progress=lambda *at: seen.append(at))
    assert seen == [(512, 1000), (1024, 1024), (1200, 1200)]
    seen.clear()
    finish(log, str(tmp_path / "b"), None, lambda body: ["x"], progress=lambda *at: seen.append(at), expected=1300)
    assert seen[-1] == (1200, 1300)
    seen.clear()
    log.header.requests = None
    finish(log, str(tmp_path / "c"), None, lambda body: ["x"], progress=lambda *at: seen.append(at))
    assert seen[-1] == (1200, 0)
    log.close()


def test_long_replies_make_small_batches(tmp_path):
    stamps = list(range(1, 60_001))
    records = [record(stamps=stamps, pieces=[1] * 60_000, end=10**9) for _ in range(5)]
    log = RunLog(write_log(tmp_path, records))
    seen = []
    finish(log, str(tmp_path / "a"), load_words, lambda body: ["x"], progress=lambda done, _: seen.append(done))
    log.close()
    assert seen == [2, 4, 5]


def test_a_tokenizer_that_fails_does_not_cost_the_run(tmp_path):
    def load():
        raise UserError("The hub did not answer.")

    found = run(tmp_path, [record()], tokenizer=load).json
    assert found["request_latency"]["avg"] == 100
    assert "output_sequence_length" not in found
    assert found["tokenizer"] == {
        "name": None,
        "source": None,
        "note": "No tokens were counted. The hub did not answer.",
    }


def test_a_torn_log(tmp_path):
    path = write_log(tmp_path, [record(), record(number=1)])
    worker = os.path.join(path, "worker-0.log")
    os.truncate(worker, os.path.getsize(worker) - 10)
    log = RunLog(path)
    summary = finish(log, str(tmp_path / "out"), load_words, lambda body: ["x"])
    log.close()
    assert summary.succeeded == 1
    assert summary.torn_bytes > 0
    assert json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())["torn_bytes"] == summary.torn_bytes
    assert "torn" in (tmp_path / "out" / "profile_export_console.txt").read_text()


def test_an_error_leaves_the_old_files_and_no_half_of_a_new_one(tmp_path):
    def broken(body):
        raise RuntimeError("a bug")

    done = run(tmp_path, [record()])
    before = {name: done.read(name) for name in ALL}
    log = RunLog(write_log(tmp_path, [record(), record(number=1)], level="summary"))
    with pytest.raises(RuntimeError):
        finish(log, done.folder, load_words, broken)
    log.close()
    assert {name: done.read(name) for name in os.listdir(done.folder)} == before
    assert not [name for name in os.listdir(tmp_path / "log") if name.startswith("columns-")]


def test_replacing_is_all_or_nothing(tmp_path):
    path = tmp_path / "new" / "file"
    with replacing(str(path)) as f:
        f.write(b"old")
        assert not path.exists()

    def interrupted():
        with replacing(str(path)) as f:
            f.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["file"]
