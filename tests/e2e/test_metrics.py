"""Every reported number against the server's own log, and against arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.metrics.catalogue import CATALOGUE, label
from penstock.records.log import RunLog
from penstock.records.record import Record
from support.programs import MockServer, Outcome, Program

MS = 1e6
COUNT, CONCURRENCY, TOKENS, PROMPT = 40, 4, 25, 48
CLOCK_MS = 1.0
"""How far the clocks of two processes of one machine may be apart."""


class Pair(NamedTuple):
    """One request, told by three: our report, the server's log, our log. Joined by the request's id."""

    record: dict[str, Any]
    truth: dict[str, Any]
    log: Record


class Run(NamedTuple):
    outcome: Outcome
    pairs: list[Pair]


def joined(outcome: Outcome, server: MockServer) -> Run:
    truth = {t["request_id"]: t for t in server.logged_requests()}
    assert len(truth) == len(outcome.records)
    log = RunLog(str(outcome.folder / "log"))
    logged = {record.request_id: record for record in log.records()}
    log.close()
    ids = [record["metadata"]["x_request_id"] for record in outcome.records]
    return Run(outcome, [Pair(r, truth[i], logged[i]) for i, r in zip(ids, outcome.records, strict=True)])


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Streams with a known pace, tokens counted by us."""
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
    """Unix ms, as all times here."""
    return float(record["metadata"]["request_start_ns"] / MS)


def stamps(record: dict[str, Any]) -> list[float]:
    """When each piece of content arrived."""
    first = start(record) + value(record, "time_to_first_token")
    return [first, *(first + np.cumsum(record["metrics"].get("inter_chunk_latency", {"value": []})["value"]))]


class Span(NamedTuple):
    """The kernel dates what arrives while the server is in its call of write. So the time we report lies between two of
    the server's own, however long either process had to wait for a core."""

    earliest: float
    """The server was about to write it."""
    latest: float
    """The server had written it, and was about to write the next or to end."""

    def holds(self, at: float) -> bool:
        return self.earliest - CLOCK_MS <= at <= self.latest + CLOCK_MS


def span(truth: dict[str, Any], tokens: int) -> Span:
    """Of the write that completed the first so many tokens."""
    ends = list(accumulate(truth["write_tokens"]))
    number = ends.index(tokens)
    after = [*truth["write_ns"], truth["ended_ns"]][number + 1]
    return Span(truth["write_ns"][number] / MS, after / MS)


def arrivals(pair: Pair) -> list[tuple[float, Span]]:
    """When we say that each stamp was, and when that was by the server's log."""
    seen = accumulate(pair.log.pieces)
    per_piece = pair.truth["tokens"] // sum(pair.log.pieces)
    found = [span(pair.truth, pieces * per_piece) for pieces in seen]
    return list(zip(stamps(pair.record), found, strict=True))


def several_stamps(run: Run) -> list[Pair]:
    """A reply of which we read all at once has no gaps."""
    return [pair for pair in run.pairs if len(pair.log.stamps) > 1]


# -- against the server's log -----------------------------------------------------------------------------------------


def test_the_kernel_dated_what_arrived(paced):
    """Or the tests that follow would say little."""
    figures = paced.outcome.summary["certificate"]["figures"]
    assert figures["reads_with_kernel_stamp"] == figures["reads"] > 0
    assert all(pair.truth["kernel_stamp"] for pair in paced.pairs)


def test_a_request_starts_when_the_server_gets_it(paced):
    for record, truth, _ in paced.pairs:
        sent = start(record) + value(record, "http_req_sending")
        assert Span(start(record), sent).holds(truth["arrived_ns"] / MS)


def test_every_stamp_is_the_time_at_which_a_token_was_sent(paced):
    for pair in paced.pairs:
        assert sum(pair.log.pieces) == TOKENS
        assert all(by_server.holds(at) for at, by_server in arrivals(pair))


