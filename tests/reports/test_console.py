"""The final screen."""

import io
import re
import subprocess
import sys

import msgspec
import pytest

from penstock.cli.screen import show
from penstock.metrics.certificate import Certificate
from penstock.records.record import Failure, Usage
from penstock.reports.artifacts import Artifacts
from penstock.reports.console import console_text
from support.records import MS, make_record
from support.runs import BODY, PROFILING, make_header, report_run

SERVER_ERROR = Failure("HTTPError", '{"error": "[bold]mock[/bold] says\n500"}', "server", 500)
CERTIFICATE = Certificate("DEGRADED", ["1.2 % of the TTFTs are upper bounds."], {})


@pytest.fixture
def mixed(tmp_path):
    records = [
        make_record(),
        make_record(at=105, stamps=[50 * MS], pieces=[5], finish=["length"], coalesced=[0], earliest=[20 * MS]),
        make_record(failure=SERVER_ERROR, at=200),
        make_record(cancelled=True),
    ]
    return report_run(tmp_path, records, certificate=CERTIFICATE, incomplete_reason="The time was up.")


def row(text, name):
    line = next(line for line in text.splitlines() if name in line)
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_table_has_the_columns_and_values_of_the_summary(mixed):
    text = mixed.read("profile_export_console.txt")
    assert "Penstock | LLM Metrics" in text
    head = next(line for line in text.splitlines() if "Metric" in line and "avg" in line)
    names = [cell.strip() for cell in head.strip("┃").split("┃")]
    assert names == ["Metric", "avg", "min", "max", "p99", "p90", "p50", "std"]
    assert row(text, "Time to First Token (ms)") == [
        "Time to First Token (ms)",
        *["50.00"] * 3,
        *["50.00?"] * 3,
        "0.00",
    ]
    assert row(text, "Request Throughput (requests/sec)")[2:] == ["-"] * 6
    assert row(text, "Output Token Count (tokens)")[1] == "5.00"
    assert row(text, "Request Latency (error-adjusted)")[1:] == ["-", "50.00", "-", "-", "-", "100.00?", "-"]
    assert max(map(len, text.splitlines())) <= 140
    assert "\x1b" not in text


def test_failures_come_first_with_their_owner(mixed):
    text = mixed.read("profile_export_console.txt")
    assert text.index("1 of 3 Requests Failed") < text.index("LLM Metrics")
    assert row(text, "HTTPError") == ["1", "server", "500", "HTTPError", "[bold]mock[/bold] says 500"]


def test_notes_name_everything_that_limits_the_results(mixed):
    text = " ".join(mixed.read("profile_export_console.txt").split())
    for sentence in (
        "Certificate: DEGRADED - 1.2 % of the TTFTs are upper bounds.",
        "Finish reasons: length 1, stop 1",
        "Tokens counted by: words (builtin)",
        "The time was up.",
        "Cancelled by the client and not counted: 1 request.",
        "with a single timestamp: 1 of 2.",
        "Time to First Token (ms) 50.00 [34.00–50.00] 50.00 [34.00–50.00]",
    ):
        assert sentence in text


def test_percentiles_of_few_requests_are_marked(tmp_path):
    records = [make_record(number=i, at=200 * i) for i in range(40)]
    text = report_run(tmp_path, records).read("profile_export_console.txt")
    assert row(text, "Time to First Token (ms)")[4:7] == ["50.00?", "50.00", "50.00"]
    assert "? Too few requests for this percentile; needed are 368 for p99." in text
    assert "? Too few independent requests for an interval" in text


def test_mark_is_explained_only_if_it_is_in_the_table(tmp_path):
    """A table without percentiles has no mark, even if other tables would have it."""
    latencies = make_record(), make_record(at=200)
    text = report_run(tmp_path / "few", latencies).read("profile_export_console.txt")
    assert text.count("? Too few requests") == 1
    failed = [make_record(failure=SERVER_ERROR, number=i, at=200 * i) for i in range(2)]
    text = report_run(tmp_path / "none", failed).read("profile_export_console.txt")
    assert "?" not in text


