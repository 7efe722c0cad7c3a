"""The files and the table of time slices."""

import csv
import json
import os

import pytest

from penstock.metrics.metric import Measures
from penstock.metrics.phase_stats import PhaseStats
from penstock.metrics.slices import SliceBuilder
from penstock.records.record import Failure
from penstock.reports.console import console_text
from support.records import MS, make_record
from support.runs import EPOCH, PROFILING, WARMUP, report_run
from support.scratch import SCRATCH

# Starts at 5, 205, 405, 605, …: with slices of 1 s from 5 ms on, five requests each. None starts in the second slice. The last
# request ends 2,110 ms after the first start, so that the third slice is cut.
STARTS = [*range(0, 1000, 200), 2000]
FAILED = Failure("Internal Server Error", "broken", "server", 500)
ENDED = {"stamps": [], "pieces": [], "outputs": [], "streamed": False}


@pytest.fixture(scope="module")
def sliced(tmp_path_factory):
    records = [make_record(at=at, number=n) for n, at in enumerate(STARTS)]
    records += [
        make_record(at=2005, number=6, failure=FAILED, **ENDED),
        make_record(at=-500, phase=0, number=0),
    ]
    for record in records[:-1]:
        record.phase = 1
    folder = tmp_path_factory.mktemp("sliced")
    return report_run(folder, records, slice_s=1.0, phases=(WARMUP, PROFILING))


def timeslices(reported):
    return json.loads(reported.read("profile_export_aiperf_timeslices.json"))


def test_requests_are_in_the_slice_of_their_start(sliced):
    first, last = timeslices(sliced)["timeslices"]
    start = EPOCH + 5 * MS
    assert (first["start_ns"], first["end_ns"]) == (start, start + 1000 * MS)
    assert "is_complete" not in first
    assert (last["start_ns"], last["end_ns"]) == (start + 2000 * MS, start + 2110 * MS)
    assert last["is_complete"] is False
    assert [part["request_count"]["avg"] for part in (first, last)] == [5, 1]
    assert last["error_request_count"]["avg"] == 1
    assert first["request_latency"]["count"] == 5
    assert first["inter_chunk_latency"]["count"] == 20


def test_throughput_is_over_the_length_of_the_slice(sliced):
    first, last = timeslices(sliced)["timeslices"]
    assert first["benchmark_duration"]["avg"] == 1
    assert first["request_throughput"]["avg"] == 5
    assert first["output_token_throughput"]["avg"] == 25
    assert last["request_throughput"]["avg"] == pytest.approx(1 / last["benchmark_duration"]["avg"])


def test_metrics_over_time_are_those_of_the_slice(sliced):
    """Each request takes 105 ms, 50 ms of which are prefill."""
    first, _ = timeslices(sliced)["timeslices"]
    assert first["effective_concurrency"]["avg"] == pytest.approx(0.525)
    assert first["effective_prefill_concurrency"]["avg"] == pytest.approx(0.25)
    assert first["effective_decode_throughput"]["avg"] == pytest.approx(20)
    assert first["active_prefill_throughput"]["avg"] == pytest.approx(15 / 0.25)


def test_request_that_spans_slices_is_in_flight_in_each(tmp_path):
    long = {"stamps": [100 * MS, 2900 * MS], "pieces": [1, 1], "end": 2900 * MS}
    records = [make_record(at=-5, **long), make_record(at=1500, number=1)]
    records[0].start = 0
    parts = timeslices(report_run(tmp_path, records, slice_s=1.0))["timeslices"]
    assert [part["request_count"]["avg"] for part in parts] == [1, 1]
    assert parts[0]["effective_concurrency"]["avg"] == pytest.approx(1)
    assert parts[1]["effective_concurrency"]["avg"] == pytest.approx(1.105)


def test_csv_has_a_row_for_each_statistic(sliced):
    rows = list(csv.DictReader(sliced.read("profile_export_aiperf_timeslices.csv").splitlines()))
    assert list(rows[0]) == ["Timeslice", "Start_NS", "End_NS", "Metric", "Unit", "Stat", "Value"]
    first = timeslices(sliced)["timeslices"][0]
    latency = {row["Stat"]: row for row in rows if (row["Timeslice"], row["Metric"]) == ("0", "Request Latency")}
    assert latency["p99"] == {
        "Timeslice": "0",
        "Start_NS": str(first["start_ns"]),
        "End_NS": str(first["end_ns"]),
        "Metric": "Request Latency",
        "Unit": "ms",
        "Stat": "p99",
        "Value": "100.00",
    }
    assert list(latency) == [
        "avg",
        "min",
        "max",
        "sum",
        "p1",
        "p5",
        "p10",
        "p25",
        "p50",
        "p75",
        "p90",
        "p95",
        "p99",
        "std",
    ]
    assert {row["Timeslice"] for row in rows} == {"0", "1"}


def test_large_runs_are_sliced_through_files():
    def sliced(**limits):
        builder = SliceBuilder(SCRATCH, 0.2, lambda: PhaseStats(SCRATCH, with_timeline=False), **limits)
        for number, at in enumerate(STARTS):
            builder.add(make_record(at=at, number=number), Measures({"request_latency": 10.0 + number}, {}))
        return list(builder.slices((0, 2_000_000_000), lambda windows: [{} for _ in windows]))

    assert sliced(buffer_bytes=1) == sliced()
    assert len(sliced()) > 1


def test_slices_are_written_only_on_request(tmp_path):
    reported = report_run(tmp_path, [make_record()])
    assert not [name for name in os.listdir(reported.folder) if "timeslices" in name]
    assert "Time Slices" not in reported.read("profile_export_console.txt")
    reported = report_run(tmp_path, [make_record()], slice_s=0.05, prefix="mine")
    assert {"mine_timeslices.json", "mine_timeslices.csv"} < set(os.listdir(reported.folder))


@pytest.mark.parametrize("width", [60, 140])
def test_screen_has_a_row_for_each_slice(sliced, width):
    text = console_text(sliced.summary, width=width)
    assert "0.00–1.00" in text
    assert "2.00–2.1" in text
    assert all(len(line) <= width for line in text.splitlines())
