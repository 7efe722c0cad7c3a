"""Replayed files: their formats, the locations of their bodies, and their errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.datasets.conversation import BodyLocation, Conversation
from penstock.datasets.dataset import Dataset, ReadOptions
from penstock.datasets.detect_format import detect
from penstock.datasets.inputs_json import InputsJson
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.mooncake import first_row_is_timed
from penstock.datasets.payload_trace import PayloadTrace
from penstock.datasets.raw_payload import RawPayload
from penstock.errors import UserError
from penstock.settings.endpoint_types import load_endpoint
from penstock.settings.schema import ScheduleSettings


def scan(dataset: Dataset, options: ReadOptions | None = None) -> tuple[list[Conversation], str]:
    """Return the conversations and the text of the errors."""
    errors = FileErrors(dataset.files[0].path)
    try:
        dataset.prepare(options or ReadOptions(body_key="messages"))
    except UserError as error:
        return [], str(error)
    conversations = list(dataset.read(errors))
    return conversations, errors.text() if errors.count else ""


def bodies_of(conversation: Conversation) -> list[BodyLocation]:
    return [turn.body for turn in conversation.turns if turn.body is not None]


def write(tmp_path: Path, content: bytes | str, name: str = "f.jsonl") -> str:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    ("content", "expected"),
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
def test_format_is_detected(tmp_path: Path, content: str, expected: str) -> None:
    assert detect(write(tmp_path, content)).name == expected


def test_rows_with_a_timestamp_are_a_trace_when_scheduled(tmp_path: Path) -> None:
    path = write(tmp_path, '{"messages": [], "timestamp": 3}')
    assert detect(path, scheduled=True).name == "mooncake_trace"
    assert detect(write(tmp_path, '{"messages": []}'), scheduled=True).name == "raw_payload"


@pytest.mark.parametrize("content", ['{"messages": [], "conversation_id": 1}', '{"messages": [], "data": []}'])
def test_payload_with_keys_of_another_format_is_not_detected_but_readable(tmp_path: Path, content: str) -> None:
    assert detect(write(tmp_path, content)).name != "raw_payload"
    assert scan(RawPayload(write(tmp_path, content)))[1] == ""


def test_format_of_a_folder_is_that_of_its_first_jsonl_file(tmp_path: Path) -> None:
    write(tmp_path, "not looked at", "a.txt")
    write(tmp_path, '{"messages": []}', "b.jsonl")
    write(tmp_path, "not looked at", "c.jsonl")
    assert detect(str(tmp_path)).name == "raw_payload"
    write(tmp_path, '{"text": "x"}', "a.jsonl")
    with pytest.raises(UserError, match=r"a\.jsonl in it looks like single_turn, and only random_pool or raw_payload"):
        detect(str(tmp_path))


@pytest.mark.parametrize(
    ("endpoint", "line", "reason"),
    [
        ("chat", '{"messages": []}', None),
        ("chat", '{"prompt": "x"}', "it has no 'messages', which this endpoint needs"),
        ("chat", '{"messages": [], "messages": {}}', "'messages' should be a list, not an object"),
        ("chat", '{"messages": 1, "messages": []}', None),
        ("chat", '{"messages": "\\ud800"}', "'messages' should be a list, not a string"),
        ("chat", "{}", "it has no 'messages'"),
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
def test_payload_must_have_the_key_of_its_endpoint(
    tmp_path: Path, endpoint: str, line: str, reason: str | None
) -> None:
    conversations, errors = scan(
        RawPayload(write(tmp_path, line)), ReadOptions(body_key=load_endpoint(endpoint).declaration.body_key)
    )
    assert (errors == "") == (reason is None) == bool(conversations)
    assert (reason or "") in errors


@pytest.mark.parametrize(
    ("content", "message"),
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
            "f.json:2: not valid JSON (extra data after the end of",
        ),
        (b'{"data":[{"session_id":"s","payloads":[{"a":"\xff"}]}]}', "f.json:1: not valid UTF-8"),
    ],
)
def test_error_of_an_inputs_json_names_its_line(tmp_path: Path, content: Any, message: str) -> None:
    conversations, errors = scan(InputsJson(write(tmp_path, content, "f.json")))
    assert message in errors
    assert len(conversations) == (message.endswith(("JSON does", "the end of")))  # the session before the error


@pytest.mark.parametrize("read", [InputsJson, RawPayload, PayloadTrace])
def test_too_deep_nesting_is_refused_by_line(
    tmp_path: Path, read: type[InputsJson] | type[RawPayload] | type[PayloadTrace]
) -> None:
    deep = '{"messages":' + "[" * 100_000 + "]" * 100_000 + "}"
    content = {
        InputsJson: '{"data":[\n{"session_id":"s","payloads":[%s]}]}',
        RawPayload: '{"messages":[]}\n%s',
        PayloadTrace: '{"payload":{}}\n{"payload":%s}',
    }
    _, errors = scan(read(write(tmp_path, content[read] % deep)))
    assert errors.startswith("f.jsonl:2: ")
    assert "the JSON is nested too deeply; 500 levels are supported" in errors


def test_second_list_of_sessions_is_an_error(tmp_path: Path) -> None:
    session = '[{"session_id":"s","payloads":[{}]}]'
    _, errors = scan(InputsJson(write(tmp_path, f'{{"data":{session},\n"data":{session}}}', "f.json")))
    assert errors == "f.json:2: the file has a second 'data'; keep one"


def test_session_id_may_be_a_string_or_a_number(tmp_path: Path) -> None:
    path = write(tmp_path, '{"data":[{"session_id":7,"payloads":[{}]},{"payloads":[[1],{ }],"session_id":"\\ud800"}]}')
    found, errors = scan(InputsJson(path))
    assert (errors, [each.id for each in found]) == ("", ["7", "?"])
    assert [body.length for body in bodies_of(found[1])] == [3, 3]


def rows(*fields: dict[str, Any]) -> str:
    return "\n".join(json.dumps({"payload": {"n": n}} | row) for n, row in enumerate(fields))


def numbers(path: str, found: list[Conversation]) -> list[list[int]]:
    text = Path(path).read_bytes()
    return [[json.loads(text[p.offset : p.offset + p.length])["n"] for p in bodies_of(each)] for each in found]


def test_trace_is_sorted_by_time_and_grouped_by_session(tmp_path: Path) -> None:
    path = write(
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
    found, errors = scan(PayloadTrace(path), ReadOptions(ScheduleSettings(on=True, speedup=2)))
    assert errors == ""
    assert numbers(path, found) == [[2, 5], [4], [1, 3], [0]]
    assert [each.id for each in found] == ["7", "", "s", ""]
    assert [[turn.timestamp_ms for turn in each.turns] for each in found] == [[0, 25], [10], [20, None], [30]]
    assert found[2].turns[1].delay_ms == 15
    assert numbers(path, scan(PayloadTrace(path))[0]) == [[0], [1, 3], [2, 5], [4]], "in file order without a schedule"


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
def test_only_the_requested_part_of_a_schedule_is_replayed(
    tmp_path: Path, schedule: ScheduleSettings, expected: list[int], times: list[float]
) -> None:
    path = write(tmp_path, rows({"timestamp": 100}, {"timestamp": 110.0}, {"timestamp": 120}))
    trace = PayloadTrace(path)
    found, errors = scan(trace, ReadOptions(schedule))
    assert errors == ""
    assert numbers(path, found) == [[n] for n in expected]
    assert [each.turns[0].timestamp_ms for each in found] == times
    assert bool(trace.notes()) == (len(expected) < 3)


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        ScheduleSettings(on=True),
        ScheduleSettings(on=True, auto_offset=False, speedup=2),
        ScheduleSettings(on=True, start_ms=30, end_ms=500),
    ],
)
def test_large_sorted_trace_is_read_while_it_is_sent(tmp_path: Path, schedule: ScheduleSettings | None) -> None:
    path = write(tmp_path, rows(*({"timestamp": 20 + 5 * n, "delay": n} for n in range(200))))
    options = ReadOptions(schedule, whole_bytes=2000)
    whole = scan(PayloadTrace(path), ReadOptions(schedule))
    large = PayloadTrace(path)
    large.prepare(options)
    first = next(large.read(FileErrors(path)))
    assert large.scanned < 1000
    assert first == whole[0][0]
    assert scan(PayloadTrace(path), options) == whole


def test_large_unsorted_trace_is_read_first(tmp_path: Path) -> None:
    path = write(tmp_path, rows(*({"timestamp": 5 * n % 501} for n in range(200))))
    whole = scan(PayloadTrace(path), ReadOptions(ScheduleSettings(on=True)))
    assert scan(PayloadTrace(path), ReadOptions(ScheduleSettings(on=True), whole_bytes=2000)) == whole


@pytest.mark.parametrize("row", [{"timestamp": -1}, {"payload": 1, "timestamp": 2000}, {}])
def test_error_in_the_rest_of_a_large_trace_names_its_line(tmp_path: Path, row: dict[str, Any]) -> None:
    path = write(tmp_path, rows(*({"timestamp": n} for n in range(200)), row))
    _, errors = scan(PayloadTrace(path), ReadOptions(ScheduleSettings(on=True), whole_bytes=2000))
    assert errors.startswith("f.jsonl:201: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"timestamp": 3}', "it has no 'payload', the request body to send"),
        ('{"timestamp": 3, "input_length": 9}', "it has 'input_length' and no 'payload', which the first row has"),
        ('{"timestamp": "x", "payload": {}}', "'timestamp' should be a number, not a string"),
        ('{"timestamp": -1, "payload": {}}', "'timestamp' should be a number of milliseconds, 0 or more"),
        ('{"payload": {}}', "it has no 'timestamp', which --fixed-schedule needs"),
        ('{"timestamp": 3, "payload": []}', "'payload' should be a request body, a JSON object"),
        ("{", "not valid JSON"),
        ('{"timestamp": "x", oops', "not valid JSON (expecting property name enclosed in double quotes, column 20)"),
        ('{"timestamp": "x", "payload": {"a": "\\ud800"}}', "'timestamp' should be a number, not a string"),
        ("[]", "the line should be an object, not a list"),
    ],
)
def test_error_of_a_trace_is_described(tmp_path: Path, line: str, message: str) -> None:
    _, errors = scan(PayloadTrace(write(tmp_path, line)), ReadOptions(ScheduleSettings(on=True)))
    assert message in errors


def test_trace_row_may_have_lone_surrogates(tmp_path: Path) -> None:
    path = write(
        tmp_path, '{"payload": {"n":0,"x":"\\ud800"}, "timestamp": 1e1, "session_id": "\\ud800", "delay": null}'
    )
    found, errors = scan(PayloadTrace(path), ReadOptions(ScheduleSettings(on=True)))
    assert (errors, numbers(path, found), found[0].id, found[0].turns[0].timestamp_ms) == ("", [[0]], "?", 0)


def test_payload_is_found_after_texts_with_the_same_key(tmp_path: Path) -> None:
    path = write(tmp_path, '{"note": {"payload": {"n": 1}}, "text": "\\"payload\\": {}", "payload" : {"n":2}}')
    assert numbers(path, scan(PayloadTrace(path))[0]) == [[2]]


def test_first_row_is_timed_only_if_it_has_a_timestamp(tmp_path: Path) -> None:
    assert first_row_is_timed(write(tmp_path, '\n{"timestamp": 1, "payload": {}}\n'))
    assert not first_row_is_timed(write(tmp_path, '{"payload": {}}'))
    assert not first_row_is_timed(write(tmp_path, "nonsense"))
    assert not first_row_is_timed(str(tmp_path / "none"))
