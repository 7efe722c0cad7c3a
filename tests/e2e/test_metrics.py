"""Every reported number compared with the server's log, and with arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.metric import label
from penstock.records.log import RunLog
from penstock.records.record import Record
from support.programs import MockServer, Outcome, Program

MS = 1e6
COUNT, CONCURRENCY, TOKENS, PROMPT = 40, 4, 25, 48
CLOCK_MS = 1.0
"""Tolerance between the clocks of two processes on one machine."""


class Pair(NamedTuple):
    """One request in three sources: the per-request file, the server's log and the run log. Joined by the request's id."""

    record: dict[str, Any]
    entry: dict[str, Any]
    log: Record


class Run(NamedTuple):
    outcome: Outcome
    pairs: list[Pair]


def joined(outcome: Outcome, server: MockServer) -> Run:
    entries = {entry["request_id"]: entry for entry in server.logged_requests()}
    assert len(entries) == len(outcome.records)
    log = RunLog(str(outcome.folder / "log"))
    logged = {record.request_id: record for record in log.records()}
    ids = [record["metadata"]["x_request_id"] for record in outcome.records]
    return Run(outcome, [Pair(r, entries[i], logged[i]) for i, r in zip(ids, outcome.records, strict=True)])


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Streams with known timing, with tokens counted by the client."""
    folder = tmp_path_factory.mktemp("paced")
    options = {"ttft": 30, "itl": 4, "jitter": 2, "input_cost": 50}
    server = MockServer(folder, options, port=0, writes=True, hashes=False)
    program = Program(folder)
    lengths = ["--isl", PROMPT, "--osl", TOKENS, "--tokenizer", "builtin"]
    load = ["--concurrency", CONCURRENCY, "--request-count", COUNT, "--streaming", "--random-seed", 1]
    outcome = program.profile(server.url, *load, *lengths, texts=None)
    assert outcome.status == 0, outcome
    yield joined(outcome, server)
    program.end()
    server.stop()


def value(record: dict[str, Any], tag: str) -> Any:
    return record["metrics"][tag]["value"]


def start(record: dict[str, Any]) -> float:
    """Return the start in Unix milliseconds, as all times in this file."""
    return float(record["metadata"]["request_start_ns"] / MS)


def stamps(record: dict[str, Any]) -> list[float]:
    """Return the arrival time of each piece of content."""
    first = start(record) + value(record, "time_to_first_token")
    return [first, *(first + np.cumsum(record["metrics"].get("inter_chunk_latency", {"value": []})["value"]))]


class Span(NamedTuple):
    """The interval in which an arrival must lie.

    On loopback the kernel stamps data while the server is in its `write` call. The reported time therefore lies between two
    times of the server's log, however long either process waited for a core.
    """

    earliest: float
    """Just before the server's write."""
    latest: float
    """Just before the server's next write, or its end."""

    def contains(self, at: float) -> bool:
        return self.earliest - CLOCK_MS <= at <= self.latest + CLOCK_MS


def span(entry: dict[str, Any], tokens: int) -> Span:
    """Return the interval of the write that completed the first `tokens` tokens."""
    ends = list(accumulate(entry["write_tokens"]))
    number = ends.index(tokens)
    after = [*entry["write_ns"], entry["ended_ns"]][number + 1]
    return Span(entry["write_ns"][number] / MS, after / MS)


def arrivals(pair: Pair) -> list[tuple[float, Span]]:
    """Return each reported stamp with its interval by the server's log."""
    seen = accumulate(pair.log.pieces)
    per_piece = pair.entry["tokens"] // sum(pair.log.pieces)
    spans = [span(pair.entry, pieces * per_piece) for pieces in seen]
    return list(zip(stamps(pair.record), spans, strict=True))


def several_stamps(run: Run) -> list[Pair]:
    """Return the requests with gaps: a reply that arrived in one read has none."""
    return [pair for pair in run.pairs if len(pair.log.stamps) > 1]


# -- against the server's log -----------------------------------------------------------------------------------------