@pytest.mark.parametrize(
    ("failed", "cell"), [(0, "0.00 (0.00 to 100.00)"), (3, "100.00 (0.00 to 100.00)"), (1, "33.33 (0.84 to 90.57)")]
)
def test_share_has_the_range_in_which_it_lies(tmp_path, failed, cell):
    records = [make_record(number=i, at=200 * i, failure=SERVER_ERROR if i < failed else None) for i in range(3)]
    text = report_run(tmp_path, records).read("profile_export_console.txt")
    assert row(text[text.index("Confidence Intervals") :], "Error Rate")[2] == cell


def test_intervals_and_the_steady_state_are_shown(tmp_path):
    records = [
        make_record(number=i, at=200 * i, stamps=[(50 + i % 7) * MS, 100 * MS], pieces=[1, 4]) for i in range(400)
    ]
    run = report_run(tmp_path, records)
    text = run.read("profile_export_console.txt")
    assert "Penstock | 95 % Confidence Intervals" in text
    table = text[text.index("Confidence Intervals") :]
    assert row(table, "Time to First Token (ms)")[1] == "whole run"
    assert row(table, "Time to First Token (ms)")[2].startswith("52.99 ±0.")
    assert "steady state" not in table  # it is the whole run
    assert "400 requests; 0 requests before it." in " ".join(text.split())
    figures = run.json["confidence_intervals"]["metrics"]["time_to_first_token"]
    assert figures["avg"]["low"] < 52.99 < figures["avg"]["high"]
    assert figures["p50"]["low"] <= 53 <= figures["p50"]["high"]
    assert run.json["steady_state"]["metrics"]["time_to_first_token"]["count"] == 400


def test_interval_of_the_throughput_contains_the_throughput_of_the_whole_run(tmp_path):
    """The load rises and falls at the ends of a run, which its throughput covers."""
    records = [
        make_record(number=i, at=200 * i, end=(200 * i + 1700) * MS, stamps=[50 * MS, 1600 * MS], pieces=[1, 4])
        for i in range(400)
    ]
    run = report_run(tmp_path, records)
    interval = run.json["confidence_intervals"]["metrics"]["request_throughput"]["avg"]
    assert interval["low"] <= run.json["request_throughput"]["avg"] < 4.95 < interval["high"]


def test_steady_state_after_slow_requests_has_rows_of_its_own(tmp_path):
    latencies = [800 if i < 40 else 105 + i % 7 for i in range(400)]
    records = [
        make_record(
            number=i, at=1000 * i, end=(1000 * i + 5 + latency) * MS, stamps=[50 * MS, latency * MS], pieces=[1, 4]
        )
        for i, latency in enumerate(latencies)
    ]
    text = report_run(tmp_path, records).read("profile_export_console.txt")
    table = text[text.index("Confidence Intervals") :]
    whole, steady = row(table, "Request Latency (ms)"), row(table[table.index("Request Latency") :], "steady state")
    assert whole[2].startswith("177.")
    assert steady[2].startswith("108.")
    assert "360 requests; 40 requests before it." in " ".join(text.split())


def test_requests_that_were_cut_off_bound_the_percentiles(tmp_path):
    records = [make_record(number=i, at=200 * i) for i in range(97)]
    cut = {"cancelled": True, "stamps": [], "pieces": [], "first_output": None, "outputs": [""], "finish": []}
    records += [make_record(number=97 + i, at=200 * (97 + i), **cut) for i in range(3)]
    run = report_run(tmp_path, records)
    assert run.json["censored_requests"]["requests"] == 3
    bounds = run.json["censored_requests"]["bounds"]["request_latency"]
    assert bounds["p90"] == {"low": 100.0, "high": 100.0}
    assert bounds["p99"] == {"low": 105.0, "high": None}
    assert "3 requests had not ended when the run was cut off." in run.read("profile_export_console.txt")


