"""The bodies that were really sent."""

import json
import os
from hashlib import sha256

from penstock.records.log import RunLog
from penstock.records.verify import verify
from penstock.reports.write_artifacts import finish
from support.runs import BODY, input_texts, load_words, record, run, write_log

ODD = b'{ "messages" : [{"content":"caf\\u00e9 1e2"}],\n  "temperature": 1.0, "temperature": 1.00, "seed":1e2 }'


def body(text):
    return b'{"messages":[{"content":"%s"}]}' % text.encode()


def inputs(done):
    return json.loads(done.read("inputs.json"))["data"]


def test_a_body_is_written_byte_for_byte(tmp_path):
    done = run(tmp_path, [record()], conversations=[("s", [ODD])])
    text = done.read("inputs.json").encode()
    assert ODD in text
    assert text == b'{\n  "data": [\n    {\n      "session_id": "s",\n      "payloads": [\n        ' + ODD + (
        b"\n      ]\n    }\n  ]\n}\n"
    )


def test_conversations_in_the_order_of_their_first_use(tmp_path):
    """Conversation 1 was begun first though it ended last and was cut short; conversation 0 came twice."""
    conversations = [
        ('session "a"', [body("a0"), body("a1")]),
        ("session b", [body("b0"), body("b1")]),
        ("session c", [body("c0")]),
    ]
    records = [
        record(number=1, conversation=0, payload=0, at=20),
        record(number=1, conversation=0, payload=1, turn=1, at=30),
        record(number=2, conversation=0, payload=0, at=50),
        record(number=2, conversation=0, payload=1, turn=1, at=60),
        record(number=0, conversation=1, payload=2, at=10),
    ]
    assert inputs(run(tmp_path, records, conversations=conversations)) == [
        {"session_id": "session b", "payloads": [json.loads(body("b0"))]},
        {"session_id": 'session "a"', "payloads": [json.loads(body("a0")), json.loads(body("a1"))]},
    ]


def test_sessions_with_the_same_bodies_are_one_entry_and_others_are_not(tmp_path):
    """Lines 0 and 2 are alike. The second time, conversation 3 was cut after its first turn: another sequence."""
    conversations = [
        ("a", [body("same")]),
        ("b", [body("other")]),
        ("c", [body("same")]),
        ("d", [body("d0"), body("d1")]),
    ]
    records = [
        record(number=2, conversation=2, payload=2, at=10),
        record(number=0, conversation=0, payload=0, at=0),
        record(number=1, conversation=1, payload=1, at=5),
        record(number=3, conversation=3, payload=3, at=20),
        record(number=3, conversation=3, payload=4, turn=1, at=30),
        record(number=4, conversation=3, payload=3, at=40),
    ]
    found = inputs(run(tmp_path, records, conversations=conversations))
    assert [(each["session_id"], len(each["payloads"])) for each in found] == [("a", 1), ("b", 1), ("d", 2), ("d#2", 1)]


def test_bodies_that_are_not_json_do_not_spoil_the_file(tmp_path):
    odd = b'{"messages":[{"content":"\\ud800"}]}'
    conversations = [("form", [b"--boundary\r\nfile \xff"]), ("lone", [odd])]
    records = [record(), record(number=1, payload=1, conversation=1, at=5)]
    done = run(tmp_path, records, conversations=conversations, texts=lambda body: [])
    form, lone = inputs(done)
    assert form["payloads"] == ["--boundary\r\nfile �"]
    assert odd in done.read("inputs.json").encode()
    assert lone["session_id"] == "lone"


def test_a_body_that_a_worker_built_is_shown_as_it_was_sent(tmp_path):
    """The conversation was held twice, with other replies. Its input is what was sent, history included."""
    built = [body("a0 reply a1 again"), body("a0 reply a1")]
    records = [record(number=1, payload=0, built=0, at=500), record(number=0, payload=0, built=1, at=10)]
    done = run(tmp_path, records, conversations=[("a", [b"only parts"])], built=built)
    assert inputs(done) == [
        {"session_id": "a", "payloads": [json.loads(body("a0 reply a1"))]},
        {"session_id": "a#2", "payloads": [json.loads(body("a0 reply a1 again"))]},
    ]
    assert [line["metrics"]["input_sequence_length"]["value"] for line in done.lines] == [4, 3]


def test_a_worker_that_was_killed_before_it_had_written_what_it_built(tmp_path):
    """Its record is there, and the end of its index is not."""
    records = [record(built=0), record(number=1, built=1, at=5, request_id="the last")]
    path = write_log(tmp_path, records, conversations=[("a", [b"only parts"])], built=[body("a0"), body("a0 again")])
    index = os.path.join(path, "payloads-0.idx")
    os.truncate(index, os.path.getsize(index) - 20)
    log = RunLog(path)
    summary = finish(log, str(tmp_path / "out"), load_words, input_texts)
    assert summary.succeeded == 2
    assert summary.note == "inputs.json lacks 1 session(s): a worker was killed before it had written their payloads."
    assert json.loads((tmp_path / "out" / "inputs.json").read_text()) == {
        "data": [{"session_id": "a", "payloads": [json.loads(body("a0"))]}]
    }
    verdict = verify(log)
    log.close()
    assert (verdict.matched, verdict.differing) == (1, 1)
    assert [(each.x_request_id, each.reason) for each in verdict.differences] == [
        (
            "the last",
            "its body is not in the run's folder: the worker that built it was killed before it had written it",
        )
    ]


def test_what_was_never_handed_to_a_socket_is_in_no_proof(tmp_path):
    records = [record(), record(number=1, sent=None, at=5)]
    done = run(tmp_path, records)
    digest = sha256(BODY).digest()
    assert [line["metadata"].get("body_sha256") for line in done.lines] == [digest.hex(), None]
    assert done.json["proof"] == {"algorithm": "sha256", "requests": 1, "root": sha256(digest).hexdigest()}


def test_the_root_follows_the_plan_and_not_the_log(tmp_path):
    bodies = [body("a0"), body("a1"), body("b0")]
    records = [
        record(number=1, conversation=1, payload=2, at=1),
        record(number=0, conversation=0, payload=0, at=5, worker=1),
        record(number=0, conversation=0, payload=1, turn=1, at=9, worker=1),
    ]
    done = run(tmp_path, records, conversations=[("a", bodies[:2]), ("b", bodies[2:])])
    assert done.json["proof"]["root"] == sha256(b"".join(sha256(each).digest() for each in bodies)).hexdigest()
    assert done.json["context_mode"] == "deltas_without_responses"


def test_nothing_was_sent(tmp_path):
    assert inputs(run(tmp_path, [])) == []
