"""The worker against scripted servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.datasets.conversation import Turn
from penstock.endpoints.reply import Failure
from penstock.errors import UserError
from penstock.records.payloads import BodyParts
from penstock.runs.phase_runner import PhaseRunner
from penstock.wire import connection as wire_connection
from penstock.workers import reply_processor, worker
from penstock.workers.machine_counters import MachineCounters
from penstock.workers.stored_conversations import StoredConversations
from support.worker_harness import (
    DONE,
    STREAM_END,
    STREAM_HEAD,
    Answer,
    Connection,
    Harness,
    Request,
    always,
    chat_event,
    chat_reply,
    chat_stream,
    chunk,
    chunked,
    http_reply,
)

MS = 1_000_000


def body(number: int) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": f"prompt {number}"}]}


# -- replies ----------------------------------------------------------------------------------------------------------


def test_reply_is_recorded(tmp_path: Path) -> None:
    outcome = Harness(tmp_path, always(chat_reply("Hello"))).run([[body(0)], [body(1)]])
    assert [request.body for request in outcome.requests] == [body(0), body(1)]
    assert [record.outputs for record in outcome.records] == [["Hello"], ["Hello"]]
    assert [record.failure for record in outcome.records] == [None, None]
    assert [record.request_id for record in outcome.records] == [r.headers["x-request-id"] for r in outcome.requests]
    for record in outcome.records:
        assert record.intended <= record.issued <= record.start <= record.first_byte <= record.end
        assert record.sent is not None
        assert record.sent >= record.start  # the server may answer before the system call has returned
    assert outcome.report.requests == 2
    assert not outcome.report.stopped


def test_stream_is_recorded_with_the_arrival_of_each_token(tmp_path: Path) -> None:
    async def answer(_: Request, connection: Connection) -> None:
        events = [chat_event("one"), chat_event(" two"), chat_event(" three"), chat_event(None, "stop") + DONE]
        await connection.send(STREAM_HEAD, *map(chunk, events), pause_s=0.02)
        await connection.send(STREAM_END)

    (record,) = Harness(tmp_path, answer).run(streaming=True).records
    assert record.failure is None
    assert record.outputs == ["one two three"]
    if not record.coalesced:  # a late read can return two of them together
        assert record.pieces == [1, 1, 1]
        assert all(later - earlier > 10 * MS for earlier, later in pairwise(record.stamps))


def test_counters_are_published(tmp_path: Path) -> None:
    harness = Harness(tmp_path, always(http_reply(b"no", status="500 Oops")))
    harness.run([[body(n)] for n in range(3)])
    assert harness.runner is not None
    progress = harness.runner.progress
    assert (progress.sent, progress.ended, progress.failed, progress.in_flight) == (3, 3, 3, 0)


# -- failures ---------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A faulty reply and the failure that must be recorded."""

    send: tuple[bytes, ...]
    type: str
    message: str
    code: int | None = None
    end: str = ""
    """`close` or `reset`: how the server ends the connection after it has sent."""
    streaming: bool = True
    timeout_s: float = 30.0


_BEGINNING = STREAM_HEAD + chunk(chat_event("one"))
_ERROR = b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
_HTML = b"<html>It works!</html>"

FAILURES = {
    "HTTP 500": Case((http_reply(b"broken", status="500 X"),), "Internal Server Error", "broken", 500),
    "HTTP 429": Case((http_reply(b"slow down", status="429 X"),), "Too Many Requests", "slow down", 429),
    "HTTP 404": Case((http_reply(b"", status="404 X"),), "Not Found", "HTTP status 404 without a body", 404),
    "HTTP 503, not streaming": Case(
        (http_reply(b"busy", status="503 X"),), "Service Unavailable", "busy", 503, streaming=False
    ),
    "unknown status": Case((http_reply(b"odd", status="599 X"),), "HTTPError", "odd", 599),
    "error object in the stream": Case((_BEGINNING, chunk(_ERROR), STREAM_END), "ErrorObject", "out of memory", 500),
    "closed in mid-stream": Case((_BEGINNING,), "ConnectionLost", "in the middle of its reply", 200, "close"),
    "reset in mid-stream": Case((_BEGINNING,), "ConnectionLost", "in the middle of its reply", 200, "reset"),
    "closed before the reply": Case((), "ConnectionLost", "", None, "close"),
    "reset before the reply": Case((), "ConnectionLost", "", None, "reset"),
    "closed in mid-body": Case(
        (http_reply(b"{", length=10),), "ConnectionLost", "in the middle of its reply", 200, "close", streaming=False
    ),
    "malformed event": Case((STREAM_HEAD, chunk(b"data: {oops\n\n"), STREAM_END), "MalformedEvent", "not JSON"),
    "stream without an end": Case((_BEGINNING, STREAM_END), "TruncatedStream", "neither a finish reason"),
    "empty stream": Case((STREAM_HEAD, STREAM_END), "EmptyStream", "without a single event"),
    "malformed JSON": Case((http_reply(b"{oops"),), "MalformedJSON", "not JSON", streaming=False),
    "empty body": Case((http_reply(b""),), "EmptyReply", "no body", streaming=False),
    "HTML": Case((http_reply(_HTML, "text/html"),), "MalformedJSON", "It works!"),
    "HTML, not streaming": Case((http_reply(_HTML, "text/html"),), "MalformedJSON", "It works!", streaming=False),
    "not HTTP": Case((b"SSH-2.0-OpenSSH\r\n",), "ProtocolError", ""),
    "timeout in mid-stream": Case((_BEGINNING,), "Timeout", "No complete reply within 1 s", 200, timeout_s=1.0),
    "timeout before the reply": Case((), "Timeout", "No complete reply within 1 s", None, timeout_s=1.0),
}


