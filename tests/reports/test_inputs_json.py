"""The bodies in inputs.json and the proof over them."""

import json
import os
from base64 import b64encode
from hashlib import sha256

import pytest

from penstock.records.bodies import BodyReader
from penstock.records.log import RunLog
from penstock.records.verify import verify
from penstock.reports.check_inputs_json import check_inputs_json
from support.records import make_record
from support.runs import BODY, input_texts, load_word_tokenizer, report_run, write_artifacts, write_log

ODD = b'{ "messages" : [{"content":"caf\\u00e9 1e2"}],\n  "temperature": 1.0, "temperature": 1.00, "seed":1e2 }'


def body(text):
    return b'{"messages":[{"content":"%s"}]}' % text.encode()


def inputs(reported):
    return json.loads(reported.read("inputs.json"))["data"]


def test_body_is_written_byte_for_byte(tmp_path):
    reported = report_run(tmp_path, [make_record()], conversations=[("s", [ODD])])
    text = reported.read("inputs.json").encode()
    assert ODD in text
    assert text == b'{\n  "data": [\n    {\n      "session_id": "s",\n      "payloads": [\n        ' + ODD + (
        b"\n      ]\n    }\n  ]\n}\n"
    )


def test_conversations_are_in_order_of_first_use(tmp_path):
    """Conversation 1 started first and was cut short; conversation 0 was sent twice."""
    conversations = [
        ('session "a"', [body("a0"), body("a1")]),
        ("session b", [body("b0"), body("b1")]),
        ("session c", [body("c0")]),
    ]
    records = [
        make_record(number=1, conversation=0, payload=0, at=20),
        make_record(number=1, conversation=0, payload=1, turn=1, at=30),
        make_record(number=2, conversation=0, payload=0, at=50),
        make_record(number=2, conversation=0, payload=1, turn=1, at=60),
        make_record(number=0, conversation=1, payload=2, at=10),
    ]
    assert inputs(report_run(tmp_path, records, conversations=conversations)) == [
        {"session_id": "session b", "payloads": [json.loads(body("b0"))]},
        {"session_id": 'session "a"', "payloads": [json.loads(body("a0")), json.loads(body("a1"))]},
    ]


def test_sessions_with_equal_bodies_share_one_entry(tmp_path):
    """Conversations 0 and 2 are equal. The second use of conversation 3 was cut after one turn: another entry."""
    conversations = [
        ("a", [body("same")]),
        ("b", [body("other")]),
        ("c", [body("same")]),
        ("d", [body("d0"), body("d1")]),
    ]
    records = [
        make_record(number=2, conversation=2, payload=2, at=10),
        make_record(number=0, conversation=0, payload=0, at=0),
        make_record(number=1, conversation=1, payload=1, at=5),
        make_record(number=3, conversation=3, payload=3, at=20),
        make_record(number=3, conversation=3, payload=4, turn=1, at=30),
        make_record(number=4, conversation=3, payload=3, at=40),
    ]
    entries = inputs(report_run(tmp_path, records, conversations=conversations))
    assert [(entry["session_id"], len(entry["payloads"])) for entry in entries] == [
        ("a", 1),
        ("b", 1),
        ("d", 2),
        ("d#2", 1),
    ]


def test_file_is_valid_json_if_a_body_is_not(tmp_path):
    odd = b'{"messages":[{"content":"\\ud800"}]}'
    conversations = [("form", [b"--boundary\r\nfile \xff"]), ("lone", [odd])]
    records = [make_record(), make_record(number=1, payload=1, conversation=1, at=5)]
    reported = report_run(tmp_path, records, conversations=conversations, texts=lambda body: [])
    form, lone = inputs(reported)
    assert form["payloads"] == [{"body_b64": b64encode(b"--boundary\r\nfile \xff").decode()}]
    assert odd in reported.read("inputs.json").encode()
    assert lone["session_id"] == "lone"


def test_body_built_by_a_worker_is_written_as_sent(tmp_path):
    """The conversation was sent twice and got different replies, which are part of the bodies."""
    built = [body("a0 reply a1 again"), body("a0 reply a1")]
    records = [make_record(number=1, payload=0, built=0, at=500), make_record(number=0, payload=0, built=1, at=10)]
    reported = report_run(tmp_path, records, conversations=[("a", [b"only parts"])], built=built)
    assert inputs(reported) == [
        {"session_id": "a", "payloads": [json.loads(body("a0 reply a1"))]},
        {"session_id": "a#2", "payloads": [json.loads(body("a0 reply a1 again"))]},
    ]
    assert [line["metrics"]["input_sequence_length"]["value"] for line in reported.lines] == [4, 3]