def test_the_time_to_the_first_token_is_the_servers(paced):
    for record, truth, log in paced.pairs:
        first = span(truth, log.pieces[0])
        assert first.holds(start(record) + value(record, "time_to_first_token"))
        assert value(record, "time_to_first_token") >= (truth["first_write_ns"] - truth["arrived_ns"]) / MS - CLOCK_MS
        if log.pieces[0] == 1:  # the head of the reply and its first token are one write
            phases = value(record, "http_req_sending") + value(record, "http_req_waiting")
            assert value(record, "time_to_first_token") == pytest.approx(phases)


def test_the_latency_ends_with_the_last_token(paced):
    for record, truth, _ in paced.pairs:
        assert span(truth, TOKENS).holds(start(record) + value(record, "request_latency"))


def test_the_time_to_the_second_token_is_the_servers(paced):
    """There is none where the first and the second came together."""
    for pair in paced.pairs:
        first, *others = arrivals(pair)
        assert ("time_to_second_token" in pair.record["metrics"]) == (pair.log.pieces[0] == 1 and bool(others))
        if "time_to_second_token" in pair.record["metrics"]:
            assert others[0][1].holds(first[0] + value(pair.record, "time_to_second_token"))


def test_the_gap_between_tokens_is_the_servers(paced):
    for pair in several_stamps(paced):
        (_, first), (_, last) = arrivals(pair)[0], arrivals(pair)[-1]
        between = Span(last.earliest - first.latest, last.latest - first.earliest)
        assert between.holds(value(pair.record, "inter_token_latency") * (TOKENS - 1))


def test_tokens_are_counted_as_the_server_sent_them(paced):
    for record, truth, _ in paced.pairs:
        assert value(record, "output_sequence_length") == truth["tokens"] == TOKENS
        assert value(record, "output_token_count") == truth["tokens"]
        assert value(record, "usage_completion_tokens") == truth["completion_tokens"]
        assert value(record, "usage_prompt_tokens") == truth["prompt_tokens"]
        assert value(record, "input_sequence_length") == PROMPT
        assert value(record, "osl_mismatch_diff_pct") == 0


def test_the_body_was_as_long_as_we_say(paced):
    for record, truth, _ in paced.pairs:
        assert value(record, "http_req_data_sent") * 1024 == pytest.approx(truth["body_bytes"])


def test_the_run_took_as_long_as_the_server_saw(paced):
    """From when its first request was about to be sent to when its last reply had arrived."""
    begin = min(truth["arrived_ns"] for _, truth, _ in paced.pairs) / MS
    sending = max(value(record, "http_req_sending") for record, _, _ in paced.pairs)
    end = Span(
        max(truth["write_ns"][-1] for _, truth, _ in paced.pairs) / MS,
        max(truth["ended_ns"] for _, truth, _ in paced.pairs) / MS,
    )
    took = paced.outcome.summary["benchmark_duration"]["avg"] * 1000
    assert Span(end.earliest - begin, end.latest - begin + sending).holds(took)


def test_the_concurrency_was_the_one_asked_for(paced):
    """On average it is the time of all requests over the time of the run."""
    stats = paced.outcome.summary["effective_concurrency"]
    assert stats["max"] == CONCURRENCY
    spent = sum(paced.outcome.values("http_req_duration")) / 1000
    assert stats["avg"] == pytest.approx(spent / paced.outcome.summary["benchmark_duration"]["avg"])


# -- against arithmetic -----------------------------------------------------------------------------------------------


def test_the_figures_of_a_record_hang_together(paced):
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


def test_the_gaps_of_a_record_hang_together(paced):
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


