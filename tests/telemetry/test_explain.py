"""`explain`: the evidence that moved with the latency is named, and no other."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.records.log import RunLog, RunnerLog, Sample
from penstock.records.record import Record
from penstock.telemetry.explain import explain
from penstock.telemetry.network import NETWORK
from penstock.telemetry.server_metrics import SOURCE
from support.runs import write_log

MS = 1_000_000
URL = "http://localhost:8000/metrics"


def request(number: int, latency_ms: int, **fields: Any) -> Record:
    """One request in each second."""
    start = number * 1000 * MS
    known = {"issued": start, "start": start, "sent": start, "rtt_us": 200, **fields}
    ids = {"request_id": f"r{number}", "correlation_id": "c"}
    return Record(
        phase=0,
        number=number,
        conversation=0,
        turn=0,
        payload=0,
        worker=0,
        url=0,
        intended=start,
        end=start + latency_ms * MS,
        stamps=[latency_ms * MS],
        **ids,
        **known,
    )


def verdicts(
    folder: Path, requests: list[Record], queues: list[int] | None = None, round_trips: Sequence[int] = ()
) -> dict[str, str]:
    path = write_log(folder, requests)
    log = RunnerLog(path)
    for number, queue in enumerate(queues or ()):
        page = f"vllm:num_requests_waiting {queue}\n"
        log.sample(Sample(SOURCE, (number * 1000 + 5) * MS, {"url": URL, "latency_ns": 1, "page": page}))
    for number, milliseconds in enumerate(round_trips):
        at = (number * 1000 + 5) * MS
        log.sample(Sample(NETWORK, at, {"url": "http://localhost:8000", "rtt_ns": milliseconds * MS}))
    log.close()
    run = RunLog(path)
    explanation = explain(run, count=2)
    assert [request.request_id for request in explanation.slowest] == ["r4", "r7"]
    return {evidence.name: evidence.verdict for evidence in explanation.evidence}


def with_slow(**fields: Any) -> list[Record]:
    return [request(n, 90, **fields) if n in (4, 7) else request(n, 10 + n) for n in range(10)]


def test_queue_that_was_longer_for_slow_requests_moved(tmp_path: Path) -> None:
    queues = [6 if n in (4, 7) else 0 for n in range(10)]
    found = verdicts(tmp_path, with_slow(), queues)
    assert found.pop("queue_depth") == "moved"
    assert "moved" not in found.values()


def test_queue_that_never_empties_delays_all_requests(tmp_path: Path) -> None:
    assert verdicts(tmp_path, with_slow(), [5] * 10)["queue_depth"] == "high for all"


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"retransmits": 2}, "retransmits"), ({"issued": 0}, "client_delay_ms")],
)
def test_network_and_client_are_named(tmp_path: Path, fields: dict[str, int], name: str) -> None:
    found = verdicts(tmp_path, with_slow(**fields))
    assert found["queue_depth"] == "unknown"
    assert [key for key, verdict in found.items() if verdict == "moved"] == [name]


def test_network_is_named_if_its_own_connections_took_longer(tmp_path: Path) -> None:
    found = verdicts(tmp_path, with_slow(), round_trips=[30 if n in (4, 7) else 1 for n in range(10)])
    assert [key for key, verdict in found.items() if verdict == "moved"] == ["rtt_ms"]


def test_time_of_the_server_in_the_round_trip_of_tcp_is_not_called_network_time(tmp_path: Path) -> None:
    assert "moved" not in verdicts(tmp_path, with_slow(rtt_us=30_000)).values()


def test_latency_ends_with_the_last_content_as_in_the_report(tmp_path: Path) -> None:
    late_end = [msgspec.structs.replace(each, streamed=True, end=each.end + 50 * MS) for each in with_slow()]
    log = RunLog(write_log(tmp_path, late_end))
    explanation = explain(log, count=2)
    assert [row.latency_ms for row in explanation.slowest] == [90, 90]


def test_slowest_and_fastest_are_those_of_all_requests_sorted(tmp_path: Path) -> None:
    """Equal latencies are taken in the order of the log, as a stable sort has them."""
    latencies = [(37 * n) % 23 + 5 for n in range(60)]
    requests = [request(n, latency, retransmits=n) for n, latency in enumerate(latencies)]
    log = RunLog(write_log(tmp_path, requests))
    explanation = explain(log, count=7)
    by_latency = sorted(requests, key=lambda record: record.end - record.start)
    slow, fast = by_latency[-7:], by_latency[:6]
    assert [row.request_id for row in explanation.slowest] == sorted(
        (record.request_id for record in slow), key=lambda name: int(name[1:])
    )
    assert explanation.slow_ms == pytest.approx(sum(record.stamps[0] for record in slow) / 7 / MS)
    assert explanation.fast_ms == pytest.approx(sum(record.stamps[0] for record in fast) / 6 / MS)
    (sent_again,) = [evidence for evidence in explanation.evidence if evidence.name == "retransmits"]
    assert sent_again.slow == pytest.approx(sum(record.number for record in slow) / 7)
    assert sent_again.fast == pytest.approx(sum(record.number for record in fast) / 6)


def test_records_are_not_kept_in_memory(tmp_path: Path) -> None:
    text = "x" * 4000
    log = RunLog(write_log(tmp_path, [request(n, n % 50 + 1, outputs=[text]) for n in range(3000)]))
    tracemalloc.start()
    try:
        explanation = explain(log, count=5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert explanation.requests == 3000
    assert peak < 4_000_000  # the records have 12 MB; the file is read in pieces of 1 MB
