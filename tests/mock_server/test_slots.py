"""The limit on concurrent requests: queue times in the log, order, and cancelled requests."""

from __future__ import annotations

import contextlib
import heapq
import time
from typing import Any

import pytest

from penstock.mock_server.request import MockRequest
from penstock.mock_server.slots import Slots
from support.mock_client import chat_body, request_bytes
from support.programs import wait_for

MS = 1_000_000


def make_requests(count: int) -> list[MockRequest]:
    connection: Any = None
    requests = [MockRequest(connection, b"POST", b"/", {}, keep_alive=True) for _ in range(count)]
    for request in requests:
        request.arrived_ns = time.time_ns()
    return requests


def test_requests_start_in_order_and_never_exceed_the_slots() -> None:
    started: list[MockRequest] = []
    reply: Any = "reply"
    slots = Slots(2, lambda request, _: started.append(request))
    requests = make_requests(5)
    for request in requests:
        slots.enter(request, reply)
    assert (started, slots.waiting) == (requests[:2], 3)
    slots.leave(requests[3])  # its client disconnects while it waits
    assert (started, slots.waiting) == (requests[:2], 2)
    slots.leave(requests[1])
    slots.leave(requests[0])
    assert (started, slots.waiting) == ([*requests[:3], requests[4]], 0)
    assert requests[0].queue_ns == requests[1].queue_ns == 0 < requests[3].queue_ns


def test_request_waits_until_the_reply_before_it_was_due() -> None:
    reply: Any = "reply"
    slots = Slots(1, lambda *_: None)
    first, second, third = make_requests(3)
    for request in (first, second, third):
        slots.enter(request, reply)
    arrived = second.base_ns
    first.end_due_ns = arrived + 7
    slots.leave(first)
    assert (second.base_ns, second.queue_ns) == (arrived + 7, 7)
    second.end_due_ns = third.base_ns - 1  # the third request had not arrived yet, but was read before this reply ended
    slots.leave(second)
    assert third.queue_ns == 0


def test_long_queue_of_requests_that_end_at_once_is_processed() -> None:
    started = 0
    reply: Any = "reply"

    def start(request: MockRequest, _: Any) -> None:
        nonlocal started
        started += 1
        if started > 1:
            slots.leave(request)

    slots = Slots(1, start)
    requests = make_requests(5000)
    for request in requests:
        slots.enter(request, reply)
    assert started == 1
    slots.leave(requests[0])
    assert started == 5000


@pytest.mark.parametrize("stream", [True, False])
def test_logged_queue_times_are_those_of_a_server_with_four_slots(start: Any, stream: bool) -> None:
    server = start(slots=4, ttft=50.0, itl=10.0, tokens=11)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(11)]
        for connection in connections:
            connection.send(request_bytes(chat_body(stream=stream)))
        for connection in connections:
            assert connection.read_reply().status == 200
    entries = sorted(server.logged_requests(), key=lambda entry: entry["k"])
    free_since = [0] * 4
    for entry in entries:
        begins = max(entry["arrived_ns"], heapq.heappop(free_since))
        heapq.heappush(free_since, begins + 150 * MS)
        # The log gives times on the wall clock, and slots become free on the monotonic clock.
        assert abs(entry["arrived_ns"] + entry["queue_ns"] - begins) < 10 * MS
        first_token = 50 * MS if stream else 150 * MS
        assert entry["first_write_ns"] - entry["arrived_ns"] - entry["queue_ns"] > first_token - MS
    assert any(entry["queue_ns"] for entry in entries)


def test_cancelled_requests_leave_the_queue_and_free_their_slots(start: Any) -> None:
    server = start(slots=1)

    def running_and_waiting() -> tuple[str, ...]:
        page = server.exchange(path="/metrics", method="GET").body.decode()
        lines = [line for line in page.splitlines() if line.startswith("vllm:num_requests_")]
        return tuple(line.split()[-1] for line in lines)

    def wait_until(*expected: str) -> None:
        wait_for(lambda: running_and_waiting() == expected, what=f"{expected} running and waiting")

    with server.connect() as running, server.connect() as cancelled, server.connect() as next_:
        running.send(request_bytes(chat_body(), mock="ttft=1e6"))
        wait_until("1", "0")
        cancelled.send(request_bytes(chat_body()))
        wait_until("1", "1")
        next_.send(request_bytes(chat_body(max_tokens=3)))
        wait_until("1", "2")
        assert server.exchange(chat_body(), mock="error=503").status == 503  # a refused request does not wait
        cancelled.sock.close()
        wait_until("1", "1")
        running.sock.close()
        assert next_.read_reply().json["usage"]["completion_tokens"] == 3
        wait_until("0", "0")
    ends = {entry["k"]: (entry["end"], entry["queue_ns"] > 0) for entry in server.logged_requests()}
    assert ends == {0: ("aborted", False), 1: ("aborted", True), 2: ("complete", True), 3: ("complete", False)}