def test_the_http_phases_add_up(paced):
    for record, truth, log in paced.pairs:

        def phase(name: str, found: dict[str, Any] = record) -> float:
            return float(value(found, f"http_req_{name}"))

        setting_up = phase("blocked") + phase("dns_lookup") + phase("connecting")
        carrying = phase("sending") + phase("waiting") + phase("receiving")
        assert phase("connection_overhead") == pytest.approx(setting_up)
        assert phase("duration") == pytest.approx(carrying)
        assert phase("total") == pytest.approx(setting_up + carrying)
        assert min(phase(name) for name in ("blocked", "sending", "waiting", "receiving")) >= 0
        # The reply may last a moment longer than its last token: the usage and the end mark follow.
        assert phase("duration") >= value(record, "request_latency") - 1e-6
        assert phase("duration") == pytest.approx((log.end - log.start) / MS)
        assert span(truth, TOKENS).holds(start(record) + phase("duration"))
        assert phase("connecting") == 0  # opened ahead


def test_the_summary_is_the_statistics_of_the_records(paced):
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


def test_the_rates_are_counts_over_the_duration(paced):
    summary = paced.outcome.summary

    def whole(tag: str) -> float:
        return float(summary[tag]["avg"])

    seconds = whole("benchmark_duration")
    assert whole("request_count") == whole("completed_request_count") == COUNT
    assert whole("request_error_rate") == 0
    assert "error_request_count" not in summary
    assert whole("total_osl") == whole("total_output_tokens") == COUNT * TOKENS
    assert whole("total_isl") == COUNT * PROMPT
    assert whole("request_throughput") == pytest.approx(COUNT / seconds)
    assert whole("output_token_throughput") == pytest.approx(COUNT * TOKENS / seconds)
    assert whole("input_token_throughput") == pytest.approx(COUNT * PROMPT / seconds)
    assert whole("total_token_throughput") == pytest.approx(COUNT * (TOKENS + PROMPT) / seconds)


def test_the_csv_says_the_same(paced):
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


def test_the_console_says_the_same(paced):
    summary = paced.outcome.summary
    for tag in ("time_to_first_token", "request_latency", "inter_token_latency", "output_sequence_length"):
        (line,) = [text for text in paced.outcome.out.splitlines() if f" {label(CATALOGUE[tag])} │" in text]
        cells = [cell.strip() for cell in line.split("│")[2:-1]]
        columns = ("avg", "min", "max", "p99", "p90", "p50", "std")
        assert cells == [f"{summary[tag][name]:,.2f}" for name in columns]


def test_the_run_vouches_for_itself(paced):
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
"""A second between the first token and the others: time enough to read it alone."""


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
    ids=["asked for", "not", "streamed all the same", "not after all", "completions", "completions, not"],
)
def test_there_is_a_time_to_the_first_token_exactly_when_the_reply_was_streamed(mock, program, kind, flags, streamed):
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


def test_the_latency_of_a_whole_reply_is_the_servers(mock, program):
    server = mock(ttft=20, itl=2, tokens=10, writes=True)
    run = joined(program.profile(server.url, "--request-count", 10), server)
    for record, truth, _ in run.pairs:
        assert span(truth, 10).holds(start(record) + value(record, "request_latency"))
        assert value(record, "request_latency") > 37  # 20 ms and nine gaps of 2


def test_reasoning_is_timed_and_counted_apart(mock, program):
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
        assert by_server.holds(at)
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
def test_every_choice_counts(mock, program, flags):
    server = mock(tokens=6)
    outcome = program.profile(server.url, *flags, "--request-count", 4, "--extra-inputs", "n:3")
    assert outcome.status == 0, outcome
    assert outcome.summary["finish_reasons"] == {"stop": 12}
    assert outcome.values("output_sequence_length") == [18] * 4
    assert {tuple(r["metadata"]["finish_reasons"]) for r in outcome.records} == {("stop",) * 3}


def test_finish_reasons_are_kept_and_counted(mock, program):
    server = mock(tokens=5)
    outcome = program.profile(server.url, "--streaming", "--request-count", 3, "--extra-inputs", "max_tokens:4")
    assert outcome.summary["finish_reasons"] == {"length": 3}
    assert "Finish reasons: length 3" in outcome.out


