"""The reply processor: its queue, its slices, and what it counts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.endpoints.base import endpoint_named as endpoint
from penstock.endpoints.reply import Reply
from penstock.records.interpret import InFlight
from penstock.records.log import LogWriter
from penstock.records.record import Record
from penstock.records.worker_report import WorkerReport
from penstock.runs.log_tail import LogTail
from penstock.settings.schema import EndpointSettings
from penstock.wire.exchange import Exchange, WireError
from penstock.workers import reply_processor
from penstock.workers.reply_processor import ReplyProcessor


class Harness:
    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.endpoint = endpoint("chat", EndpointSettings())
        self.report = WorkerReport(worker=0)
        self.replies: list[tuple[Record, bool]] = []
        """Each record, and whether it came with a reply."""
        self.spaces = 0
        self._log = LogWriter(str(folder), 0)
        self._tail = LogTail(str(folder))
        self.processor = ReplyProcessor(
            self.loop,
            self.endpoint,
            self._log,
            self.report,
            0,
            ("sk-secret",),
            lambda _, record, reply: self.replies.append((record, reply is not None)),
            self._on_space,
        )

    def _on_space(self) -> None:
        self.spaces += 1

    def add(self, body: bytes, status: int = 200, error: WireError | None = None, *, cancelled: bool = False) -> None:
        record = Record(0, 0, 0, 0, 0, 0, 0, "request", "correlation", 0, 0)
        exchange = Exchange(b"", lambda _: None, InFlight(record))
        exchange.start, exchange.end = 5, 10
        exchange.status, exchange.error, exchange.cancelled = status, error, cancelled
        exchange.pieces, exchange.times, exchange.counts = [body], [9], [1]
        exchange.bytes_received = len(body)
        self.processor.add(exchange)

    def logged(self) -> list[Record]:
        """Return the records that the log has got since the last call."""
        self._log.flush()
        return self._tail.read()

    def poll(self) -> None:
        """Let the loop run what is scheduled now."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def run(self) -> None:
        while not self.processor.empty:
            self.poll()


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


GOOD = b'{"choices": [{"message": {"content": "Yes"}, "finish_reason": "stop"}]}'


def test_replies_are_processed_in_order(harness: Harness) -> None:
    for text in (b"Yes", b"No"):
        harness.add(GOOD.replace(b"Yes", text))
    harness.run()
    assert [(record.outputs, has_reply) for record, has_reply in harness.replies] == [(["Yes"], True), (["No"], True)]
    assert harness.report.requests == 2
    assert harness.processor.failed == 0


def test_only_one_slice_is_processed_between_polls(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_processor, "_SLICE_NS", 0)
    for _ in range(3):
        harness.add(GOOD)
    for processed in (1, 2, 3):
        harness.poll()
        assert len(harness.replies) == processed
    assert harness.processor.empty


def test_queue_is_full_at_its_limit_of_exchanges(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_processor, "_MAX_QUEUED", 4)
    monkeypatch.setattr(reply_processor, "_SLICE_NS", 0)
    for _ in range(4):
        assert not harness.processor.full
        harness.add(GOOD)
    assert harness.processor.full
    harness.poll()
    harness.poll()
    assert not harness.processor.full
    assert harness.spaces == 0  # the queue is half full
    harness.poll()
    assert harness.spaces == 1


def test_queue_is_full_at_its_limit_of_bytes(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_processor, "_MAX_BYTES", len(GOOD) + 1)
    harness.add(GOOD)
    assert not harness.processor.full
    harness.add(GOOD)
    assert harness.processor.full
    harness.run()
    assert not harness.processor.full


def test_cancelled_request_is_not_counted_as_failure(harness: Harness) -> None:
    harness.add(b"", 0, WireError("Cancelled", "Cancelled.", "penstock"), cancelled=True)
    harness.add(b"", 0, WireError("Timeout", "Too slow.", "server"))
    harness.run()
    assert harness.processor.failed == 1
    assert harness.report.requests == 2


def test_secrets_are_removed_from_error_messages(harness: Harness) -> None:
    harness.add(b"the key sk-secret is wrong", 401)
    harness.run()
    ((record, has_reply),) = harness.replies
    assert record.failure is not None
    assert "sk-secret" not in record.failure.message
    assert not has_reply


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ([object()], "TypeError: Encoding objects of type object is unsupported"),
        (["\ud83d"], "UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud83d'"),
    ],
)
def test_reply_that_cannot_be_logged_fails_its_request_only(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, outputs: list[Any], reason: str
) -> None:
    """An endpoint of another package may return any values."""
    reply = Reply()
    reply.outputs, reply.id = outputs, "id"
    with monkeypatch.context() as patched:
        patched.setattr(harness.endpoint, "read_body", lambda _: reply)
        harness.add(GOOD)
        harness.poll()
    harness.add(GOOD)
    harness.poll()
    failed, good = harness.logged()
    assert failed.failure is not None
    assert (failed.failure.type, failed.failure.owner) == ("UnreadableReply", "penstock")
    assert f"The log cannot hold what the endpoint has read from the reply ({reason}" in failed.failure.message
    assert (failed.outputs, failed.response_id, failed.end, failed.status) == ([], None, 10, 200)
    assert good.outputs == ["Yes"]
    assert [has_reply for _, has_reply in harness.replies] == [False, True]
    assert harness.processor.failed == 1


def test_full_disk_is_no_failure_of_a_request(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LogWriter, "record", full)
    harness.add(GOOD)
    with pytest.raises(OSError, match="No space left"):
        harness.processor._slice()
