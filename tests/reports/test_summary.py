"""The summary in JSON and CSV, written for complete runs."""

import datetime
from itertools import product

import pytest

from penstock.metrics.certificate import Certificate
from penstock.records.record import Failure, Usage
from penstock.settings.input_config import input_config
from support.records import MS, make_record
from support.runs import EPOCH, PROFILING, WARMUP, make_header, report_run

REFUSED = Failure("ConnectionRefused", "Nobody listens on localhost:8000.", "network")
SERVER_ERROR = Failure("HTTPError", "mock says 500", "server", 500)

STATISTICS = [
    "unit",
    "avg",
    "p1",
    "p5",
    "p10",
    "p25",
    "p50",
    "p75",
    "p90",
    "p95",
    "p99",
    "min",
    "max",
    "std",
    "count",
    "sum",
]

# Keys that AIPerf 0.13 writes for a streamed chat run without GPU telemetry: first those in a fixed order, then the others.
AIPERF_FIRST = [
    "schema_version",
    "aiperf_version",
    "benchmark_id",
    "request_throughput",
    "request_latency",
    "request_count",
    "time_to_first_token",
    "time_to_second_token",
    "inter_token_latency",
    "output_token_throughput",
    "output_token_throughput_per_user",
    "output_sequence_length",
    "input_sequence_length",
    "output_token_count",
    "inter_chunk_latency",
    "total_output_tokens",
    "benchmark_duration",
    "total_isl",
    "total_osl",
    "input_config",
    "run_info",
    "was_cancelled",
    "is_complete",
    "error_summary",
    "start_time",
    "end_time",
]
AIPERF_REST = {
    "http_req_waiting",
    "http_req_sending",
    "http_req_receiving",
    "http_req_connecting",
    "http_req_dns_lookup",
    "http_req_blocked",
    "usage_completion_tokens",
    "usage_prompt_tokens",
    "http_req_duration",
    "http_req_chunks_received",
    "http_req_data_received",
    "usage_reasoning_tokens",
    "usage_prompt_cache_read_tokens",
    "usage_total_tokens",
    "http_req_connection_reused",
    "http_req_chunks_sent",
    "http_req_data_sent",
    "time_to_first_output_token",
    "decode_duration",
    "http_req_total",
    "http_req_connection_overhead",
    "prefill_throughput_per_user",
    "usage_prompt_tokens_diff_pct",
    "e2e_output_token_throughput",
    "usage_completion_tokens_diff_pct",
    "osl_mismatch_diff_pct",
    "usage_discrepancy_count",
    "osl_mismatch_count",
    "total_usage_prompt_tokens",
    "request_error_rate",
    "completed_request_count",
    "total_usage_completion_tokens",
    "total_usage_reasoning_tokens",
    "total_usage_prompt_cache_read_tokens",
    "total_usage_total_tokens",
    "overall_usage_prompt_cache_read_pct",
    "input_token_throughput",
    "total_token_throughput",
    "effective_concurrency",
    "effective_decode_throughput",
    "effective_prefill_throughput",
    "effective_decode_concurrency",
    "effective_prefill_concurrency",
    "effective_total_throughput",
    "effective_decode_throughput_per_user",
    "effective_prefill_throughput_per_user",
    "tokens_in_flight",
    "active_decode_throughput",
    "active_prefill_throughput",
    "active_decode_throughput_per_user",
    "active_prefill_throughput_per_user",
    "active_total_throughput",
    "credit_to_start_latency",
    "effective_latency",
}
PENSTOCK_KEYS = {
    "confidence_intervals",
    "gaps_by_position",
    "inexact_gap_count",
    "longest_gap",
    "time_per_output_token",
    "effective_time_to_first_token",
    "single_stamp_request_count",
    "coalesced_stamp_count",
    "coalesced_first_stamp_count",
    "penstock_version",
    "context_mode",
    "proof",
    "tokenizer",
    "token_agreement",
    "finish_reasons",
    "failures",
    "machine",
}
USAGE = Usage(prompt=4, completion=5, total=9, reasoning=0, cache_read=2)


