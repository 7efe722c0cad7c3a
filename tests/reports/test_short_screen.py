"""The final screen without --verbose: what it shows, and that it fits 45 lines of 100 columns."""

import io
import re

import msgspec
import pytest

from penstock.cli.screen import show
from penstock.metrics.certificate import UNOBSERVABLE, Certificate, Judgement
from penstock.records.record import Failure
from penstock.reports.artifacts import Artifacts
from penstock.reports.console import console_text
from support.records import MS, make_record
from support.runs import make_header, report_run

SERVER_ERROR = Failure("HTTPError", "the model is overloaded: " + 50 * "please try again, ", "server", 503)
HIDDEN = "Inter Token Latency cannot be observed: the tokens arrived closer together than reads can tell apart."
VALID = Certificate("VALID", [], {}, "kernel timestamps", load=Judgement("VALID"))


def paced(count, **changes):
    """Return requests one after the other, whose tokens arrive 10 ms apart."""
    return [make_record(number=i, at=120 * i, issued=int(120 * i * MS), **changes) for i in range(count)]


@pytest.fixture
def screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    def draw(reported, **options):
        text = io.StringIO()
        show(reported.summary, Artifacts.of(reported.folder, make_header()), file=text, **options)
        return text.getvalue()

    return draw


def rows(text):
    """Return the names of the metrics in the first table."""
    table = text[text.index("Metrics\n") : text.index("Uncertainty")]
    return re.findall(r"^ *([A-Z][\w .-]+?)(?: \(.*\))?  +[\d,]+\.\d\d", table, re.MULTILINE)


def test_plain_run_shows_the_verdict_and_the_headline_figures(tmp_path, screen):
    text = screen(report_run(tmp_path, paced(64), certificate=VALID))
    assert text.startswith("Certificate: VALID (kernel timestamps)\n")
    assert rows(text) == [
        "Time to First Token",
        "Request Latency",
        "Inter Token Latency",
        "Output Token Throughput Per User",
        "Output Sequence Length",
        "Output Token Count",
        "Input Sequence Length",
        "Output Token Throughput",
        "Request Throughput",
        "Request Count",
    ]
    assert re.search(r"Metric +avg +min +max +p99 +p90 +p50 +std\n", text)
    assert len(re.findall("Uncertainty", text)) == 1
    assert "Confidence Intervals" not in text


@pytest.mark.parametrize(("failed", "fewest"), [(0, 5), (20, 3)])
def test_run_with_errors_and_many_notes_fits_45_lines(tmp_path, screen, failed, fewest):
    records = [*paced(64), *paced(failed, failure=SERVER_ERROR, stamps=[], pieces=[])]
    reported = report_run(tmp_path, records, certificate=VALID, incomplete_reason="The time was up.")
    reported.summary.reply_notes = [f"Note {i}." for i in range(9)]
    text = screen(reported)
    lines = text.splitlines()
    assert len(lines) <= 45
    assert max(len(line) for line in lines if "/" not in line) <= 100
    shown = [line for line in lines if line.startswith("  - ")]
    assert shown[0] == "  - The time was up."
    assert fewest <= len(shown) <= 5
    (more,) = re.findall(r"^  (\d+) more: --verbose$", text, re.MULTILINE)
    full = screen(reported, show_timeline=True)
    assert int(more) + len(shown) == full[full.index("Notes:") :].count("\n  - ")
    assert ("Requests Failed" in text) is bool(failed)
    if failed:
        assert re.search(r"\n +20  server   503  HTTPError  the model is overloaded: please try .*…\n", text)
    for everything in (full, console_text(reported.summary)):
        assert "Note 8." in everything


def test_one_note_is_shown_even_if_reasons_fill_the_screen(tmp_path, screen):
    certificate = msgspec.structs.replace(VALID, reasons=[f"Reason {i}." for i in range(40)])
    text = screen(report_run(tmp_path, paced(64), certificate=certificate, incomplete_reason="The time was up."))
    assert "  - The time was up." in text


