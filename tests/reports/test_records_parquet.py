"""profile_export.parquet, read back with pyarrow and DuckDB."""

import os

import msgspec
import pytest

from penstock.cli import main
from penstock.endpoints.reply import Failure
from support.records import make_record
from support.runs import EPOCH, PROFILING, WARMUP, make_settings, report_run

pa = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed.")
FAILURE = Failure("Timeout", "It took too long.", "server", 504)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    settings = make_settings()
    settings = msgspec.structs.replace(settings, output=msgspec.structs.replace(settings.output, exports=("parquet",)))
    records = [make_record(phase=0), *(make_record(phase=1, number=n, at=n, request_id=f"r{n}") for n in range(5))]
    records.append(make_record(phase=1, number=5, failure=FAILURE, stamps=[], request_id="bad"))
    return report_run(tmp_path_factory.mktemp("run"), records, phases=(WARMUP, PROFILING), settings=settings)


def test_every_request_is_a_row_with_the_values_of_the_jsonl_file(reported):
    table = pa.read_table(reported.path("profile_export.parquet"))
    rows = table.to_pylist()
    assert len(rows) == 7
    for row, line in zip(rows, reported.lines, strict=True):
        assert row["x_request_id"] == line["metadata"]["x_request_id"]
        assert row["phase"] == line["metadata"]["benchmark_phase"]
        for tag, metric in line["metrics"].items():
            assert row[tag] == metric["value"], tag
    assert rows[1]["request_start_ns"] == EPOCH + 5_000_000
    assert table.schema.field("request_latency").metadata == {b"unit": b"ms"}
    assert table.schema.metadata[b"benchmark_id"] == b"d3cd2bf9da9d"


def test_failed_request_has_its_error_and_no_latency(reported):
    row = pa.read_table(reported.path("profile_export.parquet")).to_pylist()[-1]
    assert (row["error_type"], row["error_fault"], row["request_latency"]) == ("Timeout", "server", None)


def test_duckdb_reads_the_file(reported):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed.")
    query = (
        "SELECT count(*), median(time_to_first_token), max(len(inter_chunk_latency)) "
        f"FROM '{reported.path('profile_export.parquet')}' WHERE phase = 'profiling' AND error_type IS NULL"
    )
    assert duckdb.sql(query).fetchall() == [(5, 50.0, 4)]


def test_file_is_written_only_if_it_was_asked_for(reported, tmp_path):
    assert "profile_export.parquet" not in os.listdir(report_run(tmp_path, [make_record()]).folder)
    assert not [name for name in os.listdir(reported.folder) if name.endswith(".new")]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--export", "csv"], "--export must be parquet, not 'csv'."),
        (["--export", "parquet", "--export-level", "summary"], "summary writes no records; leave one of them out."),
    ],
)
def test_wrong_export_is_refused_before_anything_is_sent(flags, sentence, capsys):
    assert main.main(["profile", "--model", "m", *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_missing_package_is_named_before_anything_is_sent(monkeypatch, capsys):
    monkeypatch.setattr("penstock.extras.find_spec", lambda _: None)
    assert main.main(["profile", "--model", "m", "--export", "parquet"]) == 2
    assert "pip install 'penstock[parquet]'" in capsys.readouterr().err
