"""Comparison of the token counts of server and client."""

from types import SimpleNamespace

import pytest

from penstock.metrics.token_agreement import TokenTotals
from penstock.records.log import LogWriter, RunLog
from penstock.records.record import Failure, Usage
from penstock.records.worker_report import WorkerReport
from penstock.runs.report_point import report_point
from support.records import make_record, with_values
from support.runs import PROFILING, WARMUP, load_word_tokenizer, report_run, write_log


def agreement(*, output=(0, 0), input=(0, 0), requests=1, **fields):  # noqa: A002
    """Compare (server, client) totals of `requests` equal requests."""
    totals = TokenTotals()
    for _ in range(requests):
        usage = Usage(prompt=input[0], completion=output[0])
        values = {"output_sequence_length": output[1], "input_sequence_length": input[1]}
        totals.add(*with_values(make_record(usage=usage, **fields), values))
    return totals.agreement()


@pytest.mark.parametrize(
    ("server", "client", "agrees"),
    [(64, 334, False), (334, 64, False), (110, 100, True), (112, 100, False), (89, 100, False), (90, 100, True)],
)
def test_output_totals_agree_within_ten_percent(server, client, agrees):
    result = agreement(output=(server, client), requests=3)
    assert result.agrees is result.output.agrees is agrees
    assert (result.output.server, result.output.client) == (3 * server, 3 * client)
    assert result.output.ratio == pytest.approx(server / client)
    assert result.output.requests == 3


def test_end_of_sequence_token_is_no_difference():
    assert agreement(output=(4, 3), requests=10).agrees
    assert not agreement(output=(5, 3), requests=10).agrees
    assert agreement(output=(9, 6), requests=10, outputs=["a", "b", "c"]).agrees


def test_chat_template_is_no_difference_of_input():
    assert agreement(input=(60, 10), requests=10).agrees
    result = agreement(input=(61, 10), requests=10)
    assert result.input.agrees is False
    assert [sentence.split(",")[0] for sentence, *_ in result.disagreements()] == [
        "The server counted 610 input tokens"
    ]


def test_sentence_says_by_how_much_and_which_flags_decide():
    ((sentence, *metrics),) = agreement(output=(64, 334)).disagreements()
    assert sentence.startswith(
        "The server counted 64 output tokens, 81 % fewer than the client (334), so inter-token latency"
    )
    assert "--use-server-token-count" in sentence
    assert "--tokenizer" in sentence
    assert "inter_token_latency" in metrics
    assert "input_token_throughput" not in metrics
    assert "and the client none" in next(agreement(output=(64, 0)).disagreements())[0]


def test_requests_that_one_side_did_not_count_are_left_out():
    totals = TokenTotals()
    totals.add(*with_values(make_record(), {"output_sequence_length": 5}))
    totals.add(*with_values(make_record(usage=Usage(completion=5)), {}))
    assert totals.agreement() is None


def test_metrics_are_given_by_both_counts_if_the_totals_differ(tmp_path):
    records = [
        make_record(phase=0, usage=Usage(prompt=3, completion=100)),  # the warmup is not compared
        make_record(phase=1, usage=Usage(prompt=3, completion=21), at=200),
        make_record(phase=1, usage=Usage(prompt=3, completion=500), failure=Failure("X", "x", "server"), at=200),
    ]
    run = report_run(tmp_path, records, phases=[WARMUP, PROFILING])
    found = run.json["token_agreement"]
    assert found["output"] == {"requests": 1, "server": 21, "client": 5, "ratio": 4.2, "agrees": False}
    assert found["input"] == {"requests": 1, "server": 3, "client": 3, "ratio": 1.0, "agrees": True}
    client, server = found["by_client_count"], found["by_server_count"]
    assert client["inter_token_latency"] == run.json["inter_token_latency"]
    assert client["inter_token_latency"]["avg"] == pytest.approx(50 / 4)
    assert server["inter_token_latency"]["avg"] == pytest.approx(50 / 20)
    assert "time_per_output_token" in client
    assert "time_per_output_token" not in server  # the tokens of the first chunk are not known
    assert server["output_token_throughput"]["avg"] == pytest.approx(21 / 0.105)
    assert server["total_token_throughput"]["avg"] == pytest.approx(24 / 0.105)
    text = run.read("profile_export_console.txt")
    assert "Token Metrics by Both Counts" in text
    row = next(line for line in text.splitlines()[::-1] if "Inter Token Latency (ms)" in line)
    # One request does not support a percentile, so p99 and p50 have a mark.
    assert [cell.strip() for cell in row.strip("│").split("│")][1:] == [
        "12.50",
        "12.50?",
        "12.50?",
        "2.50",
        "2.50?",
        "2.50?",
    ]


def test_metrics_are_given_once_if_the_totals_agree(tmp_path):
    run = report_run(tmp_path, [make_record(usage=Usage(prompt=3, completion=5))])
    assert run.json["token_agreement"]["output"]["ratio"] == 1
    assert "by_server_count" not in run.json["token_agreement"]
    assert "Both Counts" not in run.read("profile_export_console.txt")


def test_server_counts_are_not_compared_with_themselves(tmp_path):
    run = report_run(tmp_path, [make_record(usage=Usage(prompt=3, completion=50))], server_token_count=True)
    assert "token_agreement" not in run.json


def test_disagreement_is_a_reason_of_the_certificate(tmp_path):
    path = write_log(tmp_path, [make_record(usage=Usage(prompt=3, completion=21))])
    writer = LogWriter(path, 1)
    writer.report(WorkerReport(1))
    writer.close()
    report = report_point(RunLog(path), str(tmp_path / "out"), SimpleNamespace(load=load_word_tokenizer))
    assert any(
        reason.startswith("The server counted 21 output tokens") for reason in report.summary.certificate.reasons
    )