def test_all_reads_have_kernel_timestamps(paced):
    """The following tests rely on kernel timestamps."""
    figures = paced.outcome.summary["certificate"]["figures"]
    assert figures["reads_with_kernel_stamp"] == figures["reads"] > 0
    assert all(pair.entry["kernel_stamp"] for pair in paced.pairs)


def test_request_start_agrees_with_its_arrival_at_the_server(paced):
    for record, entry, _ in paced.pairs:
        sent = start(record) + value(record, "http_req_sending")
        assert Span(start(record), sent).contains(entry["arrived_ns"] / MS)


def test_every_stamp_agrees_with_a_write_of_the_server(paced):
    for pair in paced.pairs:
        assert sum(pair.log.pieces) == TOKENS
        assert all(by_server.contains(at) for at, by_server in arrivals(pair))


def test_time_to_first_token_agrees_with_the_server_log(paced):
    for record, entry, log in paced.pairs:
        first = span(entry, log.pieces[0])
        assert first.contains(start(record) + value(record, "time_to_first_token"))
        assert value(record, "time_to_first_token") >= (entry["first_write_ns"] - entry["arrived_ns"]) / MS - CLOCK_MS
        if log.pieces[0] == 1:  # the head of the reply and its first token are one write
            phases = value(record, "http_req_sending") + value(record, "http_req_waiting")
            assert value(record, "time_to_first_token") == pytest.approx(phases)


def test_request_latency_ends_with_the_last_token(paced):
    for record, entry, _ in paced.pairs:
        assert span(entry, TOKENS).contains(start(record) + value(record, "request_latency"))


def test_time_to_second_token_agrees_with_the_server_log(paced):
    """It is absent if the first and the second token arrived together."""
    for pair in paced.pairs:
        first, *others = arrivals(pair)
        assert ("time_to_second_token" in pair.record["metrics"]) == (pair.log.pieces[0] == 1 and bool(others))
        if "time_to_second_token" in pair.record["metrics"]:
            assert others[0][1].contains(first[0] + value(pair.record, "time_to_second_token"))


def test_inter_token_latency_agrees_with_the_server_log(paced):
    for pair in several_stamps(paced):
        (_, first), (_, last) = arrivals(pair)[0], arrivals(pair)[-1]
        between = Span(last.earliest - first.latest, last.latest - first.earliest)
        assert between.contains(value(pair.record, "inter_token_latency") * (TOKENS - 1))


def test_token_counts_agree_with_the_server_log(paced):
    for record, entry, _ in paced.pairs:
        assert value(record, "output_sequence_length") == entry["tokens"] == TOKENS
        assert value(record, "output_token_count") == entry["tokens"]
        assert value(record, "usage_completion_tokens") == entry["completion_tokens"]
        assert value(record, "usage_prompt_tokens") == entry["prompt_tokens"]
        assert value(record, "input_sequence_length") == PROMPT
        assert value(record, "osl_mismatch_diff_pct") == 0


def test_data_sent_agrees_with_the_server_log(paced):
    for record, entry, _ in paced.pairs:
        assert value(record, "http_req_data_sent") * 1024 == pytest.approx(entry["body_bytes"])


def test_benchmark_duration_agrees_with_the_server_log(paced):
    """It lasts from just before the first send to the arrival of the last reply."""
    begin = min(entry["arrived_ns"] for _, entry, _ in paced.pairs) / MS
    sending = max(value(record, "http_req_sending") for record, _, _ in paced.pairs)
    end = Span(
        max(entry["write_ns"][-1] for _, entry, _ in paced.pairs) / MS,
        max(entry["ended_ns"] for _, entry, _ in paced.pairs) / MS,
    )
    took = paced.outcome.summary["benchmark_duration"]["avg"] * 1000
    assert Span(end.earliest - begin, end.latest - begin + sending).contains(took)


def test_effective_concurrency_is_request_time_over_duration(paced):
    """The average is the time of all requests divided by the duration."""
    stats = paced.outcome.summary["effective_concurrency"]
    assert stats["max"] == CONCURRENCY
    spent = sum(paced.outcome.values("http_req_duration")) / 1000
    assert stats["avg"] == pytest.approx(spent / paced.outcome.summary["benchmark_duration"]["avg"])