def chat(**changes):
    return make_record(usage=USAGE, requested_output=5, **changes)


@pytest.fixture
def two(tmp_path):
    """Two requests in a row, 105 ms each: the last byte arrives 210 ms after the first send."""
    return report_run(tmp_path, [chat(), chat(number=1, at=105)])


def test_keys_have_the_names_and_order_of_aiperf(two):
    keys = list(two.json)
    assert keys[: len(AIPERF_FIRST)] == AIPERF_FIRST
    assert set(keys[len(AIPERF_FIRST) :]) == AIPERF_REST | PENSTOCK_KEYS


def test_record_metric_has_all_statistics(two):
    latency = two.json["request_latency"]
    assert list(latency) == STATISTICS
    assert latency == dict.fromkeys(STATISTICS, 100) | {"unit": "ms", "std": 0, "count": 2, "sum": 200}
    gaps = two.json["inter_chunk_latency"]
    assert (gaps["count"], gaps["sum"], gaps["p50"], gaps["max"]) == (8, 100, 12.5, 20)


def test_run_metrics_have_a_single_value(two):
    expected = {
        "request_count": 2,
        "completed_request_count": 2,
        "request_error_rate": 0,
        "benchmark_duration": 0.21,
        "request_throughput": 2 / 0.21,
        "output_token_throughput": 10 / 0.21,
        "input_token_throughput": 6 / 0.21,
        "total_token_throughput": 16 / 0.21,
        "total_isl": 6,
        "total_osl": 10,
        "total_output_tokens": 10,
        "total_usage_prompt_tokens": 8,
        "total_usage_completion_tokens": 10,
        "total_usage_reasoning_tokens": 0,
        "total_usage_prompt_cache_read_tokens": 4,
        "total_usage_total_tokens": 18,
        "overall_usage_prompt_cache_read_pct": 50,
        "osl_mismatch_count": 0,
        "usage_discrepancy_count": 2,  # 4 tokens there, 3 here
        "single_stamp_request_count": 0,
        "coalesced_stamp_count": 0,
        "coalesced_first_stamp_count": 0,
    }
    summary = two.json
    for tag, value in expected.items():
        assert summary[tag] == {"unit": summary[tag]["unit"], "avg": pytest.approx(value)}, tag
    assert summary["effective_concurrency"] == {
        "unit": "requests",
        **dict.fromkeys(["avg", "p50", "p90", "p95", "p99", "min", "max"], 1),
        "std": 0,
    }


def test_summary_names_versions_times_settings_and_tokenizer(two):
    summary = two.json
    assert summary["schema_version"] == "1.4"
    assert summary["aiperf_version"] == "penstock-0.1.0"
    assert summary["run_info"] == {
        "benchmark_id": "d3cd2bf9da9d",
        "trial": 0,
        "cli_command": "aiperf profile --model 'mock'",
    }
    assert summary["input_config"] == input_config(make_header().settings)
    start = datetime.datetime.fromisoformat(summary["start_time"])
    end = datetime.datetime.fromisoformat(summary["end_time"])
    assert start.tzinfo is None
    assert start.timestamp() == pytest.approx(EPOCH / 1e9 + 0.005, abs=1e-5)
    assert end - start == datetime.timedelta(microseconds=210_000)
    assert summary["tokenizer"] == {"name": "words", "source": "builtin", "note": None}
    assert summary["finish_reasons"] == {"stop": 2}
    assert summary["machine"] == {"cpus": 2}
    assert (summary["was_cancelled"], summary["is_complete"], summary["error_summary"], summary["failures"]) == (
        False,
        True,
        [],
        {},
    )


