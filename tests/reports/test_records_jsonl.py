"""The per-request file."""

from hashlib import sha256

from penstock.records.record import Failure
from support.records import MS, make_record
from support.runs import BODY, EPOCH, PROFILING, WARMUP, report_run

AIPERF_METADATA = [
    "session_num",
    "x_request_id",
    "x_correlation_id",
    "conversation_id",
    "turn_index",
    "credit_issued_ns",
    "request_start_ns",
    "request_ack_ns",
    "request_end_ns",
    "worker_id",
    "record_processor_id",
    "benchmark_phase",
    "phase_index",
    "profiling_index",
    "phase_name",
    "phase_kind",
    "was_cancelled",
    "context_overflow_skip",
    "agent_depth",
    "root_correlation_id",
]
PENSTOCK_METADATA = ["intended_ns", "url", "streamed", "coalesced_stamps", "finish_reasons", "body_sha256"]
SERVER_ERROR = Failure("HTTPError", 'mock says "500", 100 %', "server", 500)


def test_line_has_all_metadata_and_metrics(tmp_path):
    (line,) = report_run(
        tmp_path, [make_record(number=3, coalesced=[1, 2], earliest=[MS, MS], worker=1)], dataset="synthetic"
    ).lines
    assert list(line) == ["metadata", "metrics"]
    metadata = line["metadata"]
    assert list(metadata) == AIPERF_METADATA + PENSTOCK_METADATA
    assert metadata == {
        "session_num": 3,
        "x_request_id": "request",
        "x_correlation_id": "correlation",
        "conversation_id": "session-0",
        "turn_index": 0,
        "credit_issued_ns": EPOCH + 2 * MS,
        "request_start_ns": EPOCH + 5 * MS,
        "request_ack_ns": EPOCH + 45 * MS,
        "request_end_ns": EPOCH + 105 * MS,
        "worker_id": "worker_1",
        "record_processor_id": "worker_1",
        "benchmark_phase": "profiling",
        "phase_index": 0,
        "profiling_index": 0,
        "phase_name": "profiling",
        "phase_kind": "profiling",
        "was_cancelled": False,
        "context_overflow_skip": False,
        "agent_depth": 0,
        "root_correlation_id": "correlation",
        "intended_ns": EPOCH,
        "url": "http://localhost:8000",
        "streamed": True,
        "coalesced_stamps": 2,
        "finish_reasons": ["stop"],
        "body_sha256": sha256(BODY).hexdigest(),
    }
    metrics = line["metrics"]
    assert metrics["time_to_first_token"] == {"value": 50, "unit": "ms"}
    assert metrics["output_sequence_length"] == {"value": 5, "unit": "tokens"}
    assert metrics["inter_chunk_latency"] == {"value": [10, 15, 5, 20], "unit": "ms"}


def test_percent_unit_is_written(tmp_path):
    (line,) = report_run(tmp_path, [make_record(requested_output=10)]).lines
    assert line["metrics"]["osl_mismatch_diff_pct"] == {"value": -50, "unit": "%"}


def test_nanosecond_precision_is_kept(tmp_path):
    (line,) = report_run(tmp_path, [make_record(stamps=[50 * MS + 1, 60 * MS + 3], pieces=[1, 4])]).lines
    assert line["metrics"]["time_to_first_token"]["value"] == 50.000001
    assert line["metrics"]["inter_chunk_latency"]["value"] == [10.000002]
    assert line["metadata"]["request_end_ns"] == EPOCH + 65 * MS + 3


def test_failed_request_keeps_its_times(tmp_path):
    (line,) = report_run(
        tmp_path, [make_record(failure=SERVER_ERROR, first_byte=None, stamps=[], pieces=[], outputs=[])]
    ).lines
    assert list(line) == ["metadata", "metrics", "error"]
    assert line["metrics"] == {"error_isl": {"value": 3, "unit": "tokens"}}
    assert line["error"] == {"code": 500, "type": "HTTPError", "message": 'mock says "500", 100 %', "fault": "server"}
    assert "request_ack_ns" not in line["metadata"]
    assert line["metadata"]["request_start_ns"] == EPOCH + 5 * MS
    assert line["metadata"]["request_end_ns"] == EPOCH + 110 * MS


def test_failure_without_status_has_no_code(tmp_path):
    (line,) = report_run(tmp_path, [make_record(failure=Failure("Timeout", "late", "server"))], tokenizer=None).lines
    assert line["error"] == {"type": "Timeout", "message": "late", "fault": "server"}
    assert line["metrics"] == {}


def test_retried_request_has_its_retry_count(tmp_path):
    first, again = report_run(tmp_path, [make_record(), make_record(number=1, retries=1)]).lines
    assert "retries" not in first["metadata"]
    assert again["metadata"]["retries"] == 1


def test_cancelled_request_has_no_fault(tmp_path):
    (line,) = report_run(tmp_path, [make_record(cancelled=True)]).lines
    assert line["metrics"] == {}
    assert line["metadata"]["was_cancelled"] is True
    assert line["metadata"]["cancellation_time_ns"] == line["metadata"]["request_end_ns"] == EPOCH + 110 * MS
    assert line["error"]["code"] == 499
    assert "fault" not in line["error"]


def test_warmup_and_profiling_are_labelled(tmp_path):
    lines = report_run(tmp_path, [make_record(phase=0), make_record(phase=1)], phases=[WARMUP, PROFILING]).lines
    warmup, profiling = (line["metadata"] for line in lines)
    assert (warmup["benchmark_phase"], warmup["phase_index"], warmup["phase_name"]) == ("warmup", 0, "warmup")
    assert "profiling_index" not in warmup
    assert (profiling["benchmark_phase"], profiling["phase_index"], profiling["profiling_index"]) == ("profiling", 1, 0)


def test_http_trace_has_the_phases_that_happened(tmp_path):
    records = [
        make_record(connect_ns=MS, dns_ns=MS, reused=False),
        make_record(failure=SERVER_ERROR, sent=None, first_byte=None, status=0),
    ]
    succeeded, failed = report_run(tmp_path, records, http_trace=True).lines
    assert succeeded["trace_data"] == {
        "trace_type": "penstock",
        "request_send_start_ns": EPOCH + 5 * MS,
        "request_send_end_ns": EPOCH + 6 * MS,
        "request_chunks_count": 1,
        "request_bytes_total": 512,
        "response_status_code": 200,
        "response_receive_start_ns": EPOCH + 45 * MS,
        "response_chunks_count": 7,
        "response_bytes_total": 4096,
        "response_receive_end_ns": EPOCH + 110 * MS,
        "sending_ns": MS,
        "waiting_ns": 39 * MS,
        "receiving_ns": 65 * MS,
        "duration_ns": 105 * MS,
        "blocked_ns": MS,
        "dns_lookup_ns": MS,
        "connecting_ns": MS,
    }
    assert list(failed) == ["metadata", "metrics", "trace_data", "error"]
    assert set(failed["trace_data"]) == {
        "trace_type",
        "request_send_start_ns",
        "request_bytes_total",
        "connection_reused_ns",
    }