def failing(case: Case) -> Answer:
    """Fail every second request as in the case, and answer the others."""

    async def answer(request: Request, connection: Connection) -> None:
        if "prompt 1" not in str(request.body):
            await connection.send(chat_stream("fine") if case.streaming else chat_reply("fine"))
            return
        await connection.send(*case.send, pause_s=0.01)
        if case.end:
            getattr(connection, case.end)()

    return answer


@pytest.mark.parametrize("case", FAILURES.values(), ids=FAILURES.keys())
def test_failure_is_recorded_with_its_cause_and_the_next_request_succeeds(tmp_path: Path, case: Case) -> None:
    outcome = Harness(tmp_path, failing(case)).run(
        [[body(0)], [body(1)], [body(2)]], streaming=case.streaming, timeout_s=case.timeout_s, preconnect=1
    )
    first, failed, last = outcome.records
    assert (first.failure, last.failure) == (None, None)
    assert failed.failure is not None
    assert (failed.failure.type, failed.failure.code, failed.failure.owner) == (case.type, case.code, "server")
    assert case.message in failed.failure.message
    assert not failed.cancelled


_EVENTS = [chat_event("one"), chat_event(" two"), chat_event(None, "stop"), DONE]
_LENGTH_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
_EOF_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
_STREAM = b"".join(_EVENTS)

VARIANTS = {
    "no finish reason": chunked(_EVENTS[0], _EVENTS[1], DONE),
    "no [DONE]": chunked(*_EVENTS[:3]),
    "role event": chunked(chat_event(""), *_EVENTS),
    "event lines": chunked(*(b"event: message\n" + event for event in _EVENTS)),
    "comments": chunked(*(b": ping\n\n" + event for event in _EVENTS)),
    "CR LF": chunked(_STREAM.replace(b"\n", b"\r\n")),
    "one byte per chunk": chunked(*(_STREAM[n : n + 1] for n in range(len(_STREAM)))),
    "content-length": _LENGTH_HEAD % len(_STREAM) + _STREAM,
    "ends with the connection": _EOF_HEAD + _STREAM,
    "wrong content type": chunked(_STREAM).replace(b"text/event-stream", b"text/plain"),
}


@pytest.mark.parametrize("separate", [False, True], ids=["one write", "two writes"])
@pytest.mark.parametrize("data", VARIANTS.values(), ids=VARIANTS.keys())
def test_variants_of_a_stream_are_read_alike(tmp_path: Path, data: bytes, separate: bool) -> None:
    async def answer(_: Request, connection: Connection) -> None:
        if separate:
            await connection.send(data[:-7], data[-7:], pause_s=0.005)
        else:
            await connection.send(data)
        if data.startswith(_EOF_HEAD):
            connection.close()

    outcome = Harness(tmp_path, answer).run([[body(0)], [body(1)]], streaming=True)
    assert [(record.failure, record.outputs) for record in outcome.records] == [(None, ["one two"])] * 2
    assert all(record.streamed and record.stamps for record in outcome.records)


