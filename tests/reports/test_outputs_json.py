"""The file with the texts of the replies."""

import json
import os

from penstock.records.record import Failure
from support.records import MS, make_record
from support.runs import EPOCH, PROFILING, WARMUP, report_run

FAILED = Failure("HTTPError", "no", "server", 500)


def test_file_has_the_text_of_each_successful_profiled_reply(tmp_path):
    records = [
        make_record(number=0),
        make_record(number=1, phase=1, outputs=['one\n"two"', "three"]),
        make_record(number=2, phase=1, failure=FAILED),
        make_record(number=3, phase=1, cancelled=True),
        make_record(number=4, phase=1),
    ]
    run = report_run(tmp_path, records, phases=(WARMUP, PROFILING), outputs_json=True)
    outputs = json.loads(run.read("outputs.json"))
    assert outputs["schema_version"] == "1.0"
    assert [entry["session_num"] for entry in outputs["data"]] == [1, 4]
    (line,) = [line for line in run.lines if line["metadata"]["session_num"] == 1]
    assert outputs["data"][0] == {
        "session_num": 1,
        "conversation_id": "session-0",
        "turn_index": 0,
        "x_request_id": "request",
        "request_start_ns": EPOCH + 5 * MS,
        "request_end_ns": line["metadata"]["request_end_ns"],
        "metrics": {
            tag: line["metrics"][tag]["value"]
            for tag in (
                "input_sequence_length",
                "output_token_count",
                "output_sequence_length",
                "request_latency",
                "time_to_first_token",
                "inter_token_latency",
            )
        },
        "response_text": 'one\n"two"\nthree',
    }
    assert run.read("outputs.json").startswith(
        '{\n  "schema_version": "1.0",\n  "data": [\n    {\n      "session_num": 1,\n'
    )


def test_run_without_successes_has_an_empty_list(tmp_path):
    run = report_run(tmp_path, [make_record(failure=FAILED)], outputs_json=True)
    assert json.loads(run.read("outputs.json"))["data"] == []


def test_file_is_written_only_if_asked_for(tmp_path):
    assert not os.path.exists(report_run(tmp_path, [make_record()]).path("outputs.json"))