def test_seed_and_certificate_are_written_if_present(tmp_path):
    certificate = Certificate("DEGRADED", ["It was late."], {"cpu": 0.5, "kernel_stamps": True}, "one line")
    summary = report_run(tmp_path, [make_record()], seed=7, certificate=certificate).json
    assert list(summary["run_info"]) == ["benchmark_id", "random_seed", "trial", "cli_command"]
    assert summary["certificate"] == {
        "verdict": "DEGRADED",
        "reasons": ["It was late."],
        "figures": {"cpu": 0.5, "kernel_stamps": True},
        "summary": "one line",
        "bounds": {},
    }


def test_failures_are_grouped_and_excluded_from_distributions(tmp_path):
    records = [
        make_record(),
        make_record(number=1, at=200),
        make_record(number=2, failure=SERVER_ERROR, at=50),
        make_record(failure=REFUSED, at=900),
    ]
    records += [make_record(failure=SERVER_ERROR, number=i, end=300 * MS, stamps=[]) for i in (5, 6)]
    summary = report_run(tmp_path, records).json
    assert summary["error_request_count"] == {"unit": "requests", "avg": 4}
    assert summary["request_count"]["avg"] == 2
    assert summary["completed_request_count"]["avg"] == 6
    assert summary["request_error_rate"]["avg"] == pytest.approx(400 / 6)
    assert summary["context_overflow_count"]["avg"] == 0
    assert summary["error_isl"]["sum"] == summary["total_error_isl"]["avg"] == 12
    assert summary["error_summary"] == [
        {
            "error_details": {"code": 500, "type": "HTTPError", "message": "mock says 500", "fault": "server"},
            "count": 3,
        },
        {
            "error_details": {
                "type": "ConnectionRefused",
                "message": "Nobody listens on localhost:8000.",
                "fault": "network",
            },
            "count": 1,
        },
    ]
    assert summary["failures"] == {"server": 3, "network": 1}
    # The duration covers all requests, the distributions only successes; adjusted metrics count failures as infinite.
    assert summary["benchmark_duration"]["avg"] == pytest.approx(1.005)
    assert summary["request_latency"]["count"] == 2
    assert summary["adj_request_latency"] == {
        "unit": "ms",
        "p1": 100,
        "p5": 100,
        "p10": 100,
        "p25": 100,
        "min": 100,
        "count": 6,
    }
    assert {"adj_time_to_first_token", "adj_decode_duration", "adj_inter_token_latency"} <= set(summary)


def test_run_without_success_is_written(tmp_path):
    reported = report_run(tmp_path, [make_record(failure=SERVER_ERROR), make_record(failure=SERVER_ERROR, at=100)])
    summary = reported.json
    assert summary["request_count"]["avg"] == summary["request_throughput"]["avg"] == 0
    assert summary["error_request_count"]["avg"] == 2
    assert summary["request_error_rate"]["avg"] == 100
    assert summary["benchmark_duration"]["avg"] == pytest.approx(0.205)
    assert "request_latency" not in summary
    assert "adj_request_latency" not in summary
    assert reported.csv[2].startswith("Error Input Sequence Length (tokens),3.00,")
    assert "mock says 500" in reported.read("profile_export_console.txt")


def test_run_without_records_is_written(tmp_path):
    summary = report_run(tmp_path, [], was_cancelled=True).json
    assert summary["request_count"]["avg"] == summary["completed_request_count"]["avg"] == 0
    assert (summary["was_cancelled"], summary["is_complete"]) == (True, False)
    assert "benchmark_duration" not in summary


def test_error_messages_are_cut_and_their_groups_limited(tmp_path):
    names = ["".join(letters) for letters in product("abcdefghijk", repeat=3)][:1100]
    failures = [Failure("HTTPError", f"request {name} " + "x" * 900, "server", 500) for name in names]
    records = [make_record(failure=failure, number=i) for i, failure in enumerate(failures)]
    summary = report_run(tmp_path, records).summary
    assert len(summary.errors) == 1001
    assert (summary.errors[0].message, summary.errors[0].count) == ("(other messages)", 100)
    assert max(len(group.message) for group in summary.errors) == 500


