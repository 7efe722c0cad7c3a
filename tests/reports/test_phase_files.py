"""The files of the phases of a run with a warmup."""

import json
import os

import pytest

from penstock.records.record import Failure
from support.records import MS, make_record
from support.runs import EPOCH, PROFILING, WARMUP, report_run

FAILED = Failure("Internal Server Error", "broken", "server", 500)


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    records = [
        make_record(),
        make_record(number=1, at=10, failure=FAILED, stamps=[], pieces=[], outputs=[], streamed=False),
        *(make_record(number=number, at=500 + 200 * number, phase=1) for number in range(3)),
    ]
    return report_run(tmp_path_factory.mktemp("warmed"), records, phases=(WARMUP, PROFILING))


def test_manifest_names_the_phases_and_their_files(warmed):
    manifest = json.loads(warmed.read("phase_manifest.json"))
    assert manifest["schema_version"] == 1
    warmup, profiling = manifest["phases"]
    assert list(warmup) == sorted(warmup)
    error = {"code": 500, "type": "Internal Server Error", "message": "broken", "fault": "server"}
    assert warmup == {
        "phase_index": 0,
        "phase_kind": "warmup",
        "phase_name": "warmup",
        "profiling_index": None,
        "start_ns": EPOCH + 5 * MS,
        "end_ns": EPOCH + 120 * MS,
        "successful_request_count": 1,
        "error_request_count": 1,
        "error_summary": [{"error_details": error, "count": 1}],
        "total_request_count": 2,
        "metrics_csv": "phases/warmup/profile_export_aiperf.csv",
        "metrics_json": "phases/warmup/profile_export_aiperf.json",
        "was_cancelled": False,
    }
    assert (profiling["phase_index"], profiling["profiling_index"]) == (1, 0)
    assert (profiling["successful_request_count"], profiling["error_request_count"]) == (3, 0)
    assert all(
        os.path.exists(warmed.path(phase[name]))
        for phase in (warmup, profiling)
        for name in ("metrics_json", "metrics_csv")
    )


def test_files_of_a_phase_have_its_metrics(warmed):
    summary = warmed.json
    warmup, profiling = (
        json.loads(warmed.read(f"phases/{kind}/profile_export_aiperf.json")) for kind in ("warmup", "profiling")
    )
    for tag, stats in summary["warmup_metrics"].items():
        assert warmup[tag] == stats, tag
    assert profiling["request_latency"] == summary["request_latency"]
    assert profiling["start_time"] == summary["start_time"]
    assert profiling["error_summary"] == []
    assert "warmup_metrics" not in profiling
    assert warmed.read("phases/profiling/profile_export_aiperf.csv") == warmed.read("profile_export_aiperf.csv")


def test_run_with_one_phase_has_no_phase_files(tmp_path):
    reported = report_run(tmp_path, [make_record()])
    assert not {"phases", "phase_manifest.json"} & set(os.listdir(reported.folder))
