import re

import pytest

from penstock.metrics.catalogue import CATALOGUE, in_table
from penstock.metrics.metric import label

AIPERF = {
    # tag: (header, unit)
    "request_latency": ("Request Latency", "ms"),
    "time_to_first_token": ("Time to First Token", "ms"),
    "time_to_second_token": ("Time to Second Token", "ms"),
    "time_to_first_output_token": ("Time to First Output Token", "ms"),
    "decode_duration": ("Decode Duration", "ms"),
    "inter_token_latency": ("Inter Token Latency", "ms"),
    "inter_chunk_latency": ("Inter Chunk Latency", "ms"),
    "output_token_throughput_per_user": ("Output Token Throughput Per User", "tokens/sec/user"),
    "e2e_output_token_throughput": ("E2E Output Token Throughput", "tokens/sec/user"),
    "prefill_throughput_per_user": ("Prefill Throughput Per User", "tokens/sec/user"),
    "output_sequence_length": ("Output Sequence Length", "tokens"),
    "input_sequence_length": ("Input Sequence Length", "tokens"),
    "output_token_count": ("Output Token Count", "tokens"),
    "reasoning_token_count": ("Reasoning Token Count", "tokens"),
    "osl_mismatch_diff_pct": ("OSL Mismatch Diff %", "%"),
    "usage_prompt_tokens": ("Usage Prompt Tokens", "tokens"),
    "usage_prompt_cache_read_tokens": ("Usage Prompt Cache Read Tokens", "tokens"),
    "usage_prompt_cache_write_tokens": ("Usage Prompt Cache Write Tokens", "tokens"),
    "usage_prompt_audio_tokens": ("Usage Prompt Audio Tokens", "tokens"),
    "usage_completion_tokens": ("Usage Completion Tokens", "tokens"),
    "usage_completion_audio_tokens": ("Usage Completion Audio Tokens", "tokens"),
    "usage_reasoning_tokens": ("Usage Reasoning Tokens", "tokens"),
    "usage_accepted_prediction_tokens": ("Usage Accepted Prediction Tokens", "tokens"),
    "usage_rejected_prediction_tokens": ("Usage Rejected Prediction Tokens", "tokens"),
    "usage_total_tokens": ("Usage Total Tokens", "tokens"),
    "usage_prompt_tokens_diff_pct": ("Usage Prompt Diff %", "%"),
    "usage_completion_tokens_diff_pct": ("Usage Completion Diff %", "%"),
    "usage_reasoning_tokens_diff_pct": ("Usage Reasoning Diff %", "%"),
    "error_isl": ("Error Input Sequence Length", "tokens"),
    "http_req_blocked": ("HTTP Blocked", "ms"),
    "http_req_dns_lookup": ("HTTP DNS Lookup", "ms"),
    "http_req_connecting": ("HTTP Connecting", "ms"),
    "http_req_sending": ("HTTP Sending", "ms"),
    "http_req_waiting": ("HTTP Waiting (TTFB)", "ms"),
    "http_req_receiving": ("HTTP Receiving", "ms"),
    "http_req_connection_reused": ("HTTP Connection Reused", "ratio"),
    "http_req_data_sent": ("HTTP Data Sent", "KB"),
    "http_req_chunks_sent": ("HTTP Chunks Sent", "count"),
    "http_req_data_received": ("HTTP Data Received", "KB"),
    "http_req_chunks_received": ("HTTP Chunks Received", "count"),
    "http_req_connection_overhead": ("HTTP Connection Overhead", "ms"),
    "http_req_duration": ("HTTP Duration (excl. conn)", "ms"),
    "http_req_total": ("HTTP Total Time", "ms"),
    "effective_latency": ("Effective Latency (CO-aware)", "ms"),
    "credit_to_start_latency": ("Credit-to-Start Latency", "ms"),
    "request_count": ("Request Count", "requests"),
    "error_request_count": ("Error Request Count", "requests"),
    "completed_request_count": ("Completed Requests (Success + Error)", "requests"),
    "request_error_rate": ("Request Error Rate", "%"),
    "benchmark_duration": ("Benchmark Duration", "sec"),
    "request_throughput": ("Request Throughput", "requests/sec"),
    "output_token_throughput": ("Output Token Throughput", "tokens/sec"),
    "input_token_throughput": ("Input Token Throughput", "tokens/sec"),
    "total_token_throughput": ("Total Token Throughput", "tokens/sec"),
    "total_isl": ("Total Input Sequence Length", "tokens"),
    "total_osl": ("Total Output Sequence Length", "tokens"),
    "total_output_tokens": ("Total Output Tokens", "tokens"),
    "total_reasoning_tokens": ("Total Reasoning Tokens", "tokens"),
    "total_error_isl": ("Total Error Input Sequence Length", "tokens"),
    "total_usage_prompt_tokens": ("Total Usage Prompt Tokens", "tokens"),
    "total_usage_prompt_cache_read_tokens": ("Total Usage Prompt Cache Read Tokens", "tokens"),
    "total_usage_completion_tokens": ("Total Usage Completion Tokens", "tokens"),
    "total_usage_reasoning_tokens": ("Total Usage Reasoning Tokens", "tokens"),
    "total_usage_total_tokens": ("Total Usage Total Tokens", "tokens"),
    "overall_usage_prompt_cache_read_pct": ("Overall Usage Prompt Cache Read %", "%"),
    "osl_mismatch_count": ("OSL Mismatch Count", "requests"),
    "usage_discrepancy_count": ("Usage Discrepancy Count", "requests"),
    "context_overflow_count": ("Context Overflow Count", "requests"),
    "effective_concurrency": ("Effective Concurrency", "requests"),
    "effective_decode_concurrency": ("Effective Decode Concurrency", "requests"),
    "effective_decode_throughput": ("Effective Decode Throughput", "tokens/sec"),
    "effective_decode_throughput_per_user": ("Effective Decode Throughput Per User", "tokens/sec/user"),
    "active_decode_throughput": ("Active Decode Throughput", "tokens/sec"),
    "active_decode_throughput_per_user": ("Active Decode Throughput Per User", "tokens/sec/user"),
    "effective_prefill_concurrency": ("Effective Prefill Concurrency", "requests"),
    "effective_prefill_throughput": ("Effective Prefill Throughput", "tokens/sec"),
    "effective_prefill_throughput_per_user": ("Effective Prefill Throughput Per User", "tokens/sec/user"),
    "active_prefill_throughput": ("Active Prefill Throughput", "tokens/sec"),
    "active_prefill_throughput_per_user": ("Active Prefill Throughput Per User", "tokens/sec/user"),
    "effective_total_throughput": ("Effective Total Throughput", "tokens/sec"),
    "active_total_throughput": ("Active Total Throughput", "tokens/sec"),
    "tokens_in_flight": ("Tokens In Flight", "tokens"),
    "adj_request_latency": ("Request Latency (error-adjusted)", "ms"),
    "adj_time_to_first_token": ("Time to First Token (error-adjusted)", "ms"),
    "adj_decode_duration": ("Decode Duration (error-adjusted)", "ms"),
    "adj_inter_token_latency": ("Inter Token Latency (error-adjusted)", "ms"),
}


