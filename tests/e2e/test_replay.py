"""Replay with the real command: the server receives the bytes of the file."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.reports.report_html import read_page
from support.programs import Capture, Outcome, Program

ODD = [
    b'{"messages":[{"role":"user","content":"caf\\u00e9 \\/ \\ud83d\\ude00"}],"temperature":1.00,"n":1e0}',
    b'{ "messages" : [ ] , "a":1,"a":2, "stream":false }',
    '{"messages":[{"role":"user","content":"h\u00f6 \u2028 \U0001f600"}], "x": -0.0e-0}'.encode(),
    b'\t{"messages":[{"role":"user","content":"lone \\ud800 surrogate"}]}  ',
]
TOKENS = "--use-server-token-count"


def write(program: Program, name: str, lines: list[bytes], end: bytes = b"\n") -> Path:
    path = program.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line + end for line in lines))
    return path


def replay(program: Program, url: str, path: Path, *flags: object, **more: object) -> Outcome:
    return program.profile(url, "--input-file", path, TOKENS, *flags, texts=None, **more)


def received(capture: Capture) -> list[bytes]:
    return [body for _, _, body in capture.requests]


def numbered(count: int, **fields: object) -> list[bytes]:
    return [
        json.dumps({"model": "m", "messages": [{"role": "user", "content": f"number {n}"}]} | fields).encode()
        for n in range(count)
    ]


# -- sent bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_file_is_sent_once_and_unchanged(program: Program, capture: Capture, named: bool) -> None:
    """All lines are sent, not ten as in AIPerf. `--model` and `--streaming` add nothing to a body."""
    lines = [*ODD, *numbered(20)]
    path = write(program, "payloads.jsonl", lines)
    arguments = ["--custom-dataset-type", "raw_payload"] if named else []
    done = replay(program, capture.url, path, "--streaming", *arguments)
    assert done.status == 0, done
    assert received(capture) == lines
    path_, headers, body = capture.requests[0]
    assert path_ == "/v1/chat/completions"
    assert headers["content-length"] == [str(len(body))]
    assert headers["accept"] == ["text/event-stream"]
    assert done.summary["context_mode"] == "message_array_with_responses"
    assert [r["metadata"]["body_sha256"] for r in done.records] == [sha256(line).hexdigest() for line in lines]
    root = sha256(b"".join(sha256(line).digest() for line in lines)).hexdigest()
    assert done.summary["proof"] == {"algorithm": "sha256", "requests": len(lines), "root": root}


def test_crlf_bom_and_blank_lines_are_not_sent(program: Program, capture: Capture) -> None:
    path = program.folder / "windows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(ODD))
    assert replay(program, capture.url, path).status == 0
    assert received(capture) == ODD


def test_each_file_of_a_folder_is_a_conversation(program: Program, capture: Capture) -> None:
    """Files are sent in the order of their names, and lines in the order of the file. Other files are ignored."""
    talks = {"b.jsonl": numbered(3, talk="b"), "a.jsonl": numbered(2, talk="a"), "c.jsonl": ODD[:1]}
    for name, lines in talks.items():
        write(program, f"talks/{name}", lines)
    (program.folder / "talks" / "notes.txt").write_text("not a conversation")
    (program.folder / "talks" / "deeper.jsonl").mkdir()
    done = replay(program, capture.url, program.folder / "talks")
    assert done.status == 0, done
    assert received(capture) == [*talks["a.jsonl"], *talks["b.jsonl"], *talks["c.jsonl"]]
    assert [(r["metadata"]["conversation_id"], r["metadata"]["turn_index"]) for r in done.records] == [
        *(("a", 0), ("a", 1)),
        *(("b", 0), ("b", 1), ("b", 2)),
        ("c", 0),
    ]


@pytest.mark.slow
def test_turns_of_a_session_wait_and_sessions_run_in_parallel(program: Program, mock) -> None:
    server = mock(ttft=1000, hashes=True)
    sessions = {f"s{n}": numbered(3, talk=n) for n in range(4)}
    data = [{"session_id": name, "payloads": [json.loads(p) for p in payloads]} for name, payloads in sessions.items()]
    path = program.folder / "inputs.json"
    path.write_text(json.dumps({"data": data}, indent=2))
    done = replay(program, server.url, path, "--concurrency", 4)
    assert done.status == 0, done
    spans: dict[str, list[tuple[int, int]]] = {}
    for record in done.records:
        metadata = record["metadata"]
        span = (metadata["request_start_ns"], metadata["request_end_ns"])
        spans.setdefault(metadata["conversation_id"], []).append(span)
    assert {name: len(turns) for name, turns in spans.items()} == dict.fromkeys(sessions, 3)
    for turns in spans.values():
        assert all(before[1] <= after[0] for before, after in pairwise(turns))
    firsts = [turns[0] for turns in spans.values()]
    assert max(start for start, _ in firsts) < min(end for _, end in firsts), "the sessions ran in parallel"


def test_body_hashes_agree_with_the_server_log(program: Program, mock) -> None:
    server = mock(hashes=True)
    path = write(program, "payloads.jsonl", numbered(30, max_tokens=2))
    done = replay(program, server.url, path, "--concurrency", 4, "--workers-max", 2)
    assert done.status == 0, done
    arrived = {t["request_id"]: t["body_sha256"] for t in server.logged_requests()}
    assert arrived == {r["metadata"]["x_request_id"]: r["metadata"]["body_sha256"] for r in done.records}
    assert sorted(arrived.values()) == sorted(sha256(line).hexdigest() for line in path.read_bytes().splitlines())


@pytest.mark.parametrize("flag", [True, False])
def test_streams_are_detected_from_the_reply(program: Program, mock, flag: bool) -> None:
    """The payload decides whether the reply is streamed. --streaming does not affect which replies have a TTFT."""
    server = mock(ttft=5, itl=1)
    lines = [*numbered(3, stream=True, max_tokens=3), *numbered(2, stream=False, max_tokens=3)]
    done = replay(program, server.url, write(program, "mixed.jsonl", lines), *(["--streaming"] if flag else []))
    assert done.status == 0, done
    assert "Load: chat, streaming as in the file, " in done.out
    assert ", streaming as in the file, " in read_page(str(done.folder / "report.html"))["subtitle"]
    assert [r["metadata"]["streamed"] for r in done.records] == [True] * 3 + [False] * 2
    assert len(done.values("time_to_first_token")) == 3


@pytest.mark.parametrize(
    ("endpoint", "body", "path"),
    [
        ("completions", {"model": "m", "prompt": "once", "max_tokens": 3}, "/v1/completions"),
        ("responses", {"model": "m", "input": "once"}, "/v1/responses"),
        ("chat", {"model": "m", "messages": [], "conversation_id": "x", "data": [1]}, "/v1/chat/completions"),
    ],
)
def test_endpoint_type_does_not_change_a_payload(
    program: Program, capture: Capture, endpoint: str, body: dict[str, object], path: str
) -> None:
    line = json.dumps(body, indent=None).encode()
    arguments = ("--endpoint-type", endpoint, "--custom-dataset-type", "raw_payload", "--max-error-rate", 1)
    done = replay(program, capture.url, write(program, "p.jsonl", [line]), *arguments)
    assert done.status == 0, done
    assert [(where, sent) for where, _, sent in capture.requests] == [(path, line)]


# -- selection, number and order -------------------------------------------------------------------------


def test_request_count_takes_the_first_lines_and_repeats_the_file(program: Program, capture: Capture) -> None:
    lines = numbered(4)
    path = write(program, "p.jsonl", lines)
    assert replay(program, capture.url, path, "--request-count", 3).status == 0
    assert replay(program, capture.url, path, "--request-count", 6).status == 0
    assert received(capture) == lines[:3] + lines + lines[:2]


@pytest.mark.parametrize("strategy", ["shuffle", "random"])
def test_shuffle_and_random_order_depend_on_the_seed(program: Program, capture: Capture, strategy: str) -> None:
    lines = numbered(12)
    path = write(program, "p.jsonl", lines)
    arguments = ("--dataset-sampling-strategy", strategy, "--random-seed", 3, "--request-count", 12)
    for _ in range(2):
        assert replay(program, capture.url, path, *arguments).status == 0
    first, second = received(capture)[:12], received(capture)[12:]
    assert first == second != lines
    assert strategy == "random" or sorted(first) == sorted(lines)


def test_sessions_flag_selects_sessions_by_id(program: Program, capture: Capture) -> None:
    data = [{"session_id": f"s{n}", "payloads": [{"messages": [n]}, {"messages": [n, n]}]} for n in range(5)]
    path = program.folder / "inputs.json"
    path.write_text(json.dumps({"data": data}))
    done = replay(program, capture.url, path, "--sessions", "s3,s1")
    assert done.status == 0, done
    assert [json.loads(body)["messages"] for body in received(capture)] == [[1], [1, 1], [3], [3, 3]]
    wrong = replay(program, capture.url, path, "--sessions", "s3", "--sessions", "t9")
    assert (wrong.status, wrong.err) == (
        2,
        "aiperf profile: inputs.json:1: there is no session 't9' in it (--sessions)\n",
    )


def test_selected_sessions_may_exceed_the_request_count(program: Program, capture: Capture) -> None:
    """Sessions beyond the request count are no errors. If an id occurs twice, both sessions are sent."""
    data = [{"session_id": name, "payloads": [{"messages": [n]}]} for n, name in enumerate("abac")]
    path = program.folder / "inputs.json"
    path.write_text(json.dumps({"data": data}))
    assert replay(program, capture.url, path, "--sessions", "a,c").status == 0
    assert replay(program, capture.url, path, "--sessions", "a,b,c", "--request-count", 1).status == 0
    assert [json.loads(body)["messages"] for body in received(capture)] == [[0], [2], [3], [0]]


def test_invalid_session_is_not_reported_as_missing(program: Program, capture: Capture) -> None:
    path = program.folder / "inputs.json"
    path.write_text('{"data":[{"session_id":"a","payloads":["x"]}]}')
    done = replay(program, capture.url, path, "--sessions", "a")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "a payload of session 'a' is not a JSON object" in done.err


# -- flags that change payloads --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--extra-inputs", "temperature:0.5"], "--extra-inputs temperature would change the payloads of 'p.jsonl'"),
        (["--osl", "20"], "--osl would change the payloads"),
        (["--use-legacy-max-tokens"], "--use-legacy-max-tokens would change the payloads"),
        (["--extra-inputs", "response_field:a.b"], "it tells --endpoint-type raw how to read replies"),
        (["--endpoint-type", "raw", "--extra-inputs", "response_field:a[", ""][:4], "is not a JMESPath expression"),
    ],
)
def test_flags_that_would_change_a_payload_are_refused(
    program: Program, capture: Capture, arguments: list[str], message: str
) -> None:
    done = replay(program, capture.url, write(program, "p.jsonl", ODD), *arguments)
    assert done.status == 2, done
    assert message in done.err
    assert "Traceback" not in done.err
    assert not capture.requests


# -- inputs.json -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_replays_of_a_replay_are_byte_identical(program: Program, capture: Capture) -> None:
    """Replay a run from its inputs.json, then replay that run from its inputs.json: all send the same bytes."""
    path = write(program, "p.jsonl", ODD)
    first = replay(program, capture.url, path)
    second = replay(program, capture.url, first.folder / "inputs.json")
    third = replay(program, capture.url, second.folder / "inputs.json", "--custom-dataset-type", "inputs_json")
    assert [run.status for run in (first, second, third)] == [0, 0, 0]
    assert received(capture) == ODD * 3
    assert second.text("inputs.json") == first.text("inputs.json")
    assert third.summary["proof"]["root"] == first.summary["proof"]["root"]


def test_synthetic_run_can_be_replayed(program: Program, capture: Capture) -> None:
    arguments = ("--tokenizer", "builtin", "--isl", 20, "--osl", 4, "--request-count", 5, "--streaming")
    first = program.profile(capture.url, *arguments, texts=None)
    assert first.status == 0, first
    sent = received(capture)
    again = replay(program, capture.url, first.folder / "inputs.json")
    assert again.status == 0, again
    assert received(capture) == sent * 2


def test_replayed_file_is_not_overwritten(program: Program, capture: Capture) -> None:
    first = replay(program, capture.url, write(program, "p.jsonl", ODD))
    before = first.text("inputs.json")
    arguments = (
        "--input-file",
        first.folder / "inputs.json",
        TOKENS,
        "--request-count",
        1,
        "--artifact-dir",
        first.folder,
    )
    again = program.run("profile", "--model", "m", "--url", capture.url, *arguments)
    assert again.status == 0, again
    assert first.text("inputs.json") == before
    assert "was left unchanged" in again.out


# -- verify ----------------------------------------------------------------------------------------------


def test_verify_accepts_the_source_the_server_log_and_inputs_json(program: Program, mock) -> None:
    server = mock(hashes=True)
    lines = numbered(6, max_tokens=2)
    path = write(program, "p.jsonl", lines)
    done = replay(program, server.url, path)
    server.logged_requests()
    for arguments in ((), ("--against", server.log), ("--against", done.folder / "inputs.json")):
        checked = program.run("verify", done.folder, *arguments, command="penstock")
        assert checked.status == 0, checked
        how = (
            "arrived at the server exactly as they were sent"
            if server.log in arguments
            else "sent exactly the bytes of "
        )
        assert checked.out.startswith(f"6 requests {how}")
        assert f"Root: {done.summary['proof']['root']}, as in the run's summary" in checked.out


def test_verify_says_which_requests_differ(program: Program, capture: Capture) -> None:
    lines = numbered(6)
    done = replay(program, capture.url, write(program, "p.jsonl", lines))
    other = write(program, "other.jsonl", [*lines[:2], lines[2].replace(b"2", b"9"), lines[4], lines[3]])
    checked = program.run("verify", done.folder, "--against", other, "--json", command="penstock")
    result = json.loads(checked.out)
    assert (checked.status, result["holds"], result["matched"], result["elsewhere"]) == (1, False, 4, 2)
    assert [difference["session_num"] for difference in result["differences"]] == [2, 5]
    assert "other.jsonl has" in result["differences"][0]["reason"]
    assert "has neither payload number 6 nor these bytes" in result["differences"][1]["reason"]


def test_verify_detects_changed_files(program: Program, capture: Capture) -> None:
    lines = numbered(3)
    path = write(program, "p.jsonl", lines)
    done = replay(program, capture.url, path)
    export = done.folder / "profile_export.jsonl"
    export.write_text(export.read_text().replace(sha256(lines[1]).hexdigest(), "0" * 64))
    path.write_bytes(path.read_bytes().replace(b"number 2", b"number 7"))
    checked = program.run("verify", done.folder, command="penstock")
    assert checked.status == 1
    assert "1 of 3 requests differ from p.jsonl:\n  request 2 (session_000002, turn 0): sent " in checked.out
    assert "profile_export.jsonl:2: its body_sha256 is not the one in the log." in checked.out


def test_verify_compares_the_inputs_json_of_the_run(program: Program, capture: Capture) -> None:
    done = replay(program, capture.url, write(program, "p.jsonl", numbered(3)))
    inputs = done.folder / "inputs.json"
    inputs.write_bytes(inputs.read_bytes().replace(b"number 2", b"number 7"))
    checked = program.run("verify", done.folder, command="penstock")
    assert checked.status == 1
    assert "inputs.json has other bytes for session 'session_000002' than were sent." in checked.out


def test_verify_of_a_folder_without_a_run_is_an_error(program: Program) -> None:
    checked = program.run("verify", program.folder, command="penstock")
    assert (checked.status, "contains no run" in checked.err) == (2, True)


# -- endpoints for any API -------------------------------------------------------------------------------


def test_raw_endpoint_takes_the_path_from_the_url(program: Program, capture: Capture) -> None:
    line = b'{"anything": "goes", "stream" :false}'
    path = write(program, "p.jsonl", [line])
    arguments = ("--endpoint-type", "raw", "--custom-dataset-type", "raw_payload")
    done = replay(program, f"{capture.url}/api/v3/generate/?mode=fast", path, *arguments)
    assert done.status == 0, done
    assert [(where, sent) for where, _, sent in capture.requests] == [("/api/v3/generate/?mode=fast", line)]
    field = ("--extra-inputs", "response_field:object")
    again = program.profile(
        capture.url + "/x", "--input-file", path, "--tokenizer", "builtin", *arguments, *field, texts=None
    )
    assert again.status == 0, again
    assert received(capture) == [line, line]
    assert again.values("output_sequence_length") == [3]  # the text is "chat.completion", not the "Yes" of the reply


def test_raw_endpoint_refuses_prompts(program: Program, capture: Capture) -> None:
    done = program.profile(capture.url, "--endpoint-type", "raw")
    assert (done.status, "sends the bodies of a file as they are and builds none" in done.err) == (2, True)


def test_template_endpoint_builds_bodies_from_the_template(program: Program, capture: Capture) -> None:
    template = (
        '{"q": {{ text|tojson }}, "m": {{ model|tojson }}, "limit": {{ max_tokens|tojson }}, "s": {{ stream|lower }}}'
    )
    arguments = ("--endpoint-type", "template", "--extra-inputs", f"payload_template:{template}", "--osl", 7)
    extra = ("--extra-inputs", "top_k:3", "--extra-inputs", "response_field:choices[0].text")
    done = program.profile(capture.url + "/ask", *arguments, *extra, texts=2)
    assert done.status == 0, done
    assert [where for where, _, _ in capture.requests] == ["/ask", "/ask"]
    assert capture.bodies[0] == {"q": "Prompt number 0.", "m": "mock-model", "limit": 7, "s": False, "top_k": 3}
    missing = program.profile(
        capture.url + "/ask", *arguments, "--extra-inputs", "response_field:nothing.here", texts=1
    )
    assert (missing.errors()[0]["type"], missing.errors()[0]["fault"]) == ("NoMatch", "user")
    assert missing.status == 2
    assert "The response_field 'nothing.here' in --extra-inputs matched nothing in any reply" in missing.err


def test_response_field_of_the_raw_endpoint_that_never_matches_is_an_error_of_the_user(
    program: Program, capture: Capture
) -> None:
    path = write(program, "p.jsonl", numbered(2))
    flags = (
        "--endpoint-type",
        "raw",
        "--custom-dataset-type",
        "raw_payload",
        "--extra-inputs",
        "response_field:no.such",
    )
    done = replay(program, capture.url, path, *flags)
    assert done.status == 2
    assert "The response_field 'no.such' in --extra-inputs matched nothing in any reply" in done.err
    assert done.summary["request_count"]["avg"] == 2


# -- recorded timestamps ---------------------------------------------------------------------------------


def rows(times: list[float], **fields: object) -> list[bytes]:
    return [
        json.dumps(
            {"timestamp": at, "payload": {"model": "m", "messages": [{"role": "user", "content": str(at)}]}} | fields
        ).encode()
        for at in times
    ]


def test_recorded_requests_are_sent_at_their_times(program: Program, mock) -> None:
    """The rows are not in order, and only a part of them is sent, ten times as fast."""
    server = mock(hashes=True)
    lines = rows([5000, 1000, 3500, 2000, 9000])
    path = write(program, "trace.jsonl", lines)
    arguments = ("--fixed-schedule", "--replay-speedup", 10)
    cut = ("--fixed-schedule-start-offset", 1500, "--fixed-schedule-end-offset", 6000)
    done = replay(program, server.url, path, *arguments, *cut)
    assert done.status == 0, done
    intended = [r["metadata"]["intended_ns"] for r in done.records]
    assert [round((at - intended[0]) / 1e6) for at in intended] == [0, 150, 300]
    assert [t["body_sha256"] for t in server.logged_requests()] == [
        sha256(line[line.index(b'"payload": ') + 11 : -1]).hexdigest() for line in (lines[3], lines[2], lines[0])
    ]
    assert "Left out: 2 rows outside" in done.err
    assert {"replay_sched_lag_p50", "replay_sched_lag_p99", "replay_sched_degraded"} <= done.summary.keys()
    assert done.summary["input_config"]["phases"][0]["type"] == "fixed_schedule"
    assert "after their recorded times." in done.out


def test_lag_of_a_replayed_session_counts_from_the_recorded_times(program: Program, mock) -> None:
    """The server takes longer than the recorded turns, so each turn waits for the reply before it."""
    path = write(program, "trace.jsonl", rows([100, 0, 50], session_id="s"))
    done = replay(program, mock(ttft=150).url, path, "--fixed-schedule")
    assert done.status == 0, done
    intended, ends, starts = (
        [record["metadata"][name] for record in done.records]
        for name in ("intended_ns", "request_end_ns", "request_start_ns")
    )
    assert [at - intended[0] for at in intended] == [0, 50_000_000, 100_000_000]
    lags = [(start - due) / 1e6 for start, due in zip(starts, intended, strict=True)]
    assert lags[1] > 100
    assert lags[2] > 200
    for record, lag in zip(done.records, lags, strict=True):
        value = {tag: record["metrics"][tag]["value"] for tag in ("effective_latency", "request_latency")}
        assert value["effective_latency"] == pytest.approx(value["request_latency"] + lag, abs=1e-3)
    server = [0, *((end - due) / 1e6 for end, due in zip(ends, intended[1:], strict=False))]
    reported = done.summary["replay_server_lag"]
    assert [reported["min"], reported["p50"], reported["max"]] == pytest.approx(server, abs=1e-3)
    client = [lag - waited for lag, waited in zip(lags, server, strict=True)]
    assert done.summary["replay_client_lag"]["max"] == pytest.approx(max(client), abs=1e-3)
    assert done.summary["replay_sched_lag_p50"]["avg"] == pytest.approx(lags[1], abs=1e-3)
    assert "for earlier replies of the server," in " ".join(done.out.split())
    assert "Effective latency" not in " ".join(done.summary["certificate"]["reasons"])


@pytest.mark.slow
def test_named_trace_follows_its_timestamps_and_sessions(program: Program, capture: Capture) -> None:
    lines = [*rows([0, 500], session_id="s"), *rows([250]), *rows([750], session_id="s")]
    path = write(program, "trace.jsonl", lines)
    done = replay(program, capture.url, path, "--custom-dataset-type", "mooncake_trace")
    assert done.status == 0, done
    assert [body["messages"][0]["content"] for body in capture.bodies] == ["0", "250", "500", "750"]
    assert [r["metadata"]["conversation_id"] for r in done.records] == ["s", "session_000001", "s", "s"]
    arguments = ("--custom-dataset-type", "mooncake_trace", "--no-fixed-schedule")
    loose = replay(program, capture.url, path, *arguments)
    assert "fixed_schedule" not in json.dumps(loose.summary["input_config"])
    one = replay(program, capture.url, path, "--fixed-schedule", "--conversation-num", 1)
    assert len(one.records) == 3, one


# -- bad input -------------------------------------------------------------------------------------------


def test_all_errors_of_a_file_are_listed(program: Program, capture: Capture) -> None:
    bad = [b"{", b"[1]", b'{"prompt": "x"}', b'{"messages": 3}', b'{"messages":[]}\xff']
    path = write(program, "p.jsonl", [ODD[0], *bad, *[b"nonsense"] * 30, ODD[3]])
    done = replay(program, capture.url, path)
    assert done.status == 2
    assert done.err.splitlines() == [
        "aiperf profile: p.jsonl has 35 errors:",
        "  p.jsonl:2: not valid JSON (expecting property name enclosed in double quotes, column 2)",
        "  p.jsonl:3: the line should be an object, not a list",
        "  p.jsonl:4: it has no 'messages', which this endpoint needs (--endpoint-type raw takes any object)",
        "  p.jsonl:5: 'messages' should be a list, not a number",
        "  p.jsonl:6: not valid UTF-8 (byte 16 of the line)",
        *[f"  p.jsonl:{n}: not valid JSON (expecting value, column 1)" for n in range(7, 22)],
        "  and 15 more",
    ]
    assert not capture.requests


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: (p / "x.jsonl").write_bytes(b"\n \n"), "x.jsonl:1: the file is empty"),
        (
            lambda p: (p / "x.jsonl").mkdir(),
            "x.jsonl' is empty; give a folder with one .jsonl file for each",
        ),
        (
            lambda p: ((p / "x.jsonl").mkdir(), (p / "x.jsonl" / "a.txt").write_text("x")),
            "x.jsonl' has no .jsonl file in it",
        ),
        (
            lambda p: ((p / "x.jsonl").mkdir(), (p / "x.jsonl" / "a.jsonl").write_text("")),
            "a.jsonl:1: the file is empty",
        ),
        (lambda p: (p / "x.jsonl").write_bytes('{"messages":[]}'.encode("utf-16")), "the file is in UTF-16"),
        (lambda p: os.mkfifo(p / "x.jsonl"), "is a pipe or a device"),
    ],
)
def test_empty_or_unreadable_input_is_an_error(program: Program, capture: Capture, make, message: str) -> None:
    make(program.folder)
    arguments = ("--custom-dataset-type", "raw_payload")
    done = replay(program, capture.url, program.folder / "x.jsonl", *arguments)
    assert done.status == 2, done
    assert message in done.err, done.err


def test_repeated_session_id_is_a_warning(program: Program, capture: Capture) -> None:
    path = program.folder / "inputs.json"
    path.write_text(
        '{"data":[\n{"session_id":"s","payloads":[{"messages":[]}]},\n{"session_id":"s","payloads":[{"messages":[1]}]}]}'
    )
    done = replay(program, capture.url, path)
    assert done.status == 0, done
    assert "Note: inputs.json: 1 session with the id of an earlier one (line 3)" in done.err
    assert len(capture.requests) == 2