@pytest.fixture
def resend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every lost connection look as if the server had closed it before it received the request."""
    monkeypatch.setattr(wire_connection.Connection, "_is_unreceived", lambda *_: True)


@pytest.mark.usefixtures("resend")
def test_request_that_the_server_did_not_receive_is_sent_again(tmp_path: Path) -> None:
    async def answer(request: Request, connection: Connection) -> None:
        if request.number == 1:
            connection.reset()
            return
        await connection.send(chat_reply())

    outcome = Harness(tmp_path, answer).run([[body(0)], [body(1)]])
    assert [record.failure for record in outcome.records] == [None, None]
    assert [record.retries for record in outcome.records] == [0, 1]
    ids = [request.headers["x-request-id"] for request in outcome.requests]
    assert ids[1] == ids[2]
    assert outcome.report.wire_stats.stale == 1


def test_request_that_the_server_received_and_dropped_is_a_failure(tmp_path: Path) -> None:
    async def answer(request: Request, connection: Connection) -> None:
        if request.number == 3:
            connection.close()
            return
        await connection.send(chat_reply())

    outcome = Harness(tmp_path, answer).run([[body(n)] for n in range(5)])
    failures = [record.failure for record in outcome.records]
    assert [failure and failure.type for failure in failures] == [None, None, None, "ConnectionLost", None]
    assert len(outcome.requests) == 5
    assert outcome.report.wire_stats.stale == 0


@pytest.mark.usefixtures("resend")
def test_time_of_a_lost_first_attempt_is_not_counted_as_lateness(tmp_path: Path) -> None:
    async def answer(request: Request, connection: Connection) -> None:
        if request.number == 1:
            await asyncio.sleep(0.02)
            connection.reset()
            return
        await connection.send(chat_reply())

    outcome = Harness(tmp_path, answer).run([[body(0)], [body(1)]])
    assert [record.retries for record in outcome.records] == [0, 1]
    waits = [record.start - record.issued for record in outcome.records]
    assert outcome.report.lateness.n == 2
    assert outcome.report.lateness.total <= sum(waits) - 15 * MS


def redirect(location: str, status: int = 307) -> bytes:
    head = f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
    return head.encode()


def test_redirect_to_the_same_server_is_followed_and_timed_from_the_first_send(tmp_path: Path) -> None:
    async def answer(request: Request, connection: Connection) -> None:
        if request.path == "/v1/chat/completions":
            await asyncio.sleep(0.02)
            await connection.send(redirect("/moved?x=1"))
        else:
            await connection.send(chat_reply("Here"))

    outcome = Harness(tmp_path, answer).run([[body(0)], [body(1)]])
    assert [(record.failure, record.outputs, record.redirects) for record in outcome.records] == [
        (None, ["Here"], 1)
    ] * 2
    assert [request.path for request in outcome.requests] == ["/v1/chat/completions", "/moved?x=1"] * 2
    first, second = outcome.requests[:2]
    assert (first.headers, first.body) == (second.headers, second.body)
    assert all(record.end - record.start >= 15 * MS for record in outcome.records)
    assert outcome.report.requests == 2


def test_endless_redirects_are_a_failure_that_shows_the_location(tmp_path: Path) -> None:
    async def answer(request: Request, connection: Connection) -> None:
        await connection.send(redirect(f"/hop/{request.number}", 308))

    outcome = Harness(tmp_path, answer).run([[body(0)]])
    (record,) = outcome.records
    assert len(outcome.requests) == 6
    assert record.redirects == 5
    assert record.failure is not None
    assert record.failure.code == 308
    assert "redirects to /hop/5, which was not followed; 5 redirects were followed before it" in record.failure.message


def test_redirect_to_another_server_is_a_failure_that_shows_the_location(tmp_path: Path) -> None:
    outcome = Harness(tmp_path, always(redirect("http://elsewhere.example/v1?token=hunter2"))).run([[body(0)]])
    (record,) = outcome.records
    assert record.failure is not None
    assert record.failure.type == "Temporary Redirect"
    assert "redirects to http://elsewhere.example/v1?token=<redacted>, which was not followed" in record.failure.message
    assert "--follow-cross-origin-redirects" in record.failure.message


def test_other_redirects_are_not_followed(tmp_path: Path) -> None:
    outcome = Harness(tmp_path, always(redirect("/moved", 302))).run([[body(0)]])
    (failure,) = [record.failure for record in outcome.records]
    assert failure is not None
    assert "redirects to /moved, which was not followed; only redirects with status 307 and 308" in failure.message
    assert len(outcome.requests) == 1


def test_unreachable_server_ends_the_run_before_its_first_request(tmp_path: Path) -> None:
    async def answer(_: Request, connection: Connection) -> None:
        await connection.send(chat_reply())

    harness = Harness(tmp_path, answer)
    harness.close_servers = True
    with pytest.raises(UserError, match="Nothing listens on"):
        harness.run()
    assert harness.requests == []
    assert harness.runner is not None
    assert not harness.runner.began


# -- back-pressure ----------------------------------------------------------------------------------------------------


def test_nothing_is_sent_while_the_reply_processor_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_processor, "_MAX_QUEUED", 4)
    monkeypatch.setattr(reply_processor, "_SLICE_NS", 0)
    queued: list[int] = []
    original = worker.Worker._send

    def send(self: worker.Worker, *arguments: Any) -> None:
        queued.append(len(self._processor._queue))
        original(self, *arguments)

    monkeypatch.setattr(worker.Worker, "_send", send)
    outcome = Harness(tmp_path, always(chat_reply())).run([[body(n)] for n in range(100)], slots=50, preconnect=50)
    assert len(outcome.records) == 100
    assert max(queued) < 4
    assert outcome.report.held_ns > 0


# -- stop, cancel, grace period ---------------------------------------------------------------------------------------


def answer_after(seconds: float) -> Answer:
    async def answer(_: Request, connection: Connection) -> None:
        await asyncio.sleep(seconds)
        await connection.send(chat_reply())

    return answer


def test_first_interrupt_lets_requests_in_flight_finish(tmp_path: Path) -> None:
    async def answer(_: Request, connection: Connection) -> None:
        while harness.runner is None or not harness.runner.progress.stopping:
            await asyncio.sleep(0.005)
        await connection.send(chat_reply())

    harness = Harness(tmp_path, answer)
    harness.on_tick = lambda runner: runner.interrupt(1) if len(harness.requests) == 2 else None
    outcome = harness.run([[body(n)] for n in range(20)], slots=2, preconnect=2)
    assert [record.failure for record in outcome.records] == [None, None]
    assert outcome.report.stopped
    assert outcome.runner.interrupts == 1


def test_second_interrupt_cancels_requests_in_flight(tmp_path: Path) -> None:
    harness = Harness(tmp_path, answer_after(30))

    def interrupt_twice(runner: PhaseRunner) -> None:
        if len(harness.requests) == 2:
            runner.interrupt(1)
            runner.interrupt(1_000_000_000)

    harness.on_tick = interrupt_twice
    outcome = harness.run([[body(n)] for n in range(20)], slots=2, preconnect=2)
    assert [record.cancelled for record in outcome.records] == [True, True]
    for record in outcome.records:
        assert record.failure == Failure("Cancelled", "Cancelled: the run was ended.", "penstock")
    assert outcome.runner.progress.failed == 0


def test_interrupt_while_connecting_ends_the_run_without_a_request(tmp_path: Path) -> None:
    harness = Harness(tmp_path, always(chat_reply()))
    harness.on_tick = lambda runner: runner.interrupt()
    outcome = harness.run([[body(0)]])
    assert (outcome.records, outcome.requests) == ([], [])
    assert not outcome.runner.began


def test_requests_are_cut_off_after_the_grace_period(tmp_path: Path) -> None:
    outcome = Harness(tmp_path, answer_after(30)).run([[body(0)]], duration_s=0.1, grace_s=0.2)
    (record,) = outcome.records
    assert record.cancelled
    assert record.failure is not None
    assert record.failure.message == "Cut off: it was still running 0.2 s after the end of the benchmark duration."
    assert 290 * MS < record.end - record.intended < 25_000 * MS  # the reply would end after 30 s


def test_requests_within_the_grace_period_are_complete(tmp_path: Path) -> None:
    outcome = Harness(tmp_path, answer_after(0.3)).run([[body(0)]], duration_s=0.05, grace_s=20.0)
    (record,) = outcome.records
    assert record.failure is None


def test_exception_in_a_callback_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(worker.Worker, "_on_reply", fail)
    with pytest.raises(ZeroDivisionError):
        Harness(tmp_path, always(chat_reply())).run([[body(0)]])


# -- several turns ----------------------------------------------------------------------------------------------------


def parts(text: str, delay_ms: float = 0.0) -> BodyParts:
    return BodyParts(Turn(texts=(text,), delay_ms=delay_ms), "m")


def test_next_turn_contains_the_reply_to_the_previous_one(tmp_path: Path) -> None:
    outcome = Harness(tmp_path, always(chat_reply("Hello"))).run([[parts("one"), parts("two")]])
    first, second = (request.body["messages"] for request in outcome.requests)
    assert [message["content"] for message in first] == ["one"]
    assert [(message["role"], message["content"]) for message in second] == [
        ("user", "one"),
        ("assistant", "Hello"),
        ("user", "two"),
    ]
    assert len({request.headers["x-correlation-id"] for request in outcome.requests}) == 1
    assert [record.turn for record in outcome.records] == [0, 1]


def test_conversation_ends_after_a_failed_turn(tmp_path: Path) -> None:
    async def answer(request: Request, connection: Connection) -> None:
        await connection.send(chat_reply() if request.number else http_reply(b"no", status="500 X"))

    outcome = Harness(tmp_path, answer).run([[parts("one"), parts("two")], [parts("three"), parts("four")]])
    assert [(record.conversation, record.turn) for record in outcome.records] == [(0, 0), (1, 0), (1, 1)]


def test_delay_between_turns_starts_at_the_end_of_the_reply(tmp_path: Path) -> None:
    turns = [body(0), body(1) | {"delay_ms": 100.0}]
    first, second = Harness(tmp_path, answer_after(0.05)).run([turns]).records
    assert second.intended == second.issued == first.end + 100 * MS
    assert second.start >= second.intended


def test_request_limit_ends_a_conversation_between_turns(tmp_path: Path) -> None:
    outcome = Harness(tmp_path, always(chat_reply())).run([[body(0), body(1), body(2)]], requests=2)
    assert [record.turn for record in outcome.records] == [0, 1]


# -- recorded times ---------------------------------------------------------------------------------------------------


def test_conversations_are_sent_at_their_recorded_times(tmp_path: Path) -> None:
    conversations = [[body(n) | {"timestamp_ms": 60.0 * n}] for n in range(4)]
    outcome = Harness(tmp_path, always(chat_reply())).run(conversations, slots=None, scale=0.5, whole=True)
    start = outcome.records[0].intended
    assert [record.intended - start for record in outcome.records] == [n * 30 * MS for n in range(4)]
    assert all(record.start >= record.intended for record in outcome.records)


def test_turn_with_a_recorded_time_waits_for_it(tmp_path: Path) -> None:
    turns = [body(0) | {"timestamp_ms": 0.0}, body(1) | {"timestamp_ms": 150.0}]
    outcome = Harness(tmp_path, always(chat_reply())).run([turns], slots=None, scale=1.0, whole=True)
    first, second = outcome.records
    assert second.intended == first.intended + 150 * MS


# -- several servers --------------------------------------------------------------------------------------------------


def test_urls_are_used_round_robin(tmp_path: Path) -> None:
    harness = Harness(tmp_path, always(chat_reply("a")), always(chat_reply("b")))
    outcome = harness.run([[body(n)] for n in range(6)], preconnect=2)
    assert [record.url for record in outcome.records] == [0, 1] * 3
    assert [record.outputs for record in outcome.records] == [["a"], ["b"]] * 3


def test_comparison_sends_every_conversation_to_each_server(tmp_path: Path) -> None:
    harness = Harness(tmp_path, *[always(chat_reply())] * 3)
    outcome = harness.run([[body(n)] for n in range(4)], servers=3, slots=2, preconnect=3)
    assert Counter((record.conversation, record.url) for record in outcome.records) == Counter(
        (conversation, url) for conversation in range(4) for url in range(3)
    )


# -- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reuse", "connections"), [(True, 2), (False, 5)])
def test_connections_are_reused_only_if_configured(tmp_path: Path, reuse: bool, connections: int) -> None:
    harness = Harness(tmp_path, always(chat_reply()))
    harness.run([[body(n)] for n in range(4)], slots=2, preconnect=2, reuse=reuse)
    assert harness.connections == [connections]  # without reuse, one more tests the URL before the run


def test_machine_counters_start_with_the_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[bool] = []
    harness = Harness(tmp_path, always(chat_reply()))

    class Watched(MachineCounters):
        def __init__(self) -> None:
            assert harness.runner is not None
            began.append(harness.runner.began)
            super().__init__()

    monkeypatch.setattr(worker, "MachineCounters", Watched)
    harness.run([[body(n)] for n in range(4)])
    assert began == [True]


# -- indexing while sending -------------------------------------------------------------------------------------------


def delay_pick(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Let the picker return None the first time that it is asked for conversation `number`; return all that it is asked."""
    asked: list[int] = []

    class Delayed(StoredConversations):
        def pick(self, number_asked: int) -> int | None:
            asked.append(number_asked)
            return None if number_asked == number and asked.count(number) == 1 else super().pick(number_asked)

    monkeypatch.setattr(worker, "StoredConversations", Delayed)
    return asked


def test_worker_that_waits_for_the_file_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delay_pick(monkeypatch, 0)
    outcome = Harness(tmp_path, always(chat_reply())).run([[body(n)] for n in range(3)])
    assert outcome.report.starved_ticks == 1
    assert len(outcome.records) == 3
