"""Failures of the server, in every artifact and on the screen."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NamedTuple

import pytest

SOON = ["--request-timeout-seconds", 3]
"""Long enough for every reply that does not stall."""


class Fault(NamedTuple):
    options: dict[str, Any]
    type: str
    message: str
    code: int | None = None
    flags: tuple[Any, ...] = ()


FAULTS = {
    "HTTP 429": Fault({"error": 429, "retry_after": 1}, "Too Many Requests", "rate_limit_exceeded", 429),
    "error object in the stream": Fault({"stream_error": 3}, "ErrorObject", "the mock was told to fail here", 500),
    "reset": Fault({"cut": 3, "reset": True}, "ConnectionLost", "in the middle of its reply", 200),
    "stall": Fault({"stall": "inf", "stall_after": 2}, "Timeout", "within 3 s", 200, tuple(SOON)),
}
"""One for each way in which a request fails; `tests/workers/test_worker.py` has all of them."""


def check(mock, program, fault: Fault, *flags: Any) -> None:
    """Let half of the requests fail, and check that exactly these are reported as failed."""
    (option, *_) = fault.options
    server = mock(tokens=6, itl=1, seed=3, **fault.options, **{f"{option}_rate": 0.5})
    outcome = program.profile(
        server.url, "--request-count", 12, "--concurrency", 12, *flags, *fault.flags, command="penstock"
    )
    assert outcome.status == 1, outcome
    server_log = {t["request_id"]: t for t in server.logged_requests()}
    faulty = {request for request, t in server_log.items() if t["fault"]}
    assert 0 < len(faulty) < 12
    failed = [r for r in outcome.records if "error" in r]
    # in the per-request file
    assert {r["metadata"]["x_request_id"] for r in failed} == faulty
    assert {(r["error"]["type"], r["error"].get("code")) for r in failed} == {(fault.type, fault.code)}
    assert all(fault.message in r["error"]["message"] and r["error"]["fault"] == "server" for r in failed)
    assert all(set(r["metrics"]) <= {"error_isl"} for r in failed)
    # in the summary
    assert {e["type"] for e in outcome.errors()} == {fault.type}
    assert sum(e["count"] for e in outcome.errors()) == len(faulty)
    assert outcome.summary["error_request_count"]["avg"] == len(faulty)
    assert outcome.summary["request_count"]["avg"] == 12 - len(faulty)
    assert outcome.summary["request_error_rate"]["avg"] == pytest.approx(100 * len(faulty) / 12)
    assert outcome.summary["failures"] == {"server": len(faulty)}
    assert outcome.summary["request_latency"]["count"] == 12 - len(faulty)
    # in the table of values
    assert outcome.csv["Error Request Count"]["Value"] == f"{len(faulty)}.00"
    # on the first screen, before the figures
    screen = outcome.out
    assert f"{len(faulty)} of 12 Requests Failed" in screen
    assert screen.index("Requests Failed") < screen.index("Request Latency (ms)")
    assert fault.type in screen
    assert fault.type in outcome.text("profile_export_console.txt")
    # the reason for the exit status
    assert f"{len(faulty)} of 12" in outcome.err
    assert "Traceback" not in outcome.err + outcome.out


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_failed_requests_are_in_every_artifact(mock, program, fault):
    check(mock, program, fault, "--streaming")


def test_failed_replies_without_streaming_are_in_every_artifact(mock, program):
    check(mock, program, Fault({"malformed": 3}, "MalformedJSON", "not JSON"))


def test_request_is_sent_twice_if_the_server_closes_before_it_answers(mock, program):
    server = mock(cut=0)
    outcome = program.profile(server.url, "--streaming", "--request-count", 4)
    assert outcome.status == 1
    assert [(e["type"], e["count"]) for e in outcome.errors()] == [("ConnectionLost", 4)]
    asked = Counter(t["request_id"] for t in server.logged_requests())
    assert len(asked) == 4
    assert max(asked.values()) <= 2


def test_error_message_of_the_server_is_reported(mock, program):
    server = mock()
    outcome = program.profile(server.url, "--request-count", 2, "--endpoint", "/v1/nothing")
    assert outcome.status == 1
    (error,) = outcome.errors()
    assert (error["type"], error["code"], error["count"]) == ("Not Found", 404, 2)
    assert "/v1/nothing" in error["message"]


def test_screen_shows_the_error_message_and_files_the_whole_reply(mock, program):
    outcome = program.profile(mock(error=429).url, "--request-count", 2)
    (error,) = outcome.errors()
    body = json.loads(error["message"])
    line = next(line for line in outcome.out.splitlines() if "Too Many Requests" in line)
    assert line.strip("│ ").endswith(body["error"]["message"])
    assert body["error"]["code"] not in outcome.out


def test_run_in_which_all_requests_failed_has_all_artifacts(mock, program):
    server = mock(error=500)
    outcome = program.profile(server.url, "--streaming", "--request-count", 5)
    assert outcome.status == 1
    assert outcome.summary["request_count"]["avg"] == 0
    assert outcome.summary["error_request_count"]["avg"] == 5
    assert len(outcome.records) == 5
    assert outcome.csv["Error Request Count"]["Value"] == "5.00"
    assert "5 of 5 Requests Failed" in outcome.out
    assert "Certificate: INVALID" in outcome.out
    assert "No request succeeded, so there is nothing to certify." in outcome.summary["certificate"]["reasons"]
    assert "Traceback" not in outcome.out + outcome.err


def test_warmup_failures_are_reported_but_not_counted(mock, program):
    server = mock(error=500, error_rate=0.5, seed=1)
    outcome = program.profile(
        server.url, "--request-count", 6, "--warmup-request-count", 6, "--max-error-rate", 1, "--streaming"
    )
    assert outcome.status == 0, outcome
    server_log = server.logged_requests()
    warm = sum(1 for t in server_log[:6] if t["fault"])
    later = sum(1 for t in server_log[6:] if t["fault"])
    assert warm > 0
    assert outcome.summary.get("error_request_count", {"avg": 0})["avg"] == later
    assert sum(g["count"] for g in outcome.summary["warmup_error_summary"]) == warm
    assert f"{warm} of 6 Warmup Requests Failed" in outcome.out


# -- unusual replies --------------------------------------------------------------------------------------------------

UNUSUAL = {
    "no usage": {"usage": "never"},
    "usage always": {"usage": "always"},
    "no role event": {"role": "off"},
    "role before the first token": {"role": "early"},
    "a connection per request": {"close": True},
    "a short stall": {"stall": 0.05, "stall_after": 2},
    "everything at once": {
        "comments": 1,
        "crlf": True,
        "event_lines": True,
        "split": 0.5,
        "framing": "eof",
        "done": False,
    },
}


@pytest.mark.parametrize("options", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_unusual_streams_are_not_failures(mock, program, options):
    server = mock(ttft=3, itl=1, tokens=7, **options)
    flags = ["--streaming", "--request-count", 6, "--concurrency", 2]
    outcome = program.profile(server.url, *flags)
    assert outcome.status == 0, outcome
    assert outcome.summary["request_count"]["avg"] == 6
    assert "error_request_count" not in outcome.summary
    if options.get("usage") != "never":
        assert outcome.values("output_sequence_length") == [7] * 6
    assert [t["tokens"] for t in server.logged_requests()] == [7] * 6
    assert outcome.summary["time_to_first_token"]["count"] == 6
    # The first token of the mock is due at 3 ms; a role event before it does not count.
    assert outcome.summary["time_to_first_token"]["min"] > 2.5


MALFORMED = {
    "lone surrogate": rb'data: {"choices":[{"delta":{"content":"a\ud83d"}}]}',
    "lone surrogate in an error": rb'data: {"error":{"message":"no\udc00","code":99999999999999999999999999}}',
    "lone surrogate in a name": rb'data: {"model":"\ud800","choices":[{"delta":{"content":"a"},"finish_reason":"\ud800"}]}',
    "lone surrogate in a key": rb'data: {"\ud800":1,"usage":{"\ud800":2,"prompt_tokens":"x"},"choices":[]}',
    "control characters": rb'data: {"choices":[{"delta":{"content":"\u0000\u001b[31m\u2028"}}]}',
    "huge and negative counts": b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":-5}}' % 10**40,
    "counts that are objects or lists": b'data: {"choices":[],"usage":{"prompt_tokens":{},"completion_tokens_details":[]}}',
    "a finish reason that is an object": b'data: {"choices":[{"index":"x","delta":{},"finish_reason":{"a":[1]}}]}',
    "deep nesting": b"data: " + b"[" * 100_000,
    "deep nesting with closing brackets": b'data: {"error":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "invalid UTF-8": b'data: {"choices":[{"delta":{"content":"\xff\xfe\xc3"}}]}',
    "not a number": b'data: {"choices":[{"delta":{"content":"a"},"logprobs":{"x":NaN,"y":-Infinity}}]}',
    "one line of a megabyte": b'data: {"choices":[{"delta":{"content":"' + b"x" * (1 << 20) + b'"}}]}',
    "only line ends": b"\n" * 1000 + b"\r" * 1000,
    "tool calls of wrong types": b'data: {"choices":[{"delta":{"tool_calls":[5,null,{"function":7},{"index":-1}]}}]}',
}


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_malformed_replies_do_not_end_the_run(capture, program, kind):
    first = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    if kind == "text/event-stream":
        capture.answers = [(kind, first + odd + b"\n\ndata: [DONE]\n\n") for odd in MALFORMED.values()]
    else:
        capture.answers = [
            (kind, odd.removeprefix(b"data: ").replace(b"delta", b"message")) for odd in MALFORMED.values()
        ]
    flags = ["--input-file", program.prompts(2), "--tokenizer", "builtin", "--request-count", len(MALFORMED)]
    outcome = program.profile(capture.url, *flags, texts=None, command="penstock")
    assert outcome.status == 1, outcome
    assert len(outcome.records) == len(MALFORMED)
    assert "Traceback" not in outcome.out + outcome.err
    assert "unexpectedly" not in outcome.err
    assert outcome.summary["request_count"]["avg"] + outcome.summary["error_request_count"]["avg"] == len(MALFORMED)
    assert outcome.summary["failures"] == {"server": outcome.summary["error_request_count"]["avg"]}


# -- the exit status --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("allowed", "status"), [(0.2, 1), (0.9, 0)])
def test_exit_status_depends_on_max_error_rate(mock, program, allowed, status):
    server = mock(error=500, error_rate=0.5, seed=2)
    outcome = program.profile(server.url, "--request-count", 12, "--max-error-rate", allowed)
    failed = sum(1 for t in server.logged_requests() if t["fault"])
    assert 0.2 < failed / 12 < 0.9
    assert outcome.status == status, outcome
    assert outcome.summary["error_request_count"]["avg"] == failed
    assert ("more than --max-error-rate" in outcome.err) == (status == 1)


def test_one_failed_request_makes_the_exit_status_1_by_default(mock, program):
    server = mock(error=500, error_rate=0.1, seed=4)
    outcome = program.profile(server.url, "--request-count", 20, command="penstock")
    failed = sum(1 for t in server.logged_requests() if t["fault"])
    assert failed >= 1
    assert outcome.status == 1


def test_aiperf_ends_with_0_if_a_request_succeeds_and_names_the_failures(mock, program):
    server = mock(error=500, error_rate=0.5, seed=2)
    outcome = program.profile(server.url, "--request-count", 12)
    failed = sum(1 for t in server.logged_requests() if t["fault"])
    assert outcome.status == 0, outcome
    assert f"WARNING: {failed} of 12 requests failed" in outcome.err
    assert "500 Internal Server Error" in outcome.err


def test_aiperf_ends_with_1_if_no_request_succeeds(mock, program):
    outcome = program.profile(mock(error=500).url, "--request-count", 3)
    assert outcome.status == 1, outcome
    assert "3 of 3 requests failed (100.0%). The reason: 500 Internal Server Error" in outcome.err


def test_sweep_of_aiperf_ends_with_0_only_if_each_point_has_a_success(mock, program):
    server = mock(error=500, error_rate=0.5, seed=2)
    outcome = program.profile(server.url, "--request-count", 12, "--concurrency", "1,2")
    assert outcome.status == 0, outcome
    assert outcome.err.count("WARNING: ") == 2
    points = json.loads(outcome.text("sweep_aggregate/profile_export_aiperf_sweep.json"))
    assert points["metadata"]["num_successful_runs"] == 2