def test_run_that_was_cut_off_before_a_reply_has_no_bounds_to_tell(tmp_path):
    cut = {"cancelled": True, "stamps": [], "pieces": [], "first_output": None, "outputs": [""], "finish": []}
    text = report_run(tmp_path, [make_record(number=i, at=20 * i, **cut) for i in range(3)]).read(
        "profile_export_console.txt"
    )
    assert "3 requests had not ended when the run was cut off.\n" in text
    assert "With them" not in text


def test_clean_run_has_no_notes(tmp_path):
    text = report_run(tmp_path, [make_record(issued=0)]).read("profile_export_console.txt")
    assert "Notes" not in text
    assert "Failed" not in text
    assert "N/A" not in text


def test_token_count_differences_are_noted(tmp_path):
    usage = Usage(prompt=100, completion=5)
    text = report_run(tmp_path, [make_record(usage=usage, requested_output=50)]).read("profile_export_console.txt")
    assert "differ by more than 10 % for 1 request" in text
    assert "Replies that differ from the requested length by more than 5 % or 50 tokens: 1." in text


@pytest.mark.parametrize(("payloads", "note"), [([0, 1, 1], "2 of 3."), ([1], "1 of 1."), ([0], None)])
def test_requests_whose_text_cannot_be_counted_are_noted(tmp_path, payloads, note):
    """The second body has no messages."""
    conversations = [("a", [BODY]), ("b", [b'{"prompt": 5}'])]
    records = [make_record(conversation=each, payload=each, number=i) for i, each in enumerate(payloads)]
    text = " ".join(
        report_run(tmp_path, records, conversations=conversations).read("profile_export_console.txt").split()
    )
    sentence = "Requests without an input length, because no text was found in their bodies: "
    assert f"{sentence}{note}" in text if note else sentence not in text


def test_endpoint_without_texts_has_no_note_about_input_lengths(tmp_path):
    run = report_run(tmp_path, [make_record()], endpoint="audio_transcription", texts=lambda _: [])
    assert "input length" not in run.read("profile_export_console.txt")


def test_error_table_is_limited_to_ten_groups(tmp_path):
    records = [make_record(failure=Failure("HTTPError", f"message {chr(97 + i)}", "server", 500)) for i in range(25)]
    text = report_run(tmp_path, records).read("profile_export_console.txt")
    assert "and 15 more failures of 15 other kinds." in text


def test_warmup_failures_have_their_own_table(tmp_path):
    from support.runs import PROFILING, WARMUP

    text = report_run(
        tmp_path, [make_record(failure=SERVER_ERROR), make_record(phase=1)], phases=[WARMUP, PROFILING]
    ).read("profile_export_console.txt")
    assert "1 of 1 Warmup Requests Failed" in text


def test_tables_over_time_are_shown_only_on_request(mixed):
    text = console_text(mixed.summary)
    assert "Tokens In Flight" not in text
    assert "Average load: " in text
    assert "in prefill" in text
    text = console_text(mixed.summary, show_timeline=True)
    for shown in (
        "LLM Metrics: Effective",
        "Tokens In Flight (tokens)",
        "LLM Metrics: Active",
        "Active Decode Throughput",
    ):
        assert shown in text


def test_http_table_is_shown_only_on_request(mixed):
    assert "HTTP" not in mixed.read("profile_export_console.txt").replace("HTTPError", "")
    text = console_text(mixed.summary, show_http=True)
    assert "Penstock | HTTP Phases" in text
    assert row(text, "HTTP Total Time (ms)")[1] == "108.00"


@pytest.mark.parametrize(
    ("width", "columns"),
    [(60, 3), (80, 5), (100, 5), (140, 7), (200, 7)],
)
def test_table_fits_every_width_without_cutting_values(tmp_path, width, columns):
    """Times are in the thousands of ms, as with large models."""
    records = [
        make_record(stamps=[5000 * MS, 9100 * MS], pieces=[1, 4], end=9200 * MS),
        make_record(failure=SERVER_ERROR),
    ]
    text = console_text(report_run(tmp_path, records).summary, width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if "Metric" in line and "avg" in line)
    assert len(re.findall(r"avg|min|max|p99|p90|p50|std", head)) == columns
    cells = [line for line in lines if "9,100.00" in line]
    assert cells, "no figure is cut"