def test_messages_that_differ_only_in_ids_and_numbers_share_a_group(tmp_path):
    failures = [Failure("HTTPError", f"chatcmpl-{i:08x}: busy for {i} s", "server", 503) for i in range(10)]
    failures += [Failure("HTTPError", "chatcmpl-00000001: gone for 1 s", "server", 503)]
    failures += [Failure("HTTPError", "chatcmpl-00000001: busy for 1 s", "server", 500)]
    summary = report_run(
        tmp_path, [make_record(failure=failure, number=i) for i, failure in enumerate(failures)]
    ).summary
    assert [(group.code, group.message, group.count) for group in summary.errors] == [
        (503, "chatcmpl-00000000: busy for 0 s", 10),
        (500, "chatcmpl-00000001: busy for 1 s", 1),
        (503, "chatcmpl-00000001: gone for 1 s", 1),
    ]


def test_context_overflows_are_counted_by_message(tmp_path):
    messages = [
        "This model's maximum context length is 4096 tokens.",
        "context_length_exceeded",
        "Prompt is too long",
        "no",
    ]
    records = [make_record(failure=Failure("HTTPError", message, "server", 400)) for message in messages]
    assert report_run(tmp_path, records).json["context_overflow_count"]["avg"] == 3


def test_interrupted_run_is_marked_and_its_window_includes_cancelled_requests(tmp_path):
    reported = report_run(
        tmp_path,
        [make_record(), make_record(cancelled=True, end=2000 * MS)],
        was_cancelled=True,
        incomplete_reason="Ctrl-C.",
    )
    summary = reported.json
    assert list(summary)[list(summary).index("was_cancelled") :][:4] == [
        "was_cancelled",
        "is_complete",
        "incomplete_reason",
        "error_summary",
    ]
    assert (summary["was_cancelled"], summary["is_complete"], summary["incomplete_reason"]) == (True, False, "Ctrl-C.")
    assert summary["cancelled_request_count"]["avg"] == 1
    assert summary["request_count"]["avg"] == summary["completed_request_count"]["avg"] == 1
    assert summary["request_latency"]["count"] == 1
    # The duration ends when the last request was cancelled.
    assert summary["benchmark_duration"]["avg"] == pytest.approx(1.995)
    assert summary["request_throughput"]["avg"] == pytest.approx(1 / 1.995)


def test_warmup_metrics_are_separate(tmp_path):
    warmup = [
        make_record(phase=0, at=-500, stamps=[90 * MS, 200 * MS], pieces=[1, 4]),
        make_record(phase=0, failure=REFUSED, at=-300),
    ]
    reported = report_run(tmp_path, [*warmup, make_record(phase=1)], phases=[WARMUP, PROFILING])
    summary = reported.json
    keys = list(summary)
    assert keys[keys.index("end_time") + 1] == "warmup_metrics"
    assert summary["warmup_metrics"]["request_latency"]["avg"] == 200
    assert summary["warmup_metrics"]["error_request_count"]["avg"] == 1
    assert summary["request_latency"]["avg"] == 100
    assert summary["request_count"]["avg"] == 1
    assert summary["error_summary"] == []
    assert [group["count"] for group in summary["warmup_error_summary"]] == [1]
    assert reported.summary.warmup_requests == 2
    assert "warmup_metrics" not in report_run(tmp_path / "none", [make_record()]).json


