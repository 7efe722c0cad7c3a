"""A new artifact is a file with a sink and a line in the sink_table."""

import json
import os

import pytest

from penstock.reports import sink_table
from penstock.reports.artifacts import Artifacts
from support.records import make_record
from support.runs import PROFILING, WARMUP, make_header, report_run

MODULE = """
import json

from penstock.reports.artifacts import replacing
from penstock.reports.sink import Sink


class RecordCounts(Sink):
    def __init__(self, context, path):
        super().__init__(context, path)
        self.counts = {}
        self.phases = []

    def begin(self, phase):
        self.phases.append(phase.name)
        self.counts[phase.name] = 0

    def add(self, record, measures):
        assert "request_latency" in measures.values
        self.counts[self.phases[record.phase]] += 1

    def finish(self, summary):
        with replacing(self.path) as file:
            file.write(json.dumps(self.counts | {"succeeded": summary.succeeded}).encode())
"""


@pytest.fixture
def record_counts(tmp_path, monkeypatch):
    (tmp_path / "record_counts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    entry = sink_table.SinkEntry("record_counts", "{export}_counts.json", "record_counts:RecordCounts")
    monkeypatch.setattr(sink_table, "SINKS", (entry, *sink_table.SINKS))


@pytest.mark.usefixtures("record_counts")
def test_new_sink_writes_its_file(tmp_path):
    records = [make_record(), *(make_record(number=number, phase=1) for number in range(3))]
    reported = report_run(tmp_path, records, phases=[WARMUP, PROFILING])
    counts = json.loads(reported.read("profile_export_counts.json"))
    assert counts == {"warmup": 1, "profiling": 3, "succeeded": 3}


@pytest.mark.usefixtures("record_counts")
def test_file_of_a_new_sink_is_removed_with_those_of_an_earlier_run():
    assert os.path.join("runs", "mine_counts.json") in Artifacts.of("runs", make_header(prefix="mine")).every


def test_json_summary_is_finished_last():
    assert sink_table.SINKS[-1].name == "summary_json"


def test_every_file_of_a_run_may_be_written_at_any_export_level():
    summary, records = (Artifacts.of("x", make_header(level=level, slice_s=1.0)) for level in ("summary", "records"))
    assert summary.every == records.every
    assert set(records.paths.values()) < set(records.every)  # without those of telemetry
    assert (summary.records, records.records) == (None, os.path.join("x", "profile_export.jsonl"))
