"""For any valid JSON in a file, the server receives exactly its bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.datasets.inputs_json import InputsJson
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.raw_payload import RawPayload
from penstock.endpoints.base import endpoint_named as endpoint
from penstock.records.payloads import PayloadStore, PayloadWriter
from penstock.runs.payload_builder import PayloadBuilder
from support.odd_json import payloads
from support.programs import Capture, Program
from support.runs import make_settings

BOM = b"\xef\xbb\xbf"
MANY = st.lists(payloads(), min_size=1, max_size=25)


@pytest.mark.parametrize(
    ("line_end", "examples"), [(b"\r\n", 6), pytest.param(b"\n", 60, marks=pytest.mark.slow)], ids=["crlf", "lf"]
)
def test_command_sends_the_source_bytes(program: Program, capture: Capture, line_end: bytes, examples: int) -> None:
    """Send odd bodies from JSONL and from inputs.json: dozens of each, hundreds in the slow test."""
    bodies: list[bytes] = []

    @settings(
        max_examples=examples, database=None, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None
    )
    @given(MANY)
    def collect(some: list[bytes]) -> None:
        bodies.extend(some)

    collect()
    path = program.folder / "odd.jsonl"
    path.write_bytes((BOM if line_end == b"\r\n" else b"") + line_end.join(bodies))
    whole = program.folder / "odd.json"
    frame = b',\n{"payloads" : [ %b ] , "extra": {"payloads": []}, "session_id":"%d"}'
    sessions = b"".join(frame % (body, n) for n, body in enumerate(bodies))[1:]
    whole.write_bytes(b'{"version": [1, {"data": []}], "data" : [' + sessions + b"\n] }")
    arguments = ("--use-server-token-count", "--custom-dataset-type")
    for file, kind in ((path, "raw_payload"), (whole, "inputs_json")):
        done = program.profile(capture.url, "--input-file", file, *arguments, kind, texts=None)
        assert done.status == 0, done
    bare = [body.strip(b" \t") for body in bodies]
    assert [body for _, _, body in capture.requests] == bodies + bare


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(MANY, st.sampled_from([b"\n", b"\r\n", b"\n\n \n"]), st.booleans(), st.booleans())
def test_index_points_at_the_source_bytes(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], line_end: bytes, bom: bool, end: bool
) -> None:
    folder = tmp_path_factory.mktemp("index")
    path = folder / "payloads.jsonl"
    path.write_bytes(BOM * bom + line_end.join(bodies) + line_end * end)
    assert _indexed(folder, RawPayload(str(path))) == bodies
    sessions = [b'{"session_id":%d,"payloads":[%b,%b]}' % (n, body, body) for n, body in enumerate(bodies)]
    path = folder / "inputs.json"
    path.write_bytes(BOM * bom + b'{"data":[' + b",".join(sessions) + b"]}" + line_end * end)
    assert _indexed(folder, InputsJson(str(path))) == [body.strip(b" \t") for body in bodies for _ in range(2)]


_DECOYS = {
    "in an earlier object": b'{"session_id":"s","meta":{"payloads":[{"a":1},{"zz":99999}]},"payloads":[{"a":1},{"b":2}]}',
    "repeated key": b'{"payloads":[{"a":1},{"zz":99999}],"session_id":"s","payloads":[{"a":1},{"b":2}]}',
    "in the session id": b'{"session_id":"\\"payloads\\": [","payloads":[ {"a":1} ,\n{"b":2} ]}',
    "escaped key": b'{"session_id":"s","meta":[{"payloads":[{"a":1},7]}],"p\\u0061yloads":[{"a":1},{"b":2}]}',
    "escaped key, and the next session": b'{"session_id":"s","p\\u0061yloads":[{"a":1},{"b":2}]}',
}


@pytest.mark.parametrize("session", _DECOYS.values(), ids=_DECOYS)
def test_nested_or_repeated_payloads_keys_are_not_sent(program: Program, capture: Capture, session: bytes) -> None:
    path = program.folder / "inputs.json"
    path.write_bytes(b'{"data":[%b,{"session_id":"t","payloads":[{"a":1},{"c":3}]}]}' % session)
    arguments = ("--use-server-token-count", "--custom-dataset-type", "inputs_json", "--endpoint-type", "raw")
    done = program.profile(capture.url, "--input-file", path, *arguments, texts=None)
    assert done.status == 0, done
    assert [body for _, _, body in capture.requests] == [b'{"a":1}', b'{"b":2}', b'{"a":1}', b'{"c":3}']


def _indexed(folder: Path, dataset: RawPayload | InputsJson) -> list[bytes]:
    run_settings = make_settings()
    index = PayloadBuilder(PayloadWriter(str(folder)), run_settings, endpoint("chat", run_settings.endpoint), dataset)
    index.advance(None)
    index.errors.raise_any()
    store = PayloadStore(str(folder), index.files)
    bodies = [store.body(number) for number in range(len(store))]
    store.close()
    return bodies


@settings(max_examples=30, deadline=None)
@given(payloads())
def test_generated_bodies_are_json(body: bytes) -> None:
    """The tests above rely on this. Python's own parser limits the nesting depth."""
    try:
        parsed = json.loads(body, parse_int=str)
    except RecursionError:
        return
    assert isinstance(parsed["messages"], list)


def test_sessions_and_errors_are_found_with_any_window_size(tmp_path: Path) -> None:
    """Sessions may cross the edge of the window."""
    text = json.dumps(
        {"a": "x" * 50, "data": [{"session_id": f"s{n}", "payloads": [{"n": "é" * n}, {"m": [n]}]} for n in range(12)]},
        indent=1,
        ensure_ascii=False,
    ).encode()
    path = tmp_path / "inputs.json"
    for size in (1, 7, 64, 300, 10_000):
        for cut in (len(text), len(text) - 1, len(text) // 2):
            path.write_bytes(text[:cut])
            errors = FileErrors(str(path))
            conversations = list(InputsJson(str(path), window_bytes=size).read(errors))
            if cut == len(text):
                assert [conversation.id for conversation in conversations] == [f"s{n}" for n in range(12)]
                bodies = [turn.body for conversation in conversations for turn in conversation.turns if turn.body]
                assert all(text[body.offset : body.offset + body.length].startswith(b"{") for body in bodies)
                assert not errors.count
            else:
                assert "the file ends before its JSON does" in errors.text()