# -- against arithmetic -----------------------------------------------------------------------------------------------


def test_latencies_and_throughputs_of_a_record_are_consistent(paced):
    for record in paced.outcome.records:
        ttft, latency = value(record, "time_to_first_token"), value(record, "request_latency")
        meta = record["metadata"]
        assert value(record, "e2e_output_token_throughput") == pytest.approx(TOKENS / latency * 1000)
        assert value(record, "prefill_throughput_per_user") == pytest.approx(PROMPT / ttft * 1000)
        assert value(record, "time_to_first_output_token") == ttft
        assert (meta["request_end_ns"] - meta["request_start_ns"]) / MS == pytest.approx(latency)
        late = value(record, "credit_to_start_latency")
        assert (meta["request_start_ns"] - meta["intended_ns"]) / MS == pytest.approx(late, abs=1e-3)
        assert value(record, "effective_latency") == pytest.approx(latency + late)
        assert meta["intended_ns"] <= meta["credit_issued_ns"] <= meta["request_start_ns"] <= meta["request_ack_ns"]


def test_gaps_of_a_record_are_consistent(paced):
    pairs = several_stamps(paced)
    assert len(pairs) == len(paced.outcome.values("inter_token_latency")) > 0
    for record, _, log in pairs:
        decode = value(record, "request_latency") - value(record, "time_to_first_token")
        gap = value(record, "inter_token_latency")
        assert value(record, "decode_duration") == pytest.approx(decode)
        assert len(value(record, "inter_chunk_latency")) == len(log.stamps) - 1
        assert sum(value(record, "inter_chunk_latency")) == pytest.approx(decode)
        assert gap == pytest.approx(decode / (TOKENS - 1))
        assert value(record, "output_token_throughput_per_user") == pytest.approx(1000 / gap)
        if "time_to_second_token" in record["metrics"]:
            assert value(record, "time_to_second_token") == value(record, "inter_chunk_latency")[0]


def test_no_gap_is_zero(paced):
    assert min(gap for gaps in paced.outcome.values("inter_chunk_latency") for gap in gaps) > 0


def test_http_phases_add_up(paced):
    for record, entry, log in paced.pairs:

        def phase(name: str, record: dict[str, Any] = record) -> float:
            return float(value(record, f"http_req_{name}"))

        connection_set_up = phase("blocked") + phase("dns_lookup") + phase("connecting")
        transfer = phase("sending") + phase("waiting") + phase("receiving")
        assert phase("connection_overhead") == pytest.approx(connection_set_up)
        assert phase("duration") == pytest.approx(transfer)
        assert phase("total") == pytest.approx(connection_set_up + transfer)
        assert min(phase(name) for name in ("blocked", "sending", "waiting", "receiving")) >= 0
        # The reply may end after its last token, because usage and [DONE] follow.
        assert phase("duration") >= value(record, "request_latency") - 1e-6
        assert phase("duration") == pytest.approx((log.end - log.start) / MS)
        assert span(entry, TOKENS).contains(start(record) + phase("duration"))
        assert phase("connecting") == 0  # opened before the first request