def test_unwritten_body_of_a_killed_worker_is_omitted_with_a_note(tmp_path):
    """The record exists, but the end of the payload index is missing."""
    records = [make_record(built=0), make_record(number=1, built=1, at=5, request_id="the last")]
    path = write_log(tmp_path, records, conversations=[("a", [b"only parts"])], built=[body("a0"), body("a0 again")])
    index = os.path.join(path, "payloads-0.idx")
    os.truncate(index, os.path.getsize(index) - 20)
    log = RunLog(path)
    summary = write_artifacts(log, str(tmp_path / "out"), load_word_tokenizer, input_texts)
    assert summary.succeeded == 2
    assert summary.note == "inputs.json omits 1 session: a worker was killed before it had written their payloads."
    assert json.loads((tmp_path / "out" / "inputs.json").read_text()) == {
        "data": [{"session_id": "a", "payloads": [json.loads(body("a0"))]}]
    }
    verdict = verify(log)
    assert (verdict.matched, verdict.differing) == (1, 1)
    assert [(difference.x_request_id, difference.reason) for difference in verdict.differences] == [
        (
            "the last",
            "its body is not in the run's folder: the worker that built it was killed before it had written it",
        )
    ]


def test_complete_file_is_kept_if_its_bodies_cannot_be_read_any_more(tmp_path):
    records = [make_record(built=0), make_record(number=1, built=1, at=5)]
    built = [body("a0"), body("a0 again")]
    reported = report_run(tmp_path, records, conversations=[("a", [b"only parts"])], built=built)
    before = reported.read("inputs.json")
    index = tmp_path / "log" / "payloads-0.idx"
    os.truncate(index, index.stat().st_size - 20)
    log = RunLog(str(tmp_path / "log"))
    summary = write_artifacts(log, reported.folder, load_word_tokenizer, input_texts)
    assert summary.note == "inputs.json was kept: it contains bodies that cannot be read from their source any more."
    assert reported.read("inputs.json") == before


def test_body_that_was_never_sent_is_not_in_the_proof(tmp_path):
    records = [make_record(), make_record(number=1, sent=None, at=5)]
    reported = report_run(tmp_path, records)
    digest = sha256(BODY).digest()
    assert [line["metadata"].get("body_sha256") for line in reported.lines] == [digest.hex(), None]
    assert reported.json["proof"] == {"algorithm": "sha256", "requests": 1, "root": sha256(digest).hexdigest()}


def test_root_hash_follows_the_order_of_the_plan(tmp_path):
    bodies = [body("a0"), body("a1"), body("b0")]
    records = [
        make_record(number=1, conversation=1, payload=2, at=1),
        make_record(number=0, conversation=0, payload=0, at=5, worker=1),
        make_record(number=0, conversation=0, payload=1, turn=1, at=9, worker=1),
    ]
    reported = report_run(tmp_path, records, conversations=[("a", bodies[:2]), ("b", bodies[2:])])
    assert reported.json["proof"]["root"] == sha256(b"".join(sha256(sent).digest() for sent in bodies)).hexdigest()
    assert reported.json["context_mode"] == "deltas_without_responses"


def test_empty_run_has_empty_inputs(tmp_path):
    assert inputs(report_run(tmp_path, [])) == []


def check(tmp_path, reported):
    log = RunLog(str(tmp_path / "log"))
    with BodyReader(log) as bodies:
        return check_inputs_json(reported.path("inputs.json"), log, bodies.payloads)


def two_sessions(tmp_path):
    conversations = [("a", [ODD + b"\n", body("a1")]), ("b", [b"--form\r\nx"]), ("c", [b'"a string"'])]
    records = [
        make_record(number=0, payload=0),
        make_record(number=0, payload=1, turn=1, at=5),
        make_record(number=1, conversation=1, payload=2, at=9),
        make_record(number=2, conversation=2, payload=3, at=12),
        make_record(number=3, conversation=1, payload=2, at=15),
    ]
    return report_run(tmp_path, records, conversations=conversations, texts=lambda body: [])


def test_unchanged_inputs_json_agrees_with_the_log(tmp_path):
    assert check(tmp_path, two_sessions(tmp_path)) is None


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("a1", "a2", "inputs.json has other bytes for session 'a' than were sent."),
        ("1e2 }", "1e2}", "inputs.json has other bytes for session 'a' than were sent."),
        ('["","\\n"]', '["",""]', "inputs.json has other bytes for session 'a' than were sent."),
        ('"b"', '"x"', "inputs.json has session 'x' where the run sent session 'b'."),
        ("--form", "--norm", "inputs.json has other bytes for session 'b' than were sent."),
        ("{\n", "", "inputs.json was changed since the run: it cannot be read as a list of sessions."),
    ],
)
def test_changed_inputs_json_is_noticed(tmp_path, old, new, error):
    reported = two_sessions(tmp_path)
    text = reported.read("inputs.json")
    assert old in text
    (tmp_path / "out" / "inputs.json").write_bytes(text.replace(old, new, 1).encode())
    assert check(tmp_path, reported) == error


def test_missing_and_added_sessions_of_inputs_json_are_noticed(tmp_path):
    reported = two_sessions(tmp_path)
    sessions = inputs(reported)
    path = tmp_path / "out" / "inputs.json"
    path.write_text(json.dumps({"data": []}))
    assert check(tmp_path, reported) == "inputs.json does not contain session 'a', which was sent."
    path.write_text(json.dumps({"data": sessions}))
    os.truncate(tmp_path / "log" / "worker-0.log", 0)
    assert check(tmp_path, reported) == "inputs.json contains session 'a', which was not sent."
