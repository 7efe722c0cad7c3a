"""`--export-level raw`: the file has what the server received and what it sent, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.programs import Capture, Program

KEY = "sk-very-secret"
CHUNK = '{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Yes é"}}]}'
LAST = '{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
STREAM = f": welcome\n\nevent: token\ndata: {CHUNK}\n\ndata:{LAST}\n\ndata: [DONE]\n\n"
QUOTING = json.dumps({"error": {"message": f"the key {KEY} is not valid"}})


def read_lines(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: line["start_perf_ns"])


def test_file_has_headers_bodies_and_replies_as_they_were_sent(program: Program, capture: Capture) -> None:
    capture.answers = [
        ("text/event-stream", STREAM.encode()),
        ("application/json", json.dumps(Capture.ANSWER).encode()),
        ("application/json", QUOTING.encode()),
    ]
    run = program.profile(
        *(capture.url, "--streaming", "--request-count", 3, "--export-level", "raw", "--max-error-rate", 1),
        *("--api-key", KEY, "--header", "X-Tenant-Key:hidden-tenant", "--header", "X-Tracking:run 7"),
    )
    assert run.status == 0, run
    assert "Raw Records: " in run.out
    path = run.folder / "profile_export_raw.jsonl"
    stream, whole, failed = read_lines(path)
    for line, record, (_, headers, body) in zip((stream, whole, failed), run.records, capture.requests, strict=True):
        assert list(line)[:6] == ["metadata", "start_perf_ns", "request_headers", "status", "responses", "payload"]
        assert line["metadata"] == record["metadata"]
        assert line.get("error") == record.get("error")
        assert line["payload"] == json.loads(body)
        sent = {name.lower(): value for name, value in line["request_headers"].items()}
        assert set(sent) == set(headers)
        assert sent["x-tracking"] == "run 7"
        hidden = {"authorization", "x-tenant-key", "x-session-affinity"}
        assert {name: value for name, value in sent.items() if name not in hidden} == {
            name: value for name, (value,) in headers.items() if name not in hidden
        }
        assert {sent[name] for name in hidden} == {"<redacted>"}
        assert line["status"] == 200
        assert all(entry["perf_ns"] > line["start_perf_ns"] for entry in line["responses"])
    assert [entry["packets"] for entry in stream["responses"]] == [
        [
            {"name": "comment", "value": "welcome"},
            {"name": "event", "value": "token"},
            {"name": "data", "value": CHUNK},
        ],
        [{"name": "data", "value": LAST}],
        [{"name": "data", "value": "[DONE]"}],
    ]
    (entry,) = whole["responses"]
    assert entry["content_type"] == "application/json"
    assert json.loads(entry["text"]) == Capture.ANSWER
    assert failed["responses"][0]["text"] == QUOTING.replace(KEY, "*" * len(KEY))
    for file in run.files():
        assert KEY.encode() not in file.read_bytes(), file
    written = path.read_bytes()
    path.unlink()
    assert program.run("report", run.folder, command="penstock").status == 0
    assert path.read_bytes() == written


def test_events_have_the_times_of_the_records(program: Program) -> None:
    flags = ("--streaming", "--osl", 5, "--request-count", 12, "--concurrency", 4, "--workers-max", 2)
    run = program.profile("mock://?ttft=10&itl=2&error=503&error_rate=0.3", *flags, "--export-level", "raw")
    lines = {line["metadata"]["x_request_id"]: line for line in read_lines(run.folder / "profile_export_raw.jsonl")}
    assert len(lines) == 12
    failed = 0
    for record in run.records:
        line = lines[record["metadata"]["x_request_id"]]
        if "error" in record:
            failed += 1
            assert line["status"] == 503
            assert line["responses"][0]["text"] == record["error"]["message"]
            continue
        tokens = [entry["perf_ns"] for entry in line["responses"] if '"content":" ' in entry["packets"][0]["value"]]
        assert len(tokens) == 5
        first = record["metrics"]["time_to_first_token"]["value"]
        assert round((tokens[0] - line["start_perf_ns"]) / 1e6, 6) == round(first, 6)
    assert failed == run.summary["error_request_count"]["avg"]


def test_file_of_an_earlier_run_is_removed(program: Program) -> None:
    flags = ("--request-count", 1)
    first = program.profile("mock://", *flags, "--export-level", "raw")
    assert (first.folder / "profile_export_raw.jsonl").exists()
    second = program.profile("mock://", *flags, into=first.folder)
    assert not (second.folder / "profile_export_raw.jsonl").exists()
    assert not list(second.folder.glob("log/replies-*"))
