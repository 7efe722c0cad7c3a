"""The files that a report writes."""

import json
import os

import pytest
from msgspec.structs import replace

from penstock.errors import UserError
from penstock.records.log import RunLog
from penstock.reports.artifacts import replacing
from support.records import make_record
from support.runs import PROFILING, load_word_tokenizer, report_run, write_artifacts, write_log

ALL = {
    "profile_export_aiperf.json",
    "profile_export_aiperf.csv",
    "profile_export.jsonl",
    "profile_export_console.txt",
    "inputs.json",
    "report.html",
}


def test_all_artifacts_are_written_and_no_temporary_files_remain(tmp_path):
    reported = report_run(tmp_path, [make_record()])
    assert set(os.listdir(reported.folder)) == ALL


def test_prefix_changes_the_file_names(tmp_path):
    reported = report_run(tmp_path, [make_record()], prefix="mine")
    assert set(os.listdir(reported.folder)) == {
        "mine.json",
        "mine.csv",
        "mine.jsonl",
        "mine_console.txt",
        "inputs.json",
        "report.html",
    }


def test_replayed_inputs_json_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "inputs.json").write_text("the user's")
    reported = report_run(
        tmp_path, [make_record()], dataset="inputs_json", payload_files=[str(tmp_path / "out" / "inputs.json")]
    )
    assert reported.read("inputs.json") == "the user's"
    assert "was left unchanged" in reported.read("profile_export_console.txt")


def test_same_log_gives_the_same_files(tmp_path):
    reported = report_run(tmp_path, [make_record(), make_record(number=1, at=105)])
    first = {name: reported.read(name) for name in ALL}
    again = report_run(tmp_path, [make_record(), make_record(number=1, at=105)])
    assert {name: again.read(name) for name in ALL} == first


def test_progress_counts_records_against_the_expected_number(tmp_path):
    def progress_of(*requests):
        phases = [replace(PROFILING, load={"requests": count}) for count in requests]
        folder = tmp_path / str(len(os.listdir(tmp_path)))
        log = RunLog(write_log(folder, [make_record() for _ in range(2200)], phases=phases))
        seen = []
        write_artifacts(log, str(folder / "out"), None, lambda body: ["x"], progress=lambda *at: seen.append(at))
        return seen

    assert progress_of(2000) == [(1024, 2000), (2048, 2048), (2200, 2200)]
    assert progress_of(2000, 300)[-1] == (2200, 2300)
    assert progress_of(None)[-1] == (2200, 0)


def test_long_replies_make_small_batches(tmp_path):
    stamps = list(range(1, 60_001))
    records = [make_record(stamps=stamps, pieces=[1] * 60_000, end=10**9) for _ in range(5)]
    log = RunLog(write_log(tmp_path, records))
    seen = []
    write_artifacts(
        log, str(tmp_path / "a"), load_word_tokenizer, lambda body: ["x"], progress=lambda done, _: seen.append(done)
    )
    assert seen == [2, 4, 5]


def test_other_metrics_remain_if_the_tokenizer_fails(tmp_path):
    def load():
        raise UserError("The hub did not answer.")

    summary = report_run(tmp_path, [make_record()], tokenizer=load).json
    assert summary["request_latency"]["avg"] == 100
    assert "output_sequence_length" not in summary
    assert summary["tokenizer"] == {
        "name": None,
        "source": None,
        "note": "No tokens were counted. The hub did not answer.",
    }


def test_incomplete_end_of_a_log_is_reported(tmp_path):
    path = write_log(tmp_path, [make_record(), make_record(number=1)])
    worker = os.path.join(path, "worker-0.log")
    os.truncate(worker, os.path.getsize(worker) - 10)
    log = RunLog(path)
    summary = write_artifacts(log, str(tmp_path / "out"), load_word_tokenizer, lambda body: ["x"])
    assert summary.succeeded == 1
    assert summary.damage.torn_bytes > 0
    assert (
        json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())["torn_bytes"]
        == summary.damage.torn_bytes
    )
    assert "of the log are incomplete" in (tmp_path / "out" / "profile_export_console.txt").read_text()


def test_error_leaves_the_old_files_unchanged(tmp_path):
    def raise_error(body):
        raise RuntimeError("a bug")

    reported = report_run(tmp_path, [make_record()])
    before = {name: reported.read(name) for name in ALL}
    log = RunLog(write_log(tmp_path, [make_record(), make_record(number=1)], level="summary"))
    with pytest.raises(RuntimeError):
        write_artifacts(log, reported.folder, load_word_tokenizer, raise_error)
    assert {name: reported.read(name) for name in os.listdir(reported.folder)} == before


def test_replacing_a_file_is_atomic(tmp_path):
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


def test_run_of_many_phases_has_a_report(tmp_path):
    """Such as the last point of a long sweep."""
    records = [make_record(phase=phase) for phase in (0, 99)]
    assert report_run(tmp_path, records, phases=(PROFILING,) * 100).summary.proof.requests == 2
