import pytest

from penstock.metrics.batch import Batch
from penstock.metrics.catalogue import CATALOGUE
from penstock.metrics.groups.http import http_phases
from penstock.metrics.measure import measure_batch
from penstock.metrics.metric import TokenCounts
from penstock.records.record import Failure, Usage
from support.records import MS, make_record, measure

FIVE = TokenCounts(input=10, output=5, head=1)


def values(record, counts=FIVE):
    return measure(record, counts).values


def test_streamed_reply_has_all_timing_metrics():
    measured = measure(make_record(), FIVE)
    assert measured.values == pytest.approx(
        {
            "time_to_first_token": 50,
            "effective_time_to_first_token": 55,
            "time_to_second_token": 10,
            "time_to_first_output_token": 50,
            "request_latency": 100,
            "effective_latency": 105,
            "credit_to_start_latency": 5,
            "decode_duration": 50,
            "inter_token_latency": 12.5,
            "time_per_output_token": 12.5,
            "output_token_throughput_per_user": 80,
            "e2e_output_token_throughput": 50,
            "prefill_throughput_per_user": 200,
            "output_sequence_length": 5,
            "output_token_count": 5,
            "input_sequence_length": 10,
            "http_req_blocked": 3,
            "http_req_dns_lookup": 0,
            "http_req_connecting": 0,
            "http_req_sending": 1,
            "http_req_waiting": 39,
            "http_req_receiving": 65,
            "http_req_connection_reused": 1,
            "http_req_data_sent": 0.5,
            "http_req_chunks_sent": 1,
            "http_req_data_received": 4,
            "http_req_chunks_received": 7,
            "http_req_connection_overhead": 3,
            "http_req_duration": 105,
            "http_req_total": 108,
            "longest_gap": 20,
            "inexact_gap_count": 0,
        }
    )
    assert measured.lists["inter_chunk_latency"].tolist() == [10, 15, 5, 20]


def test_catalogue_says_which_metrics_only_streamed_replies_have():
    streamed = measure_batch(Batch([make_record()]), [FIVE], reader_rate=10.0).rows[0].values
    whole = values(make_record(streamed=False, stamps=[], pieces=[]))
    assert streamed.keys() - whole.keys() == {tag for tag, metric in CATALOGUE.items() if metric.streamed}


def test_metrics_are_in_the_order_of_the_catalogue():
    usage = Usage(9, 5, 14, 2, 1, 1, 1, 1, 1, 1)
    metrics = values(
        make_record(usage=usage, requested_output=5, gateway_ms=1.0, upstream_ms=2.0, images=2, audio_seconds=0.5),
        TokenCounts(input=10, output=3, reasoning=2, head=1),
    )
    order = list(CATALOGUE)
    assert [order.index(tag) for tag in metrics] == sorted(order.index(tag) for tag in metrics)
    every = {tag for tag, metric in CATALOGUE.items() if metric.kind == "record"}
    assert every - set(metrics) == {"error_isl", "fluidity_index", "reader_wait_share"}


def test_streaming_metrics_exist_only_for_streamed_replies():
    assert "time_to_first_token" in values(make_record(streamed=True))
    unstreamed = values(make_record(streamed=False))
    assert unstreamed["request_latency"] == 105  # to the last byte
    assert unstreamed["effective_latency"] == 110
    assert unstreamed["e2e_output_token_throughput"] == pytest.approx(5 / 0.105)
    for tag in (
        "time_to_first_token",
        "time_to_second_token",
        "time_to_first_output_token",
        "decode_duration",
        "inter_token_latency",
        "time_per_output_token",
        "output_token_throughput_per_user",
        "prefill_throughput_per_user",
    ):
        assert tag not in unstreamed
    assert measure(make_record(streamed=False), FIVE).lists == {}


def test_reply_with_one_stamp_has_no_decode_metrics():
    measured = measure(make_record(stamps=[50 * MS], pieces=[5]), FIVE)
    assert measured.values["time_to_first_token"] == measured.values["request_latency"] == 50
    for tag in (
        "time_to_second_token",
        "decode_duration",
        "inter_token_latency",
        "time_per_output_token",
        "output_token_throughput_per_user",
    ):
        assert tag not in measured.values
    assert measured.lists == {}


def test_latency_of_a_stream_without_content_ends_at_its_last_byte():
    metrics = values(make_record(stamps=[], pieces=[], outputs=[], first_output=None), TokenCounts(input=10))
    assert metrics["request_latency"] == 105
    assert "time_to_first_token" not in metrics


def test_second_token_with_the_first_stamp_has_no_time():
    metrics = values(make_record(stamps=[50 * MS, 60 * MS], pieces=[2, 3]))
    assert "time_to_second_token" not in metrics
    assert metrics["decode_duration"] == 10


def test_time_per_output_token_is_correct_for_bundled_tokens():
    """Four chunks of five tokens, 20 ms apart, take 4 ms per token; AIPerf's formula gives 3.16."""
    stamps = [50 * MS, 70 * MS, 90 * MS, 110 * MS]
    metrics = values(make_record(stamps=stamps, pieces=[1, 1, 1, 1]), TokenCounts(input=10, output=20, head=5))
    assert metrics["time_per_output_token"] == 4
    assert metrics["inter_token_latency"] == pytest.approx(60 / 19)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [([2, 1, 1, 1, 1], 12.5), ([1, 1, 1, 1, 1], None), ([9, 9, 9, 9, 9], None)],
)
def test_server_counts_give_time_per_output_token_only_if_every_piece_is_a_token(pieces, expected):
    metrics = values(make_record(pieces=pieces), TokenCounts(input=10, output=6, by_server=True))
    assert metrics.get("time_per_output_token") == expected
    assert metrics["inter_token_latency"] == 10


