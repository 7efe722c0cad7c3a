"""The final screen."""

import io
import re
import subprocess
import sys

import pytest

from penstock.cli.screen import show
from penstock.metrics.certificate import Certificate
from penstock.records.record import Failure, Usage
from penstock.reports.artifacts import Artifacts
from penstock.reports.console import console_text
from support.runs import MS, header, record, run

BROKEN = Failure("HTTPError", '{"error": "[bold]mock[/bold] says\n500"}', "server", 500)
CERTIFICATE = Certificate("DEGRADED", ["1.2 % of the TTFTs are upper bounds."], {})


@pytest.fixture
def mixed(tmp_path):
    records = [
        record(),
        record(at=105, stamps=[50 * MS], pieces=[5], finish=["length"], coalesced=1, first_coalesced=True),
        record(failure=BROKEN, at=200),
        record(cancelled=True),
    ]
    return run(tmp_path, records, certificate=CERTIFICATE, incomplete_reason="The time was up.")


def row(text, name):
    line = next(line for line in text.splitlines() if name in line)
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_the_table(mixed):
    text = mixed.read("profile_export_console.txt")
    assert "Penstock | LLM Metrics" in text
    head = next(line for line in text.splitlines() if "Metric" in line and "avg" in line)
    names = [cell.strip() for cell in head.strip("┃").split("┃")]
    assert names == ["Metric", "avg", "min", "max", "p99", "p90", "p50", "std"]
    assert row(text, "Time to First Token (ms)") == ["Time to First Token (ms)", *["50.00"] * 6, "0.00"]
    assert row(text, "Request Throughput (requests/sec)")[2:] == ["-"] * 6
    assert row(text, "Output Token Count (tokens)")[1] == "5.00"
    assert row(text, "Request Latency (error-adjusted)")[1:] == ["-", "50.00", "-", "-", "-", "100.00", "-"]
    assert max(map(len, text.splitlines())) <= 140
    assert "\x1b" not in text


def test_failures_come_first_and_say_whose_they_are(mixed):
    text = mixed.read("profile_export_console.txt")
    assert text.index("1 of 3 Requests Failed") < text.index("LLM Metrics")
    assert row(text, "HTTPError") == ["1", "server", "500", "HTTPError", "[bold]mock[/bold] says 500"]


def test_what_a_reader_must_know(mixed):
    text = " ".join(mixed.read("profile_export_console.txt").split())
    for sentence in (
        "Certificate: DEGRADED - 1.2 % of the TTFTs are upper bounds.",
        "Finish reasons: length 1, stop 1",
        "Tokens counted by: words (builtin)",
        "The time was up.",
        "not counted: 1 request.",
        "one time stamp: 1 of 2 replies.",
        "upper bound for 1 request:",
    ):
        assert sentence in text


def test_a_clean_run_has_no_notes(tmp_path):
    text = run(tmp_path, [record(issued=0)]).read("profile_export_console.txt")
    assert "Notes" not in text
    assert "Failed" not in text
    assert "N/A" not in text


def test_counts_that_disagree(tmp_path):
    usage = Usage(prompt=100, completion=5)
    text = run(tmp_path, [record(usage=usage, requested_output=50)]).read("profile_export_console.txt")
    assert "differ by more than 10 % for 1 request" in text
    assert "Off the length asked for by more than 5 % or 50 tokens: 1 reply." in text


def test_many_kinds_of_failures(tmp_path):
    records = [record(failure=Failure("HTTPError", f"message {chr(97 + i)}", "server", 500)) for i in range(25)]
    text = run(tmp_path, records).read("profile_export_console.txt")
    assert "and 15 more failures of 15 other kinds." in text


def test_failures_of_the_warmup(tmp_path):
    from support.runs import PROFILING, WARMUP

    text = run(tmp_path, [record(failure=BROKEN), record(phase=1)], phases=[WARMUP, PROFILING]).read(
        "profile_export_console.txt"
    )
    assert "1 of 1 Warmup Requests Failed" in text


def test_http_phases_when_asked_for(mixed):
    assert "HTTP" not in mixed.read("profile_export_console.txt").replace("HTTPError", "")
    text = console_text(mixed.summary, show_http=True)
    assert "Penstock | HTTP Phases" in text
    assert row(text, "HTTP Total Time (ms)")[1] == "108.00"


@pytest.mark.parametrize(
    ("width", "columns"),
    [(60, 3), (80, 5), (100, 6), (140, 7), (200, 7)],
)
def test_every_width(tmp_path, width, columns):
    """With times in the thousands, as large models have them."""
    records = [record(stamps=[5000 * MS, 9100 * MS], pieces=[1, 4], end=9200 * MS), record(failure=BROKEN)]
    text = console_text(run(tmp_path, records).summary, width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if "Metric" in line and "avg" in line)
    assert len(re.findall(r"avg|min|max|p99|p90|p50|std", head)) == columns
    cells = [line for line in lines if "9,100.00" in line]
    assert cells, "no figure is cut"


def shown(done, **options):
    text = io.StringIO()
    show(done.summary, Artifacts.of(done.folder, header()), file=text, **options)
    return text.getvalue()


def test_a_pipe_is_140_wide_or_what_columns_says(mixed, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    text = shown(mixed)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines() if "│" in line) <= 140
    assert " std " in text
    monkeypatch.setenv("COLUMNS", "80")
    assert max(len(line) for line in shown(mixed).splitlines() if "│" in line or "  -" in line) <= 80
    monkeypatch.setenv("COLUMNS", "many")
    assert shown(mixed) == text


def test_paths_stay_on_one_line(mixed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = shown(mixed)
    assert f"JSON Export: {mixed.path('profile_export_aiperf.json')}\n" in text
    assert f"CSV Export: {mixed.path('profile_export_aiperf.csv')}\n" in text
    assert f"Per-Request Export: {mixed.path('profile_export.jsonl')}\n" in text


def test_a_terminal_gets_colour(mixed, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = Terminal()
    show(mixed.summary, Artifacts.of(mixed.folder, header()), file=text)
    assert "\x1b[" in text.getvalue()


def test_an_encoding_that_lacks_our_lines(mixed):
    buffer = io.BytesIO()
    with io.TextIOWrapper(buffer, encoding="ascii") as file:
        show(mixed.summary, Artifacts.of(mixed.folder, header()), file=file)
        file.flush()
        assert b"Penstock | LLM Metrics" in buffer.getvalue()


def test_rich_waits_until_something_is_shown():
    code = "import sys, penstock.reports.write_artifacts; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
