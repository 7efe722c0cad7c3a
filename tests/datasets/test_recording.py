"""Files of bodies: what is found in them, what is wrong with them, and what they are taken for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.datasets.detect_format import detect
from penstock.datasets.inputs_json import InputsJson
from penstock.datasets.jsonl import Problems
from penstock.datasets.raw_payload import RawPayload
from penstock.datasets.recording import Recorded, Recording, RecordingOptions, chosen
from penstock.datasets.trace import Trace, first_row_is_timed
from penstock.errors import UserError
from penstock.settings.schema import ScheduleSettings


def scan(recording: Recording, wish: RecordingOptions | None = None) -> tuple[list[Recorded], str]:
    problems = Problems(recording.files[0].path)
    found = list(recording.scan(wish or RecordingOptions("chat"), problems))
    return found, problems.text() if problems.count else ""


def make(tmp_path: Path, content: bytes | str, name: str = "f.jsonl") -> str:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    ("content", "taken_for"),
    [
        ('{"messages": []}', "raw_payload"),
        ('\n \n{"text": "x", "messages": [{"role": "user", "content": "y"}]}\nrubbish', "raw_payload"),
        ('{"messages": [], "timestamp": 3}', "raw_payload"),
        ('{"messages": [{"role":"user","content":"\\ud800"}]}', "raw_payload"),
        ('{"messages": [], "deep": ' + "[" * 500 + "]" * 500 + "}", "raw_payload"),
        ('{"data": [{"session_id": "s", "payloads": [{}]}]}', "inputs_json"),
        ('{\n  "data": [\n    {"payloads": []}\n  ]\n}', "inputs_json"),
        ('\ufeff{"first": {"data": 1}, "data":[{"payloads":["\\ud800"]}]}', "inputs_json"),
        ('{"payload": {}, "timestamp": 0}', "mooncake_trace"),
        ('{"timestamp": 0, "input_length": 3}', "mooncake_trace"),
    ],
)
def test_what_a_file_is_taken_for(tmp_path: Path, content: str, taken_for: str) -> None:
    assert detect(make(tmp_path, content)).name == taken_for


def test_with_a_schedule_rows_with_a_time_are_a_trace(tmp_path: Path) -> None:
    path = make(tmp_path, '{"messages": [], "timestamp": 3}')
    assert detect(path, scheduled=True).name == "mooncake_trace"
    assert scan(Trace(path))[1].endswith(
        "it has 'messages' and no 'payload'; of mooncake_trace this version reads rows with a 'payload'; for lines that are "
        "request bodies say --custom-dataset-type raw_payload"
    )
    assert detect(make(tmp_path, '{"messages": []}'), scheduled=True).name == "raw_payload"


@pytest.mark.parametrize("content", ['{"messages": [], "conversation_id": 1}', '{"messages": [], "data": []}'])
def test_keys_of_other_formats_need_the_type_named(tmp_path: Path, content: str) -> None:
    assert detect(make(tmp_path, content)).name != "raw_payload"
    assert scan(RawPayload(make(tmp_path, content)))[1] == ""


def test_a_folder_is_known_by_its_first_conversation(tmp_path: Path) -> None:
    make(tmp_path, "not looked at", "a.txt")
    make(tmp_path, '{"messages": []}', "b.jsonl")
    make(tmp_path, "not looked at", "c.jsonl")
    assert detect(str(tmp_path)).name == "raw_payload"
    make(tmp_path, '{"text": "x"}', "a.jsonl")
    with pytest.raises(
        UserError, match=r"a\.jsonl in it looks like single_turn, and of folders this version reads raw"
    ):
        detect(str(tmp_path))


@pytest.mark.parametrize(
    ("endpoint", "line", "wrong"),
    [
        ("chat", '{"messages": []}', None),
        ("chat", '{"prompt": "x"}', "it has no 'messages', which this endpoint needs"),
        ("chat", '{"messages": [], "messages": {}}', "'messages' should be a list, not an object"),
        ("chat", '{"messages": 1, "messages": []}', None),
        ("chat", '{"messages": "\\ud800"}', "'messages' should be a list, not a string"),
        ("messages", "{}", "it has no 'messages'"),
        ("responses", '{"input": "x"}', None),
        ("responses", '{"messages": []}', "it has no 'input'"),
        ("completions", '{"prompt": ["x"]}', None),
        ("completions", '{"input": "x"}', "it has no 'prompt'"),
        ("raw", "{}", None),
        ("raw", "[]", "the line should be an object, not a list"),
        ("template", '{"x": 1} {"y": 2}', "not valid JSON (extra data, column 10)"),
        ("raw", '{"x": 1', "not valid JSON (expecting ',' delimiter, column 8)"),
        ("raw", "\ufeff{}", None),
    ],
)
def test_the_key_that_an_endpoint_needs(tmp_path: Path, endpoint: str, line: str, wrong: str | None) -> None:
    found, said = scan(RawPayload(make(tmp_path, line)), RecordingOptions(endpoint))
    assert (said == "") == (wrong is None) == bool(found)
    assert (wrong or "") in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "f.json:1: the file is empty"),
        ("[]", "f.json:1: the file should be one JSON object with a list 'data'"),
        ("\n{}", "f.json:1: the file has no 'data', the list of sessions"),
        ('{"data": {}}', "f.json:1: 'data' should be a list of sessions"),
        ('{"data": []}', "f.json:1: the list 'data' is empty: there is no session to replay"),
        ('{"data":\n[3]}', "f.json:2: a session should be an object with 'session_id' and 'payloads'"),
        ('{"data":[\n\n{"payloads":[{}]}]}', "f.json:3: a session has no 'session_id'"),
        ('{"data":[{"session_id":"s"}]}', "f.json:1: session 's' has no payloads"),
        ('{"data":[{"session_id":"s","payloads":[]}]}', "f.json:1: session 's' has no payloads"),
        ('{"data":[{"session_id":"s",\n"payloads":{}}]}', "f.json:2: 'payloads' should be a list of request bodies"),
        ('{"data":[{"session_id":[],"payloads":[{}]}]}', "f.json:1: 'session_id' should be a string"),
        ('{"data":[{"session_id":"s","payloads":[\n"x"]}]}', "f.json:2: a payload of session 's' is not a JSON object"),
        (
            '{"data":[\n{"session_id":"s","payloads":[{]}]}',
            "f.json:2: not valid JSON (expecting property name enclosed in double quotes, column 32)",
        ),
        ('{"data":[\n{"session_id":"s","payloads":[{}]}', "f.json:2: the file ends before its JSON does"),
        (
            '{"data":[{"session_id":"s","payloads":[{}]}]}\n}',
            "f.json:2: not valid JSON (more follows behind the end of",
        ),
        (b'{"data":[{"session_id":"s","payloads":[{"a":"\xff"}]}]}', "f.json:1: not valid UTF-8"),
    ],
)
def test_what_is_wrong_with_an_inputs_json(tmp_path: Path, content: Any, said: str) -> None:
    found, problems = scan(InputsJson(make(tmp_path, content, "f.json")))
    assert said in problems
    assert len(found) == (said.endswith(("JSON does", "the end of")))  # what was sound before


@pytest.mark.parametrize("read", [InputsJson, RawPayload, Trace])
def test_too_deep_nesting_is_refused_by_line(
    tmp_path: Path, read: type[InputsJson] | type[RawPayload] | type[Trace]
) -> None:
    deep = '{"messages":' + "[" * 100_000 + "]" * 100_000 + "}"
    content = {
        InputsJson: '{"data":[\n{"session_id":"s","payloads":[%s]}]}',
        RawPayload: '{"messages":[]}\n%s',
        Trace: '{"payload":{}}\n{"payload":%s}',
    }
    _, problems = scan(read(make(tmp_path, content[read] % deep)))
    assert problems.startswith("f.jsonl:2: ")
    assert "the JSON is nested too deeply; 500 levels are supported" in problems


def test_a_second_list_of_sessions_is_a_problem(tmp_path: Path) -> None:
    session = '[{"session_id":"s","payloads":[{}]}]'
    _, problems = scan(InputsJson(make(tmp_path, f'{{"data":{session},\n"data":{session}}}', "f.json")))
    assert problems == "f.json:2: 'data' stands here for the second time; keep one of them"


def test_sessions_keep_their_names_and_numbers_are_names_too(tmp_path: Path) -> None:
    path = make(tmp_path, '{"data":[{"session_id":7,"payloads":[{}]},{"payloads":[[1],{ }],"session_id":"\\ud800"}]}')
    found, problems = scan(InputsJson(path))
    assert (problems, [each.session for each in found]) == ("", ["7", "?"])
    assert [place.length for place in found[1].places] == [3, 3]
    assert [each.session for each in chosen(iter(found), {"?"})] == ["?"]
    alone = [Recorded(None, []), Recorded("x", [])]
    assert [each.session for each in chosen(iter(alone), {"session_000000"})] == ["session_000000"]


def rows(*found: dict[str, Any]) -> str:
    return "\n".join(json.dumps({"payload": {"n": n}} | row) for n, row in enumerate(found))


def numbers(path: str, found: list[Recorded]) -> list[list[int]]:
    text = Path(path).read_bytes()
    return [[json.loads(text[p.offset : p.offset + p.length])["n"] for p in each.places] for each in found]


def test_a_trace_is_put_in_order_and_grouped(tmp_path: Path) -> None:
    path = make(
        tmp_path,
        rows(
            {"timestamp": 50},
            {"timestamp": 40, "session_id": "s"},
            {"timestamp": 20, "session_id": 7},
            {"session_id": "s", "delay": 30},
            {"timestamp": 30},
            {"timestamp": 45, "session_id": 7},
        ),
    )
    found, problems = scan(Trace(path), RecordingOptions("chat", ScheduleSettings(on=True, speedup=2)))
    assert problems == ""
    assert numbers(path, found) == [[2, 5], [4], [1, 3], [0]]
    assert [each.session for each in found] == ["7", None, "s", None]
    assert [[p.timestamp_ms for p in each.places] for each in found] == [[0, 25], [10], [20, None], [30]]
    assert found[2].places[1].delay_ms == 15
    longer, _ = scan(Trace(path), RecordingOptions("chat", None, delay_ratio=3))
    assert longer[1].places[1].delay_ms == 90
    assert scan(Trace(path), RecordingOptions("chat", None, delay_ratio=0))[0][1].places[1].delay_ms == 0
    assert numbers(path, scan(Trace(path))[0]) == [[0], [1, 3], [2, 5], [4]], "without a schedule, as they come"


@pytest.mark.parametrize(
    ("schedule", "expected", "times"),
    [
        (ScheduleSettings(on=True), [0, 1, 2], [0, 10, 20]),
        (ScheduleSettings(on=True, auto_offset=False), [0, 1, 2], [100, 110, 120]),
        (ScheduleSettings(on=True, start_ms=105), [1, 2], [5, 15]),
        (ScheduleSettings(on=True, end_ms=110), [0, 1], [0, 10]),
        (ScheduleSettings(on=True, start_ms=110, end_ms=110), [1], [0]),
    ],
)
def test_the_part_of_a_schedule(
    tmp_path: Path, schedule: ScheduleSettings, expected: list[int], times: list[float]
) -> None:
    path = make(tmp_path, rows({"timestamp": 100}, {"timestamp": 110.0}, {"timestamp": 120}))
    trace = Trace(path)
    found, problems = scan(trace, RecordingOptions("chat", schedule))
    assert problems == ""
    assert numbers(path, found) == [[n] for n in expected]
    assert [each.places[0].timestamp_ms for each in found] == times
    assert bool(trace.notes()) == (len(expected) < 3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"timestamp": 3}', "it has no 'payload', the request body to send"),
        ('{"timestamp": 3, "input_length": 9}', "it has 'input_length' and no 'payload'"),
        ('{"timestamp": "x", "payload": {}}', "'timestamp' should be a number, not a string"),
        ('{"timestamp": -1, "payload": {}}', "'timestamp' should be a number of milliseconds, 0 or more"),
        ('{"payload": {}}', "it has no 'timestamp', which --fixed-schedule needs"),
        ('{"timestamp": 3, "payload": []}', "'payload' should be a request body, a JSON object"),
        ("{", "not valid JSON"),
    ],
)
def test_what_is_wrong_with_a_trace(tmp_path: Path, line: str, said: str) -> None:
    _, problems = scan(Trace(make(tmp_path, line)), RecordingOptions("chat", ScheduleSettings(on=True)))
    assert said in problems


def test_rows_that_only_the_slow_reader_takes(tmp_path: Path) -> None:
    path = make(
        tmp_path, '{"payload": {"n":0,"x":"\\ud800"}, "timestamp": 1e1, "session_id": "\\ud800", "delay": null}'
    )
    found, problems = scan(Trace(path), RecordingOptions("chat", ScheduleSettings(on=True)))
    assert (problems, numbers(path, found), found[0].session, found[0].places[0].timestamp_ms) == ("", [[0]], "?", 0)


def test_a_payload_is_found_behind_texts_that_look_like_it(tmp_path: Path) -> None:
    path = make(tmp_path, '{"note": {"payload": {"n": 1}}, "text": "\\"payload\\": {}", "payload" : {"n":2}}')
    assert numbers(path, scan(Trace(path))[0]) == [[2]]


def test_whether_a_trace_has_times(tmp_path: Path) -> None:
    assert first_row_is_timed(make(tmp_path, '\n{"timestamp": 1, "payload": {}}\n'))
    assert not first_row_is_timed(make(tmp_path, '{"payload": {}}'))
    assert not first_row_is_timed(make(tmp_path, "nonsense"))
    assert not first_row_is_timed(str(tmp_path / "none"))