def test_several_tokens_an_event_do_not_spoil_the_time_per_token(mock, program):
    """Events of four tokens; those of the first stamp took the time to the first token, and count for nothing here."""
    server = mock(ttft=10, itl=5, tokens=20, chunk=4, writes=True)
    prompts = ["--input-file", program.prompts(2), "--tokenizer", "builtin"]
    outcome = program.profile(server.url, "--streaming", "--request-count", 6, *prompts, texts=None)
    assert outcome.values("output_sequence_length") == [20] * 6
    for pair in joined(outcome, server).pairs:
        assert pair.truth["write_tokens"] == [4] * 5
        assert sum(pair.log.pieces) == 5
        assert all(by_server.holds(at) for at, by_server in arrivals(pair))
        if len(pair.log.pieces) > 1:
            rest = 20 - 4 * pair.log.pieces[0]
            per_token = value(pair.record, "decode_duration") / rest
            assert value(pair.record, "time_per_output_token") == pytest.approx(per_token)


def test_a_reply_in_one_piece_has_a_first_token_and_nothing_made_up(mock, program):
    server = mock(tokens=10)
    outcome = program.profile(server.url, "--streaming", "--request-count", 5)
    assert outcome.status == 0, outcome
    assert outcome.summary["time_to_first_token"]["count"] == 5
    assert outcome.summary["single_stamp_request_count"]["avg"] == 5
    for tag in ("time_to_second_token", "inter_token_latency", "inter_chunk_latency", "decode_duration"):
        assert tag not in outcome.summary


def test_a_server_that_counts_nothing(mock, program):
    server = mock(tokens=5, itl=2, usage="never")
    outcome = program.profile(server.url, "--streaming", "--request-count", 3)
    assert outcome.status == 0, outcome
    assert not [tag for tag in outcome.summary if "usage" in tag or tag.endswith("sequence_length")]
    assert outcome.summary["time_to_first_token"]["count"] == 3


def test_the_servers_own_counts(mock, program):
    server = mock(tokens=7, itl=1)
    outcome = program.profile(server.url, "--streaming", "--request-count", 3)
    for record, truth, _ in joined(outcome, server).pairs:
        assert value(record, "output_sequence_length") == truth["completion_tokens"] == 7
        assert value(record, "input_sequence_length") == truth["prompt_tokens"]
    assert "usage_prompt_tokens_diff_pct" not in outcome.summary


def test_the_phases_of_a_new_connection_add_up_too(mock, program):
    server = mock(ttft=10)
    flags = ["--connection-reuse-strategy", "never", "--export-http-trace", "--show-trace-timing"]
    outcome = program.profile(server.url, "--request-count", 5, *flags)
    assert outcome.status == 0, outcome
    assert "HTTP Connecting (ms)" in outcome.out
    for record in outcome.records:
        assert value(record, "http_req_connecting") > 0
        assert value(record, "http_req_connection_reused") == 0
        meta, trace = record["metadata"], record["trace_data"]
        # From the moment it was free to go to its last byte: every nanosecond is in exactly one phase.
        took = trace["response_receive_end_ns"] - meta["credit_issued_ns"]
        assert value(record, "http_req_total") == pytest.approx(took / MS, abs=0.01)
        assert trace["response_status_code"] == 200


def test_the_folder_can_be_written_anew_from_the_log(mock, program):
    server = mock(ttft=5, itl=2, tokens=5)
    outcome = program.profile(server.url, "--streaming", "--request-count", 6)
    before = {path.name: path.read_bytes() for path in outcome.folder.iterdir() if path.is_file()}
    for name in before:
        Path(outcome.folder / name).unlink()
    again = program.run("report", outcome.folder, command="penstock")
    assert again.status == 0, again
    after = {path.name: path.read_bytes() for path in outcome.folder.iterdir() if path.is_file()}
    assert after == before


def test_several_choices_take_turns_and_each_has_its_own_pace(mock, program):
    """Three choices of ten tokens, written side by side: thirty tokens in the time of ten."""
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