@pytest.mark.parametrize(("tag", "name"), AIPERF.items())
def test_names_and_units_match_aiperf(tag, name):
    assert (CATALOGUE[tag].header, CATALOGUE[tag].unit) == name


def test_every_metric_has_a_note_and_a_valid_tag():
    for tag, metric in CATALOGUE.items():
        assert metric.tag == tag
        assert metric.note.endswith("."), tag
        assert re.fullmatch(r"[a-z0-9_]+", tag)
        assert (metric.table is None) == (metric.order == 0)


def test_main_table_has_the_row_order_of_aiperf():
    names = [label(metric) for metric in in_table("main")]
    aiperf_rows = [
        "Time to First Token (ms)",
        "Time to Second Token (ms)",
        "Time to First Output Token (ms)",
        "Request Latency (ms)",
        "Decode Duration (ms)",
        "Inter Token Latency (ms)",
        "Output Token Throughput Per User (tokens/sec/user)",
        "E2E Output Token Throughput (tokens/sec/user)",
        "Output Sequence Length (tokens)",
        "Input Sequence Length (tokens)",
        "Output Token Throughput (tokens/sec)",
        "Input Token Throughput (tokens/sec)",
        "Total Token Throughput (tokens/sec)",
        "Request Throughput (requests/sec)",
        "Completed Requests (Success + Error) (requests)",
        "Request Error Rate (%)",
        "Request Count (requests)",
        "Request Latency (error-adjusted) (ms)",
        "Time to First Token (error-adjusted) (ms)",
        "Decode Duration (error-adjusted) (ms)",
        "Inter Token Latency (error-adjusted) (ms)",
    ]
    assert [name for name in names if name in aiperf_rows] == aiperf_rows
    assert "Output Token Count (tokens)" in names


def test_http_table_starts_with_the_phases_in_order():
    assert [metric.tag for metric in in_table("http")][:6] == [
        f"http_req_{part}" for part in ("blocked", "dns_lookup", "connecting", "sending", "waiting", "receiving")
    ]