def test_single_and_coalesced_stamps_are_counted(tmp_path):
    records = [
        make_record(stamps=[50 * MS], pieces=[5], coalesced=[0], earliest=[20 * MS]),
        make_record(coalesced=[1, 2], earliest=[50 * MS, 60 * MS]),
        make_record(streamed=False),
    ]
    summary = report_run(tmp_path, records).json
    assert summary["single_stamp_request_count"]["avg"] == 1
    assert summary["coalesced_stamp_count"]["avg"] == 3
    assert summary["coalesced_first_stamp_count"]["avg"] == 1
    assert summary["time_to_first_token"]["count"] == 2
    assert summary["decode_duration"]["count"] == 1


def test_run_without_streaming_has_no_streaming_metrics(tmp_path):
    summary = report_run(tmp_path, [make_record(streamed=False)], streaming=True).json
    assert summary["request_latency"]["avg"] == 105
    for tag in ("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "single_stamp_request_count"):
        assert tag not in summary


def test_replies_that_were_not_streamed_on_request_are_noted(tmp_path):
    plain = make_record(number=1, streamed=False, stamps=[], pieces=[], first_output=None)
    reported = report_run(tmp_path, [make_record(), plain])
    note = "Replies that were not streamed although --streaming was given"
    assert [(warning[: len(note)], count) for warning, count in reported.json["warnings"].items()] == [(note, 1)]
    assert note in reported.read("profile_export_console.txt")
    assert "warnings" not in report_run(tmp_path / "plain", [plain], streaming=False).json


def test_length_mismatches_are_counted(tmp_path):
    """The reply has five tokens; 5 % of that is less than one token, so any difference counts."""
    records = [make_record(requested_output=length) for length in (5, 6, 100)] + [make_record(requested_output=None)]
    assert report_run(tmp_path, records).json["osl_mismatch_count"]["avg"] == 2


def test_server_token_counts_need_no_tokenizer(tmp_path):
    def never():
        raise AssertionError("no tokenizer is needed")

    usage = Usage(prompt=30, completion=9, reasoning=4)
    reported = report_run(
        tmp_path, [make_record(usage=usage), make_record(at=200)], server_token_count=True, tokenizer=never
    )
    summary = reported.json
    assert summary["input_sequence_length"]["sum"] == 30
    assert summary["output_sequence_length"]["avg"] == 9
    assert summary["output_token_count"]["avg"] == 5
    assert summary["reasoning_token_count"]["avg"] == summary["total_reasoning_tokens"]["avg"] == 4
    assert summary["inter_token_latency"]["count"] == 1
    assert summary["time_to_first_token"]["count"] == 2
    assert not [tag for tag in summary if tag.endswith("_diff_pct")]
    assert summary["tokenizer"]["name"] is None
    assert "server" in summary["tokenizer"]["note"]


AIPERF_CSV = [
    "Active Decode Throughput (tokens/sec)",
    "Active Decode Throughput Per User (tokens/sec/user)",
    "Active Prefill Throughput (tokens/sec)",
    "Active Prefill Throughput Per User (tokens/sec/user)",
    "Active Total Throughput (tokens/sec)",
    "Credit-to-Start Latency (ms)",
    "Decode Duration (ms)",
    "E2E Output Token Throughput (tokens/sec/user)",
    "Effective Concurrency",
    "Effective Decode Concurrency",
    "Effective Decode Throughput (tokens/sec)",
    "Effective Decode Throughput Per User (tokens/sec/user)",
    "Effective Latency (CO-aware) (ms)",
    "Effective Prefill Concurrency",
    "Effective Prefill Throughput (tokens/sec)",
    "Effective Prefill Throughput Per User (tokens/sec/user)",
    "Effective Total Throughput (tokens/sec)",
    "HTTP Blocked (ms)",
    "HTTP Chunks Received",
    "HTTP Chunks Sent",
    "HTTP Connecting (ms)",
    "HTTP Connection Overhead (ms)",
    "HTTP Connection Reused (ratio)",
    "HTTP Data Received (KB)",
    "HTTP Data Sent (KB)",
    "HTTP DNS Lookup (ms)",
    "HTTP Duration (excl. conn) (ms)",
    "HTTP Receiving (ms)",
    "HTTP Sending (ms)",
    "HTTP Total Time (ms)",
    "HTTP Waiting (TTFB) (ms)",
    "Input Sequence Length (tokens)",
    "Inter Chunk Latency (ms)",
    "Inter Token Latency (ms)",
    "OSL Mismatch Diff % (%)",
    "Output Sequence Length (tokens)",
    "Output Token Count (tokens)",
    "Output Token Throughput Per User (tokens/sec/user)",
    "Prefill Throughput Per User (tokens/sec/user)",
    "Request Latency (ms)",
    "Time to First Output Token (ms)",
    "Time to First Token (ms)",
    "Time to Second Token (ms)",
    "Tokens In Flight (tokens)",
    "Usage Completion Tokens (tokens)",
    "Usage Completion Diff % (%)",
    "Usage Prompt Cache Read Tokens (tokens)",
    "Usage Prompt Tokens (tokens)",
    "Usage Prompt Diff % (%)",
    "Usage Reasoning Tokens (tokens)",
    "Usage Total Tokens (tokens)",
]
AIPERF_CSV_VALUES = [
    "Benchmark Duration (sec),0.21",
    "Completed Requests (Success + Error),2.00",
    "Input Token Throughput (tokens/sec),28.57",
    "OSL Mismatch Count,0.00",
    "Output Token Throughput (tokens/sec),47.62",
    "Overall Usage Prompt Cache Read % (%),50.00",
    "Request Count,2.00",
    "Request Error Rate (%),0.00",
    "Request Throughput (requests/sec),9.52",
    "Total Input Sequence Length (tokens),6.00",
    "Total Output Sequence Length (tokens),10.00",
    "Total Output Tokens (tokens),10.00",
    "Total Token Throughput (tokens/sec),76.19",
    "Total Usage Completion Tokens (tokens),10.00",
    "Total Usage Prompt Cache Read Tokens (tokens),4.00",
    "Total Usage Prompt Tokens (tokens),8.00",
    "Total Usage Reasoning Tokens (tokens),0.00",
    "Total Usage Total Tokens (tokens),18.00",
    "Usage Discrepancy Count,2.00",
]


def test_csv_has_the_rows_of_aiperf_and_a_few_more(two):
    rows = two.csv
    assert rows[0] == "Metric,avg,min,max,sum,p1,p5,p10,p25,p50,p75,p90,p95,p99,std"
    blank = rows.index("")
    names = [row.split(",")[0] for row in rows[1:blank]]
    ours = (
        "Effective Time to First Token (CO-aware) (ms)",
        "Inexact Gap Count (gaps)",
        "Longest Gap (ms)",
        "Time per Output Token (ms)",
    )
    assert [name for name in names if name not in ours] == AIPERF_CSV
    assert rows[blank + 1] == "Metric,Value"
    penstock_rows = ("Single Stamp", "Coalesced")
    assert [row for row in rows[blank + 2 : -1] if not row.startswith(penstock_rows)] == AIPERF_CSV_VALUES
    assert rows[-1] == ""


def test_csv_numbers_have_two_decimals(two):
    rows = {row.split(",")[0]: row for row in two.csv if row}
    assert rows["Request Latency (ms)"] == "Request Latency (ms)" + ",100.00" * 3 + ",200.00" + ",100.00" * 9 + ",0.00"
    assert rows["Effective Concurrency"] == "Effective Concurrency,1.00,1.00,1.00,,,,,,1.00,,1.00,1.00,1.00,0.00"


def test_csv_omits_infinite_percentiles(tmp_path):
    rows = report_run(tmp_path, [make_record(), make_record(failure=SERVER_ERROR)]).csv
    adjusted = next(row for row in rows if row.startswith("Request Latency (error-adjusted) (ms)"))
    assert adjusted.split(",")[1:] == ["", "100.00", "", "", *["100.00"] * 5, *[""] * 5]