def test_reply_of_one_token_has_no_inter_token_latency():
    metrics = values(make_record(stamps=[50 * MS, 60 * MS], pieces=[1, 1]), TokenCounts(input=10, output=1, head=1))
    assert "inter_token_latency" not in metrics
    assert "time_per_output_token" not in metrics
    assert metrics["decode_duration"] == 10


def test_first_output_token_comes_after_reasoning():
    metrics = values(
        make_record(first_output=2, reasonings=["hm hm"]), TokenCounts(input=10, output=3, reasoning=2, head=1)
    )
    assert metrics["time_to_first_token"] == 50
    assert metrics["time_to_first_output_token"] == 75
    assert metrics["output_sequence_length"] == 5
    assert metrics["output_token_count"] == 3
    assert metrics["reasoning_token_count"] == 2
    assert "time_to_first_output_token" not in values(make_record(first_output=None))


def test_unknown_token_counts_leave_the_times():
    metrics = values(make_record(), TokenCounts())
    assert metrics["time_to_first_token"] == 50
    assert metrics["decode_duration"] == 50
    assert not [tag for tag in metrics if CATALOGUE[tag].unit.startswith("tokens")]
    assert "inter_token_latency" not in metrics


def test_osl_mismatch_is_relative_to_the_requested_length():
    assert values(make_record(requested_output=4))["osl_mismatch_diff_pct"] == 25
    assert values(make_record(requested_output=10))["osl_mismatch_diff_pct"] == -50
    assert "osl_mismatch_diff_pct" not in values(make_record(requested_output=None))


def test_several_choices_have_the_token_times_of_one():
    """Three choices of five tokens each are generated in parallel: a reader of one sees its token times."""
    one_choice, three = make_record(requested_output=5), make_record(requested_output=5, outputs=["x"] * 3)
    one = measure(one_choice, TokenCounts(input=3, output=5, head=1)).values
    many = measure(three, TokenCounts(input=3, output=15, head=3)).values
    for tag in (
        "inter_token_latency",
        "time_per_output_token",
        "output_token_throughput_per_user",
        "osl_mismatch_diff_pct",
    ):
        assert many[tag] == pytest.approx(one[tag]), tag
    assert many["osl_mismatch_diff_pct"] == 0
    assert (many["output_sequence_length"], one["output_sequence_length"]) == (15, 5)
    single = measure(three, TokenCounts(input=3, output=3, head=1)).values
    assert "inter_token_latency" not in single, "one token per choice leaves no gap"


def test_server_usage_is_reported_and_compared_with_client_counts():
    usage = Usage(prompt=12, completion=4, total=16, reasoning=1, cache_read=6, rejected_prediction=0)
    metrics = values(make_record(usage=usage), TokenCounts(input=10, output=3, reasoning=2, head=1))
    expected = {
        "usage_prompt_tokens": 12,
        "usage_prompt_cache_read_tokens": 6,
        "usage_completion_tokens": 4,
        "usage_reasoning_tokens": 1,
        "usage_rejected_prediction_tokens": 0,
        "usage_total_tokens": 16,
        "usage_prompt_tokens_diff_pct": 20,
        "usage_completion_tokens_diff_pct": 20,
        "usage_reasoning_tokens_diff_pct": 50,
    }
    assert {tag: value for tag, value in metrics.items() if tag.startswith("usage_")} == expected
    by_server = values(make_record(usage=usage), TokenCounts(input=12, output=3, reasoning=1, by_server=True))
    assert not [tag for tag in by_server if tag.endswith("_diff_pct")]


def test_http_phases_sum_to_the_total():
    record = make_record(dns_ns=700_001, connect_ns=1_200_002, reused=False)
    metrics = values(record)
    phases = http_phases(record)
    assert sum(phases) == record.end - record.issued
    assert metrics["http_req_total"] == sum(phases) / 1e6
    assert metrics["http_req_blocked"] == (3 * MS - 700_001 - 1_200_002) / 1e6
    assert metrics["http_req_connection_reused"] == 0
    assert metrics["http_req_connection_overhead"] == 3
    assert metrics["http_req_duration"] == 105


def test_reply_before_the_write_returns_ends_sending():
    record = make_record(sent=46 * MS, first_byte=45 * MS)
    assert http_phases(record) == (3 * MS, 0, 0, 40 * MS, 0, 65 * MS)


def test_blocked_time_is_never_negative():
    record = make_record(dns_ns=2 * MS, connect_ns=4 * MS)
    assert http_phases(record)[:3] == (0, 2 * MS, 4 * MS)


def test_request_without_reply_has_no_http_phases():
    assert "http_req_total" not in values(make_record(first_byte=None))
    assert "http_req_total" not in values(make_record(sent=None))


def test_failed_request_has_only_error_isl_and_cancelled_has_nothing():
    failure = Failure("HTTPError", "no", "server", 500)
    assert measure(make_record(failure=failure), TokenCounts(input=10)).values == {"error_isl": 10}
    assert measure(make_record(failure=failure), TokenCounts()).values == {}
    cancelled = measure(make_record(cancelled=True), FIVE)
    assert cancelled.values == cancelled.lists == {}


def test_per_chunk_usage_subtracts_the_tokens_of_the_first_stamp():
    counts = TokenCounts(input=10, output=20, head=4, by_server=True)
    measured = values(make_record(), counts)
    assert measured["inter_token_latency"] == measured["time_per_output_token"] == pytest.approx(50 / 16)
    assert measured["output_token_throughput_per_user"] == pytest.approx(16 / 0.05)
    unknown = values(make_record(), TokenCounts(input=10, output=20, by_server=True))
    assert unknown["inter_token_latency"] == pytest.approx(50 / 19)