def shown(reported, **options):
    text = io.StringIO()
    show(reported.summary, Artifacts.of(reported.folder, make_header()), file=text, **options)
    return text.getvalue()


@pytest.mark.parametrize("verbose", [False, True])
def test_pipe_is_140_columns_wide_unless_columns_is_set(mixed, monkeypatch, verbose):
    monkeypatch.delenv("COLUMNS", raising=False)
    text = shown(mixed, show_timeline=verbose)
    assert "\x1b" not in text
    assert 80 < max(map(len, without_paths(text))) <= 140
    assert re.search(r" std\b", text)
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, without_paths(shown(mixed, show_timeline=verbose)))) <= 80
    monkeypatch.setenv("COLUMNS", "many")
    assert shown(mixed, show_timeline=verbose) == text


def without_paths(text):
    return [line for line in text.splitlines() if "/" not in line]


def test_verbose_screen_has_total_token_throughput_and_benchmark_duration(mixed, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    text = shown(mixed, show_timeline=True)
    throughput = mixed.json["total_token_throughput"]["avg"]
    assert row(text, "Total Token Throughput")[1] == f"{throughput:,.2f}"
    rows = [text.index(f"{name} Throughput (") for name in ("Input Token", "Total Token", "Request")]
    assert rows == sorted(rows)
    assert f"\nBenchmark Duration: {mixed.json['benchmark_duration']['avg']:.2f} sec\nCSV Export: " in text


def test_paths_are_not_wrapped(mixed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert f"JSON Export: {mixed.path('profile_export_aiperf.json')}\n" in shown(mixed)
    text = shown(mixed, show_timeline=True)
    assert f"JSON Export: {mixed.path('profile_export_aiperf.json')}\n" in text
    assert f"CSV Export: {mixed.path('profile_export_aiperf.csv')}\n" in text
    assert f"Per-Request Export: {mixed.path('profile_export.jsonl')}\n" in text


def test_terminal_output_is_coloured(mixed, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = Terminal()
    show(mixed.summary, Artifacts.of(mixed.folder, make_header()), file=text)
    assert "\x1b[" in text.getvalue()


def test_ascii_stream_gets_the_table(mixed):
    buffer = io.BytesIO()
    with io.TextIOWrapper(buffer, encoding="ascii") as file:
        show(mixed.summary, Artifacts.of(mixed.folder, make_header()), file=file)
        file.flush()
        assert b"Penstock | LLM Metrics" in buffer.getvalue()


def test_rich_is_not_imported_before_output():
    code = "import sys, penstock.reports.artifact_writer; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_resent_requests_are_a_row_only_if_there_are_any(tmp_path):
    first, second = report_run(tmp_path / "a", [make_record()]), report_run(tmp_path / "b", [make_record(retries=1)])
    assert "Resent Request Count" not in first.read("profile_export_console.txt")
    assert row(second.read("profile_export_console.txt"), "Resent Request Count")[1] == "1.00"
    assert second.json["resent_request_count"]["avg"] == 1


def test_plain_run_tells_that_the_server_fell_behind_its_rate(tmp_path):
    """200 requests/s are due, and the server completes 100."""
    records = [
        make_record(
            phase=0, number=n, intended=n * 5 * MS, issued=n * 5 * MS, start=n * 5 * MS, end=(n * 10 + 110) * MS
        )
        for n in range(400)
    ]
    phase = msgspec.structs.replace(PROFILING, load={"arrivals": {"type": "constant"}})
    reported = report_run(tmp_path, records, phases=(phase,))
    assert reported.summary.overload.due == pytest.approx(200, rel=0.03)
    assert reported.summary.overload.completed == pytest.approx(100, rel=0.03)
    text = " ".join(console_text(reported.summary).split())
    assert "requests/s; the queue grew, from" in text
    assert "It is overloaded: percentiles are not stationary." in text
