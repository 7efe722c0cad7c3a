"""The bodies that were really sent."""

import json

from made_runs import record, run

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
    """Conversation 1 was begun first though it ended last; body 3 was never sent; body 1 was sent twice."""
    conversations = [
        ('session "a"', [body("a0"), body("a1")]),
        ("session b", [body("b0"), body("b1")]),
        ("session c", [body("c0")]),
    ]
    records = [
        record(conversation=0, payload=0, at=20),
        record(conversation=0, payload=1, turn=1, at=30),
        record(conversation=0, payload=1, turn=1, at=60),
        record(conversation=1, payload=2, at=10),
    ]
    assert inputs(run(tmp_path, records, conversations=conversations)) == [
        {"session_id": "session b", "payloads": [json.loads(body("b0"))]},
        {"session_id": 'session "a"', "payloads": [json.loads(body("a0")), json.loads(body("a1"))]},
    ]


def test_bodies_that_are_not_json_do_not_spoil_the_file(tmp_path):
    odd = b'{"messages":[{"content":"\\ud800"}]}'
    conversations = [("form", [b"--boundary\r\nfile \xff"]), ("lone", [odd])]
    records = [record(), record(payload=1, conversation=1, at=5)]
    done = run(tmp_path, records, conversations=conversations, texts=lambda body: [])
    form, lone = inputs(done)
    assert form["payloads"] == ["--boundary\r\nfile �"]
    assert odd in done.read("inputs.json").encode()
    assert lone["session_id"] == "lone"


def test_a_body_that_a_worker_built_is_shown_as_it_was_sent(tmp_path):
    """The conversation was held twice; the first time counts. Its input is what was sent, history included."""
    built = [body("a0 reply a1 again"), body("a0 reply a1")]
    records = [record(payload=0, built=0, at=500), record(payload=0, built=1, at=10)]
    done = run(tmp_path, records, conversations=[("a", [b"only parts"])], built=built)
    assert inputs(done) == [{"session_id": "a", "payloads": [json.loads(body("a0 reply a1"))]}]
    assert [line["metrics"]["input_sequence_length"]["value"] for line in done.lines] == [4, 3]


def test_a_worker_that_was_killed_may_have_lost_what_it_built(tmp_path):
    done = run(tmp_path, [record(payload=0, built=7)], conversations=[("a", [b"only parts"])])
    assert inputs(done) == [{"session_id": "a", "payloads": []}]
    assert "input_sequence_length" not in done.lines[0]["metrics"]


def test_nothing_was_sent(tmp_path):
    assert inputs(run(tmp_path, [])) == []