def test_summary_has_the_statistics_of_the_records(paced):
    summary, records = paced.outcome.summary, paced.outcome.records
    checked = 0
    for tag in {tag for record in records for tag in record["metrics"]}:
        column = [record["metrics"][tag]["value"] for record in records if tag in record["metrics"]]
        if isinstance(column[0], list):
            column = [item for items in column for item in items]
        stats = summary[tag]
        units = {record["metrics"][tag]["unit"] for record in records if tag in record["metrics"]}
        assert units == {stats["unit"]} == {CATALOGUE[tag].unit}
        expected = {
            "avg": np.mean(column),
            "min": min(column),
            "max": max(column),
            "std": np.std(column),
            "count": len(column),
            "sum": sum(column),
            **{f"p{q}": np.percentile(column, q) for q in (1, 5, 10, 25, 50, 75, 90, 95, 99)},
        }
        assert {name: stats[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-9), tag
        checked += 1
    assert checked > 25


def test_throughputs_are_counts_over_the_duration(paced):
    summary = paced.outcome.summary

    def total(tag: str) -> float:
        return float(summary[tag]["avg"])

    seconds = total("benchmark_duration")
    assert total("request_count") == total("completed_request_count") == COUNT
    assert total("request_error_rate") == 0
    assert "error_request_count" not in summary
    assert total("total_osl") == total("total_output_tokens") == COUNT * TOKENS
    assert total("total_isl") == COUNT * PROMPT
    assert total("request_throughput") == pytest.approx(COUNT / seconds)
    assert total("output_token_throughput") == pytest.approx(COUNT * TOKENS / seconds)
    assert total("input_token_throughput") == pytest.approx(COUNT * PROMPT / seconds)
    assert total("total_token_throughput") == pytest.approx(COUNT * (TOKENS + PROMPT) / seconds)


def test_csv_agrees_with_the_summary(paced):
    summary, rows = paced.outcome.summary, paced.outcome.csv
    checked = 0
    for tag, metric in CATALOGUE.items():
        if tag not in summary:
            continue
        row = rows[metric.header if metric.unit in ("count", "requests") else label(metric)]
        scalar = set(row) == {"Value"}
        for column, cell in row.items():
            number = summary[tag].get("avg" if scalar else column)
            assert cell == ("" if number is None else f"{number:.2f}"), (tag, column)
        checked += 1
    assert checked == len(rows) > 40


def test_console_agrees_with_the_summary(paced):
    summary = paced.outcome.summary
    for tag in ("time_to_first_token", "request_latency", "inter_token_latency", "output_sequence_length"):
        name = label(CATALOGUE[tag])
        line = next(text for text in paced.outcome.out.splitlines() if text.strip().startswith(name))
        cells = [cell.rstrip("?") for cell in line.strip().removeprefix(name).split()]
        columns = ("avg", "min", "max", "p99", "p90", "p50", "std")
        assert cells == [f"{summary[tag][name]:,.2f}" for name in columns]


def test_certificate_is_on_the_screen_and_consistent_with_the_summary(paced):
    certificate = paced.outcome.summary["certificate"]
    assert certificate["verdict"] in ("VALID", "DEGRADED", "INVALID")
    assert bool(certificate["reasons"]) == (certificate["verdict"] != "VALID")
    assert f"Certificate: {certificate['verdict']}" in paced.outcome.out
    figures = certificate["figures"]
    assert figures["streams"] == COUNT
    assert figures["reads_with_kernel_stamp"] <= figures["reads"]
    assert figures["coalesced_stamps"] == paced.outcome.summary["coalesced_stamp_count"]["avg"]


# -- other kinds of reply ---------------------------------------------------------------------------------------------

STREAMED = ("time_to_first_token", "time_to_second_token", "inter_token_latency", "inter_chunk_latency")
PAUSED = {"stall": 1, "stall_after": 1}
"""One second between the first token and the others, so that the first is read alone."""


@pytest.mark.parametrize(
    ("kind", "flags", "streamed"),
    [
        ("chat", ["--streaming"], True),
        ("chat", [], False),
        ("chat", ["--extra-inputs", "stream:true"], True),
        ("chat", ["--streaming", "--extra-inputs", "stream:false"], False),
        ("completions", ["--streaming"], True),
        ("completions", [], False),
    ],
    ids=[
        "chat streamed",
        "chat",
        "streamed by extra input",
        "not streamed by extra input",
        "completions streamed",
        "completions",
    ],
)
def test_token_times_are_present_exactly_if_the_reply_was_streamed(mock, program, kind, flags, streamed):
    server = mock(ttft=5, tokens=6, **PAUSED)
    outcome = program.profile(server.url, "--endpoint-type", kind, "--request-count", 4, "--concurrency", 4, *flags)
    assert outcome.status == 0, outcome
    for tag in STREAMED:
        assert (tag in outcome.summary) == streamed, tag
        assert bool(outcome.values(tag)) == streamed, tag
    assert ("Time to First Token (ms)" in outcome.out) == streamed
    assert ("Time to First Token (ms)" in outcome.csv) == streamed
    assert {r["metadata"]["streamed"] for r in outcome.records} == {streamed}
    assert outcome.summary["request_latency"]["count"] == 4


def test_latency_without_streaming_agrees_with_the_server_log(mock, program):
    server = mock(ttft=20, itl=2, tokens=10, writes=True)
    run = joined(program.profile(server.url, "--request-count", 10), server)
    for record, entry, _ in run.pairs:
        assert span(entry, 10).contains(start(record) + value(record, "request_latency"))
        assert value(record, "request_latency") > 37  # 20 ms and nine gaps of 2


def test_reasoning_is_timed_and_counted_separately(mock, program):
    server = mock(ttft=10, itl=6, tokens=12, reasoning=5, writes=True)
    prompts = ["--input-file", program.prompts(2), "--tokenizer", "builtin"]
    run = joined(program.profile(server.url, "--streaming", "--request-count", 8, *prompts, texts=None), server)
    for pair in run.pairs:
        record = pair.record
        assert value(record, "reasoning_token_count") == 5
        assert value(record, "output_token_count") == 7
        assert value(record, "output_sequence_length") == 12
        assert value(record, "usage_reasoning_tokens") == 5
        sixth = next(n for n, seen in enumerate(accumulate(pair.log.pieces)) if seen > 5)
        at, by_server = arrivals(pair)[sixth]
        assert start(record) + value(record, "time_to_first_output_token") == pytest.approx(at)
        assert by_server.contains(at)
    assert run.outcome.summary["total_reasoning_tokens"]["avg"] == 40


@pytest.mark.parametrize("option", ["tools", "refusal"])
@pytest.mark.parametrize("flags", [["--streaming"], []], ids=["streamed", "whole"])
def test_tool_calls_and_refusals_are_output(mock, program, option, flags):
    server = mock(tokens=9, itl=1, **{option: True})
    prompts = ["--input-file", program.prompts(2), "--tokenizer", "builtin"]
    outcome = program.profile(server.url, *flags, "--request-count", 3, *prompts, texts=None)
    assert outcome.status == 0, outcome
    assert min(outcome.values("output_sequence_length")) >= 5
    assert list(outcome.summary["finish_reasons"]) == ["tool_calls" if option == "tools" else "stop"]


@pytest.mark.parametrize("flags", [["--streaming"], []], ids=["streamed", "whole"])
def test_tokens_of_all_choices_are_counted(mock, program, flags):
    server = mock(tokens=6)
    outcome = program.profile(server.url, *flags, "--request-count", 4, "--extra-inputs", "n:3")
    assert outcome.status == 0, outcome
    assert outcome.summary["finish_reasons"] == {"stop": 12}
    assert outcome.values("output_sequence_length") == [18] * 4
    assert {tuple(r["metadata"]["finish_reasons"]) for r in outcome.records} == {("stop",) * 3}


def test_finish_reasons_are_counted(mock, program):
    server = mock(tokens=5)
    outcome = program.profile(server.url, "--streaming", "--request-count", 3, "--extra-inputs", "max_tokens:4")
    assert outcome.summary["finish_reasons"] == {"length": 3}
    assert "Finish reasons: length 3" in (outcome.folder / "profile_export_console.txt").read_text()


def test_time_per_output_token_is_correct_with_several_tokens_per_event(mock, program):
    """Each event has four tokens. Tokens of the first stamp belong to the time to first token and are not counted here."""
    server = mock(ttft=10, itl=5, tokens=20, chunk=4, writes=True)
    prompts = ["--input-file", program.prompts(2), "--tokenizer", "builtin"]
    outcome = program.profile(server.url, "--streaming", "--request-count", 6, *prompts, texts=None)
    assert outcome.values("output_sequence_length") == [20] * 6
    for pair in joined(outcome, server).pairs:
        assert pair.entry["write_tokens"] == [4] * 5
        assert sum(pair.log.pieces) == 5
        assert all(by_server.contains(at) for at, by_server in arrivals(pair))
        if len(pair.log.pieces) > 1:
            rest = 20 - 4 * pair.log.pieces[0]
            per_token = value(pair.record, "decode_duration") / rest
            assert value(pair.record, "time_per_output_token") == pytest.approx(per_token)


def test_reply_with_a_single_stamp_has_only_a_time_to_first_token(mock, program):
    server = mock(tokens=10)
    outcome = program.profile(server.url, "--streaming", "--request-count", 5)
    assert outcome.status == 0, outcome
    assert outcome.summary["time_to_first_token"]["count"] == 5
    assert outcome.summary["single_stamp_request_count"]["avg"] == 5
    for tag in ("time_to_second_token", "inter_token_latency", "inter_chunk_latency", "decode_duration"):
        assert tag not in outcome.summary


def test_reply_without_usage_has_no_token_metrics(mock, program):
    server = mock(tokens=5, itl=2, usage="never")
    outcome = program.profile(server.url, "--streaming", "--request-count", 3)
    assert outcome.status == 0, outcome
    assert not [tag for tag in outcome.summary if "usage" in tag or tag.endswith("sequence_length")]
    assert outcome.summary["time_to_first_token"]["count"] == 3


def test_server_token_counts_are_used_if_asked_for(mock, program):
    server = mock(tokens=7, itl=1)
    outcome = program.profile(server.url, "--streaming", "--request-count", 3)
    for record, entry, _ in joined(outcome, server).pairs:
        assert value(record, "output_sequence_length") == entry["completion_tokens"] == 7
        assert value(record, "input_sequence_length") == entry["prompt_tokens"]
    assert "usage_prompt_tokens_diff_pct" not in outcome.summary


def test_http_phases_of_a_new_connection_add_up(mock, program):
    server = mock(ttft=10)
    flags = ["--connection-reuse-strategy", "never", "--export-http-trace", "--show-trace-timing"]
    outcome = program.profile(server.url, "--request-count", 5, *flags)
    assert outcome.status == 0, outcome
    assert "HTTP Connecting (ms)" in outcome.out
    for record in outcome.records:
        assert value(record, "http_req_connecting") > 0
        assert value(record, "http_req_connection_reused") == 0
        meta, trace = record["metadata"], record["trace_data"]
        # Every nanosecond from the free slot to the last byte is in exactly one phase.
        took = trace["response_receive_end_ns"] - meta["credit_issued_ns"]
        assert value(record, "http_req_total") == pytest.approx(took / MS, abs=0.01)
        assert trace["response_status_code"] == 200


def test_report_writes_the_same_files_from_the_log(mock, program):
    server = mock(ttft=5, itl=2, tokens=5)
    outcome = program.profile(server.url, "--streaming", "--request-count", 6)
    before = {path.name: path.read_bytes() for path in outcome.folder.iterdir() if path.is_file()}
    for name in before:
        Path(outcome.folder / name).unlink()
    again = program.run("report", outcome.folder, command="penstock")
    assert again.status == 0, again
    after = {path.name: path.read_bytes() for path in outcome.folder.iterdir() if path.is_file()}
    assert after == before


@pytest.mark.slow
def test_inter_token_latency_with_several_choices_is_that_of_one_choice(mock, program):
    """Three choices of ten tokens are written in parallel: thirty tokens in the time of ten."""
    flags = ["--streaming", "--isl", 5, "--osl", 10, "--request-count", 4, "--concurrency", 4, "--tokenizer", "builtin"]
    outcome = program.profile(mock(ttft=5, itl=8, **PAUSED).url, *flags, "--extra-inputs", "n:3", texts=None)
    assert outcome.status == 0, outcome
    assert outcome.values("output_sequence_length") == [30] * 4
    assert outcome.values("osl_mismatch_diff_pct") == [0] * 4
    assert outcome.summary["osl_mismatch_count"]["avg"] == 0
    for record in outcome.records:
        decode = value(record, "decode_duration")
        assert value(record, "inter_token_latency") == pytest.approx(decode / 9)
        assert value(record, "output_token_throughput_per_user") == pytest.approx(9000 / decode)