def test_metric_that_cannot_be_observed_is_left_out_with_its_reason(tmp_path, screen):
    judged = {"inter_token_latency": Judgement(UNOBSERVABLE, [HIDDEN])}
    certificate = msgspec.structs.replace(VALID, metrics=judged)
    run = report_run(tmp_path, paced(64), certificate=certificate)
    text = screen(run)
    assert "Inter Token Latency" not in rows(text)
    assert " ".join(text.split()).count(HIDDEN) == 1
    assert "Time to First Token" in rows(text)
    assert run.json["inter_token_latency"]["avg"] == 12.5, "files keep it"
    assert run.json["certificate"]["metrics"]["inter_token_latency"] == {"verdict": UNOBSERVABLE, "reasons": [HIDDEN]}
    assert "Inter Token Latency (ms), UNOBSERVABLE" in run.read("profile_export_console.txt")


def test_metric_that_the_client_spoiled_stays_and_is_marked(tmp_path, screen):
    judged = {"inter_token_latency": Judgement("INVALID", ["The client was late."])}
    certificate = msgspec.structs.replace(VALID, verdict="INVALID", reasons=["The client was late."], metrics=judged)
    text = screen(report_run(tmp_path, paced(64), certificate=certificate))
    assert re.search(r"Inter Token Latency \(ms\), INVALID +12\.50", text)


def test_intervals_and_bounds_are_in_one_table(tmp_path, screen):
    coalesced = {"coalesced": [0], "earliest": [34 * MS]}
    text = screen(report_run(tmp_path, paced(64, **coalesced), certificate=VALID))
    table = text[text.index("Uncertainty") :]
    assert re.search(r"First Token \(ms\) +50\.00 ±0\.00 \[33\.00–50\.00\] +50\.00\? \[33\.00–50\.00\]\n", table)
    assert re.search(r"Request Throughput \(requests/sec\) .* ±", table)
    assert "? Too few independent requests for an interval" in table


def test_failed_run_shows_no_tables_of_figures(tmp_path, screen):
    text = screen(report_run(tmp_path, paced(3, failure=SERVER_ERROR, stamps=[], pieces=[]), certificate=VALID))
    assert "3 of 3 Requests Failed" in text
    assert "Metrics" not in text
    assert "Uncertainty" not in text
    assert len(text.splitlines()) < 20


def test_unstreamed_run_says_what_would_show_the_time_to_first_token(tmp_path, screen):
    unstreamed = {"streamed": False, "stamps": [], "pieces": [], "first_output": None}
    run = report_run(tmp_path / "a", paced(5, **unstreamed), streaming=False, certificate=VALID)
    hint = "The replies were not streamed: --streaming measures the time to first token and the time between tokens."
    assert " ".join(screen(run).split()).count(hint) == 1
    assert hint in " ".join(run.read("profile_export_console.txt").split())
    assert "--streaming" not in screen(report_run(tmp_path / "b", paced(5), certificate=VALID))


def test_endpoint_without_streams_has_no_hint(tmp_path, screen):
    unstreamed = {"streamed": False, "stamps": [], "pieces": [], "first_output": None}
    run = report_run(tmp_path, paced(5, **unstreamed), streaming=False, endpoint="embeddings", certificate=VALID)
    text = screen(run)
    assert "--streaming" not in text
    assert rows(text)[-2:] == ["Request Throughput", "Request Count"]


def test_tables_that_a_flag_asks_for_follow_the_files(tmp_path, screen):
    text = screen(report_run(tmp_path, paced(5), certificate=VALID), show_http=True)
    assert text.index("JSON Export") < text.index("Penstock | HTTP Phases")


def test_latency_from_the_intended_times_is_shown_if_requests_waited(tmp_path, screen):
    records = [make_record(number=i, at=120 * i, intended=int((120 * i - 80) * MS)) for i in range(1, 9)]
    assert "Effective Latency" in screen(report_run(tmp_path, records, certificate=VALID))
