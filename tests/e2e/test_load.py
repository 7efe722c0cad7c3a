"""The server receives the load that the flags ask for."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections import Counter, defaultdict
from itertools import islice
from typing import Any

import pytest

from penstock.schedule.arrivals import Arrivals, Constant
from penstock.schedule.random_arrivals import Gamma, Poisson
from penstock.schedule.share import Share
from penstock.schedule.users import UserArrivals
from penstock.schedule.varying_rate import RatePoint, VaryingRate
from support.programs import Outcome, wait_for
from support.schedules import Data

MS = 1_000_000


def peak_in_flight(server_log: list[dict[str, Any]]) -> int:
    """Return the largest number of requests that the server had received and not yet answered."""
    events = sorted([(t["first_write_ns"], -1) for t in server_log] + [(t["arrived_ns"], 1) for t in server_log])
    in_flight = peak = 0
    for _, change in events:
        in_flight += change
        peak = max(peak, in_flight)
    return peak


def intended(outcome: Outcome) -> list[int]:
    """Return the intended send times relative to the first, in the order of the schedule."""
    records = sorted(outcome.records, key=lambda r: r["metadata"]["session_num"])
    times = [r["metadata"]["intended_ns"] for r in records]
    return [at - times[0] for at in times]


def due(process: Arrivals, count: int, seed: int = 0) -> list[int]:
    """Return the first times of an arrival process."""
    no_data: Any = None
    return [time for time in islice(process.times(Share(), seed, no_data), count) if time is not None]


def test_prefill_concurrency_is_reached_and_never_exceeded(mock, program):
    server = mock(ttft=20, itl=10, tokens=4)
    flags = ["--streaming", "--concurrency", 6, "--prefill-concurrency", 2, "--request-count", 30]
    outcome = program.profile(server.url, *flags)
    assert outcome.status == 0, outcome
    server_log = server.logged_requests()
    assert peak_in_flight(server_log) == 2  # until the first write of each reply
    assert outcome.summary["effective_concurrency"]["max"] > 2


def test_cancelled_requests_are_closed_and_are_not_failures(mock, program):
    server = mock(ttft=500)
    flags = ["--concurrency", 4, "--request-count", 20, "--request-cancellation-rate", 100]
    outcome = program.profile(server.url, *flags, "--request-cancellation-delay", 0.05)
    assert outcome.summary["cancelled_request_count"]["avg"] == 20
    assert "error_request_count" not in outcome.summary
    (error,) = outcome.errors()
    assert (error["code"], error["type"], error["count"]) == (499, "RequestCancellationError", 20)
    assert all(record["metadata"]["was_cancelled"] for record in outcome.records)
    wait_for(lambda: len(server.logged_requests()) == 20, what="the server's log")
    assert {entry["end"] for entry in server.logged_requests()} == {"aborted"}


# -- closed loop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 5])
def test_concurrency_is_reached_and_never_exceeded(mock, program, concurrency):
    server = mock(ttft=15)
    outcome = program.profile(server.url, "--concurrency", concurrency, "--request-count", 8 * concurrency)
    assert outcome.status == 0, outcome
    server_log = server.logged_requests()
    assert len(server_log) == 8 * concurrency
    assert peak_in_flight(server_log) == concurrency


def test_file_is_sent_once_without_a_stop_condition(mock, program):
    server = mock(hashes=True)
    outcome = program.profile(server.url, "--concurrency", 3, texts=17)
    assert outcome.status == 0, outcome
    server_log = server.logged_requests()
    assert len(server_log) == len({t["body_sha256"] for t in server_log}) == 17


def test_default_number_of_synthetic_requests_is_twice_the_concurrency(mock, program):
    server = mock()
    outcome = program.profile(server.url, "--concurrency", 8, "--isl", 5, "--tokenizer", "builtin", texts=None)
    assert outcome.status == 0, outcome
    assert len(server.logged_requests()) == 16


# -- open loop --------------------------------------------------------------------------------------------------------


def test_constant_rate_has_exact_intended_times_and_no_early_request(mock, program):
    server = mock(ttft=30)
    flags = ["--request-rate", 80, "--arrival-pattern", "constant", "--request-count", 40]
    outcome = program.profile(server.url, *flags)
    assert outcome.status == 0, outcome
    assert intended(outcome) == due(Constant(80), 40)
    arrived = {t["request_id"]: t["arrived_ns"] for t in server.logged_requests()}
    late = [arrived[r["metadata"]["x_request_id"]] - r["metadata"]["intended_ns"] for r in outcome.records]
    assert min(late) > -MS  # tolerance between the clocks of two processes
    assert all(r["metadata"]["request_start_ns"] >= r["metadata"]["intended_ns"] for r in outcome.records)


@pytest.mark.parametrize("flag", ["--request-rate", "--conversation-rate"])
def test_rate_counts_requests_or_conversations(mock, program, flag):
    conversations = ["--conversation-turn-mean", 4, "--isl", 5, "--osl", 2, "--tokenizer", "builtin"]
    rate = [flag, 100, "--arrival-pattern", "constant", "--request-count", 40]
    outcome = program.profile(mock(ttft=5).url, *conversations, *rate, texts=None)
    assert outcome.status == 0, outcome
    counted = [r for r in outcome.records if flag == "--request-rate" or r["metadata"]["turn_index"] == 0]
    times = sorted(r["metadata"]["intended_ns"] for r in counted)
    assert [at - times[0] for at in times] == [number * 10 * MS for number in range(len(times))]
    assert max(r["metadata"]["turn_index"] for r in outcome.records) == 3


@pytest.mark.slow
def test_every_user_sends_in_its_own_interval(mock, program):
    server = mock(ttft=5)
    conversations = ["--conversation-turn-mean", 3, "--isl", 5, "--osl", 2, "--tokenizer", "builtin"]
    users = ["--user-centric-rate", 100, "--num-users", 8, "--num-sessions", 20, "--workers-max", 3]
    outcome = program.profile(server.url, *conversations, *users, texts=None)
    assert outcome.status == 0, outcome
    times = defaultdict(list)
    for record in outcome.records:
        times[record["metadata"]["session_num"]].append(record["metadata"]["intended_ns"])
    starts = list(islice(UserArrivals(8, 100.0).starts(Share(), Data(turns=3)), 20))
    assert len(server.logged_requests()) == sum(start.turns for start in starts if start is not None)
    begin = times[0][0]
    for start in starts:
        assert start is not None
        assert times[start.number] == [begin + start.at + turn * 80 * MS for turn in range(start.turns)]
    # The first users are in the middle of their conversation.
    assert [len(times[number]) for number in range(8)] == [3, 1, 1, 2, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("flags", "process"),
    [
        (["--request-rate", 100, "--arrival-smoothness", 0.5], Gamma(100.0, 0.5)),
        (
            ["--request-rate", 200, "--request-rate-ramp-duration", 0.5, "--arrival-pattern", "constant"],
            VaryingRate(Constant(1.0), (RatePoint(0.0, 0.0), RatePoint(0.5, 200.0))),
        ),
        (
            ["--request-rate-series", "series.json"],
            VaryingRate(Poisson(1.0), (RatePoint(0.0, 50.0), RatePoint(0.4, 200.0), RatePoint(0.6, 0.0))),
        ),
    ],
    ids=["gamma", "ramp", "series"],
)
def test_requests_are_due_at_the_times_of_the_arrival_process(mock, program, flags, process):
    (program.folder / "series.json").write_text(
        '[{"timeS": 0, "qps": 50}, {"timeS": 0.4, "qps": 200}, {"timeS": 0.6, "qps": 0}]'
    )
    server = mock()
    outcome = program.profile(server.url, *flags, "--request-count", 60, "--random-seed", 4)
    assert outcome.status == 0, outcome
    drawn = due(process, 60, seed=4)
    assert intended(outcome) == [at - drawn[0] for at in drawn]
    assert len(server.logged_requests()) == len(drawn) >= 50


def test_users_need_conversations_of_several_turns(mock, program):
    server = mock()
    outcome = program.profile(server.url, "--user-centric-rate", 5, "--num-users", 2)
    assert outcome.status == 2
    assert "have one turn each; use --request-rate" in outcome.err
    assert server.logged_requests() == []


@pytest.mark.slow
def test_poisson_arrivals_depend_on_the_seed_alone(mock, program):
    flags = ["--request-rate", 100, "--request-count", 30, "--random-seed", 11]
    first, second = (program.profile(mock(ttft=5).url, *flags) for _ in range(2))
    drawn = due(Poisson(100), 30, seed=11)
    assert intended(first) == intended(second) == [at - drawn[0] for at in drawn]
    other = program.profile(mock().url, *flags[:-1], 12)
    assert intended(other) != intended(first)


@pytest.mark.slow
def test_open_loop_does_not_wait_for_replies(mock, program):
    server = mock(ttft=3000)
    flags = ["--request-rate", 50, "--arrival-pattern", "constant", "--request-count", 15]
    outcome = program.profile(server.url, *flags)
    assert outcome.status == 0, outcome
    assert peak_in_flight(server.logged_requests()) == 15


@pytest.mark.slow
def test_rate_with_concurrency_delays_requests_and_drops_none(mock, program):
    server = mock(ttft=200)
    flags = ["--request-rate", 100, "--arrival-pattern", "constant", "--concurrency", 2, "--request-count", 20]
    outcome = program.profile(server.url, *flags)
    assert outcome.status == 0, outcome
    server_log = server.logged_requests()
    assert len(server_log) == 20
    assert peak_in_flight(server_log) == 2
    # Intended times do not change; requests that waited for a slot were sent late and show it.
    assert intended(outcome) == due(Constant(100), 20)
    waits = outcome.values("credit_to_start_latency")
    assert waits[-1] > 1000
    assert outcome.values("effective_latency")[-1] == pytest.approx(outcome.values("request_latency")[-1] + waits[-1])
    assert outcome.summary["certificate"]["figures"]["requests_queued_for_a_slot"] >= 15
    # Lateness of the client is counted from the moment when a slot was free.
    lateness = [r["metadata"]["request_start_ns"] - r["metadata"]["credit_issued_ns"] for r in outcome.records]
    assert outcome.summary["certificate"]["figures"]["send_lateness_max_ms"] == pytest.approx(
        max(lateness) / MS, abs=0.01
    )


# -- duration ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_request_starts_after_the_duration_and_those_in_flight_finish(mock, program):
    server = mock(ttft=150)
    outcome = program.profile(server.url, "--concurrency", 3, "--benchmark-duration", 3)
    assert outcome.status == 0, outcome
    issued = [r["metadata"]["credit_issued_ns"] for r in outcome.records]
    assert 1500 * MS < max(issued) - min(issued) < 3000 * MS
    server_log = server.logged_requests()
    assert len(server_log) == len(outcome.records) == outcome.summary["request_count"]["avg"]
    assert {t["end"] for t in server_log} == {"complete"}
    assert not outcome.summary["was_cancelled"]


def test_cancelled_turn_does_not_end_its_conversation(mock, program):
    server = mock(ttft=20, itl=2, tokens=5)
    sessions = ["--concurrency", 4, "--num-sessions", 8, "--session-turns-mean", 3, "--session-turns-stddev", 0]
    cancelled = ["--request-cancellation-rate", 30, "--request-cancellation-delay", 0, "--random-seed", 1]
    texts = ["--isl", 10, "--tokenizer", "builtin", "--streaming"]
    outcome = program.profile(server.url, *sessions, *cancelled, *texts, texts=None)
    turns = [(record["metadata"]["session_num"], record["metadata"]["turn_index"]) for record in outcome.records]
    assert sorted(turns) == [(session, turn) for session in range(8) for turn in range(3)]
    assert 0 < sum(record["metadata"]["was_cancelled"] for record in outcome.records) < 24


@pytest.mark.slow
def test_requests_are_cancelled_after_the_grace_period_and_not_counted(mock, program):
    server = mock(ttft=20, stall="inf", stall_rate=0.3, stall_after=1, tokens=5, seed=5)
    flags = ["--concurrency", 4, "--benchmark-duration", 1, "--benchmark-grace-period", 3, "--streaming"]
    outcome = program.profile(server.url, *flags)
    assert outcome.status == 0, outcome
    ends = Counter(t["end"] for t in server.logged_requests())
    cancelled = [r for r in outcome.records if r["metadata"]["was_cancelled"]]
    assert 0 < len(cancelled) == ends["aborted"]
    assert outcome.summary["cancelled_request_count"]["avg"] == len(cancelled)
    assert outcome.summary["request_count"]["avg"] == ends["complete"]
    assert "error_request_count" not in outcome.summary
    assert all(r["metrics"] == {} for r in cancelled)
    assert "Cancelled" in outcome.out


@pytest.mark.slow
def test_a_thousand_requests_can_be_cancelled_at_once(mock, program):
    server = mock(ttft=30_000)
    flags = ["--concurrency", 1000, "--benchmark-duration", 5, "--benchmark-grace-period", 0]
    outcome = program.profile(server.url, *flags)
    assert "Traceback" not in outcome.err, outcome
    assert outcome.summary["cancelled_request_count"]["avg"] == 1000
    assert outcome.summary["request_count"]["avg"] == 0


# -- warmup -----------------------------------------------------------------------------------------------------------


def test_warmup_runs_first_and_is_not_in_the_metrics(mock, program):
    server = mock(ttft=5)
    flags = ["--warmup-request-count", 5, "--request-count", 10, "--concurrency", 2]
    outcome = program.profile(server.url, *flags, texts=30)
    assert outcome.status == 0, outcome
    order = [t["request_id"] for t in server.logged_requests()]
    assert len(order) == 15
    phases = {r["metadata"]["x_request_id"]: r["metadata"]["benchmark_phase"] for r in outcome.records}
    assert [phases[request] for request in order] == ["warmup"] * 5 + ["profiling"] * 10
    assert outcome.summary["request_count"]["avg"] == 10
    assert outcome.summary["request_latency"]["count"] == 10
    assert outcome.summary["warmup_metrics"]["request_count"]["avg"] == 5
    # Profiling continues with the prompts after those of the warmup.
    assert len({r["metadata"]["conversation_id"] for r in outcome.records}) == 15
    warmup = [r for r in outcome.records if r["metadata"]["benchmark_phase"] == "warmup"]
    begin = min(r["metadata"]["request_start_ns"] for r in outcome.records[5:])
    assert max(r["metadata"]["request_end_ns"] for r in warmup) <= begin


def test_warmup_of_a_duration_has_its_own_concurrency_and_profiling_continues_in_the_file(mock, program):
    server = mock(ttft=20)
    warmup = ["--warmup-duration", 0.3, "--warmup-concurrency", 5, "--random-seed", 1]
    outcome = program.profile(server.url, *warmup, "--concurrency", 2, "--request-count", 8, texts=1000)
    assert outcome.status == 0, outcome
    phases = {r["metadata"]["x_request_id"]: r["metadata"]["benchmark_phase"] for r in outcome.records}
    by_phase: dict[str, list[dict[str, Any]]] = {"warmup": [], "profiling": []}
    for entry in server.logged_requests():
        by_phase[phases[entry["request_id"]]].append(entry)
    assert {name: peak_in_flight(entries) for name, entries in by_phase.items()} == {"warmup": 5, "profiling": 2}
    lines = {r["metadata"]["x_request_id"]: int(r["metadata"]["conversation_id"][8:]) for r in outcome.records}
    first = len(by_phase["warmup"])
    assert sorted(lines[entry["request_id"]] for entry in by_phase["warmup"]) == list(range(first))
    assert sorted(lines[entry["request_id"]] for entry in by_phase["profiling"]) == list(range(first, first + 8))


def test_warmup_of_conversations_ends_them_and_profiling_starts_with_the_next_one(mock, program):
    server = mock(ttft=2)
    data = program.folder / "conversations.jsonl"
    turns = [{"text": "Hello."}, {"text": "And then?"}]
    data.write_text("".join(json.dumps({"session_id": f"c{n}", "turns": turns}) + "\n" for n in range(6)))
    flags = ["--input-file", data, "--custom-dataset-type", "multi_turn", "--use-server-token-count"]
    load = ["--num-warmup-sessions", 2, "--warmup-request-rate", 200, "--concurrency", 2, "--num-sessions", 3]
    outcome = program.profile(server.url, *flags, *load, texts=None)
    assert outcome.status == 0, outcome
    conversations: dict[str, Counter[str]] = {"warmup": Counter(), "profiling": Counter()}
    for record in outcome.records:
        conversations[record["metadata"]["benchmark_phase"]][record["metadata"]["conversation_id"]] += 1
    assert conversations == {"warmup": {"c0": 2, "c1": 2}, "profiling": {"c2": 2, "c3": 2, "c4": 2}}
    assert len(server.logged_requests()) == 10


# -- workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_workers_send_the_same_requests_as_one(mock, program):
    flags = ["--concurrency", 4, "--request-count", 30, "--random-seed", 9, "--isl", 20, "--isl-stddev", 5]
    flags += ["--osl", 5, "--tokenizer", "builtin", "--dataset-sampling-strategy", "shuffle"]
    sent, plans = [], []
    for workers in (1, 2):
        server = mock(ttft=10, hashes=True)
        outcome = program.profile(server.url, *flags, "--workers-max", workers, texts=None)
        assert outcome.status == 0, outcome
        server_log = server.logged_requests()
        assert peak_in_flight(server_log) <= 4
        sent.append(Counter(t["body_sha256"] for t in server_log))
        records = sorted(outcome.records, key=lambda r: r["metadata"]["session_num"])
        plans.append([(r["metadata"]["session_num"], r["metadata"]["conversation_id"]) for r in records])
        assert {r["metadata"]["worker_id"] for r in records} == {f"worker_{n}" for n in range(workers)}
        assert outcome.summary["request_count"]["avg"] == 30
    assert sent[0] == sent[1]
    assert plans[0] == plans[1]
    assert [number for number, _ in plans[0]] == list(range(30))


def test_two_workers_share_one_schedule(mock, program):
    server = mock(ttft=5)
    flags = ["--request-rate", 120, "--arrival-pattern", "constant", "--request-count", 40, "--workers-max", 2]
    outcome = program.profile(server.url, *flags)
    assert outcome.status == 0, outcome
    assert intended(outcome) == due(Constant(120), 40)
    assert Counter(r["metadata"]["worker_id"] for r in outcome.records) == {"worker_0": 20, "worker_1": 20}


# -- connections ------------------------------------------------------------------------------------------------------


def test_pooled_connections_are_opened_once_and_reused(mock, program):
    server = mock(ttft=3)
    outcome = program.profile(server.url, "--concurrency", 3, "--request-count", 30)
    assert outcome.status == 0, outcome
    assert len({t["connection"] for t in server.logged_requests()}) <= 3
    assert outcome.summary["certificate"]["figures"]["connections_opened"] == 3


def test_reuse_strategy_never_opens_a_connection_per_request(mock, program):
    server = mock(ttft=3)
    flags = ["--concurrency", 3, "--request-count", 12, "--connection-reuse-strategy", "never"]
    outcome = program.profile(server.url, *flags)
    assert outcome.status == 0, outcome
    assert len({t["connection"] for t in server.logged_requests()}) == 12


@pytest.mark.slow
def test_idle_connections_closed_by_the_server_cause_no_failures(mock, program):
    server = mock(ttft=3, idle_close=30)
    flags = ["--request-rate", 3, "--arrival-pattern", "constant", "--request-count", 8]
    outcome = program.profile(server.url, *flags)
    assert outcome.status == 0, outcome
    assert len({t["connection"] for t in server.logged_requests()}) >= 4
    assert outcome.summary["request_count"]["avg"] == 8


def test_connection_that_the_server_closes_after_each_reply_is_replaced(program):
    """The server sends the end of its stream with the reply, without `Connection: close`."""
    answer = b'{"choices":[{"message":{"content":"Yes"},"finish_reason":"stop"}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)

    class Once(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            received = b""
            while not received.endswith(b"}"):
                part = self.request.recv(65536)
                if not part:
                    return
                received += part
            self.request.sendall(head + answer, socket.MSG_MORE)  # so that the FIN is in the same segment

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Once) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        outcome = program.profile(f"http://127.0.0.1:{server.server_address[1]}", "--request-count", 6)
        server.shutdown()
    assert outcome.status == 0, outcome
    assert outcome.summary["request_count"]["avg"] == 6
    assert "error_request_count" not in outcome.summary


def test_several_urls_are_used_in_turn(mock, program):
    servers = [mock(ttft=2), mock(ttft=2), mock(ttft=2)]
    extra = ["--url", servers[1].url, servers[2].url]
    outcome = program.profile(servers[0].url, *extra, "--concurrency", 2, "--request-count", 12)
    assert outcome.status == 0, outcome
    assert [len(server.logged_requests()) for server in servers] == [4, 4, 4]
    records = sorted(outcome.records, key=lambda r: r["metadata"]["session_num"])
    assert [r["metadata"]["url"] for r in records] == [server.url for server in servers] * 4


def test_mock_url_starts_a_mock_with_its_options(program):
    outcome = program.profile("mock://?ttft=5&itl=2&tokens=4", "--streaming", "--request-count", 4)
    assert outcome.status == 0, outcome
    assert outcome.values("output_sequence_length") == [4] * 4
    assert outcome.summary["time_to_first_token"]["min"] >= 5
