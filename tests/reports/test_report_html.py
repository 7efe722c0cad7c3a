"""The data of report.html."""

import math
import os
from itertools import pairwise

import msgspec
import pytest

from penstock.endpoints.reply import Failure
from penstock.metrics.bounds import FigureBounds
from penstock.metrics.certificate import UNOBSERVABLE, Certificate, Judgement
from penstock.metrics.intervals import FigureInterval
from penstock.metrics.overload import Overload
from penstock.metrics.steady_state import SteadyState
from penstock.records.log import LoggedPhase
from penstock.reports.checklist import checklist
from penstock.reports.report_html import page, read_page
from support.records import MS, make_record
from support.runs import PROFILING, WARMUP, make_header, make_settings, report_run

FAILURE = Failure("HTTPError", "503 </script><script>alert(1)</script>", "server", 503)
CERTIFICATE = Certificate("DEGRADED", ["The client was slow."], {"stamps": "kernel", "content_stamps": 10}, "a summary")


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Two warm-up requests, forty that succeed and five that fail, in eight sessions of five turns and five of one."""
    records = [make_record(phase=0, number=n, at=-500) for n in range(2)]
    for n in range(40):
        slow = n * MS
        stamps = [(50 + n) * MS, (60 + n) * MS, (75 + n) * MS, (80 + n) * MS, (100 + n) * MS]
        record = make_record(phase=1, number=n % 8, turn=n // 8, at=n // 8 * 200, request_id=f"r{n}", stamps=stamps)
        record.end += slow
        record.response_id, record.model = "chatcmpl-1", "served"
        records.append(record)
    records += [
        make_record(phase=1, number=8 + n, at=300, failure=FAILURE, stamps=[], request_id=f"f{n}") for n in range(5)
    ]
    return report_run(
        tmp_path_factory.mktemp("run"),
        records,
        phases=(WARMUP, PROFILING),
        certificate=CERTIFICATE,
        goodput="time_to_first_token:70",
    )


@pytest.fixture(scope="module")
def document(reported):
    return read_page(reported.path("report.html"))


def charts(document):
    return {chart["id"]: chart for part in ("distributions", "timeline", "gaps") for chart in document[part]}


def test_page_is_one_file_that_loads_nothing(reported):
    text = reported.read("report.html")
    assert text.startswith("<!doctype html>")
    assert "default-src 'none'" in text
    assert "{{" not in text.replace("{{}}", "").split("<script>")[0]
    assert 'src="' not in text
    assert "url(" not in text


def test_text_of_a_server_cannot_end_the_data(reported, document):
    text = reported.read("report.html")
    assert "alert(1)</script>" not in text
    assert document["errors"][0]["message"] == FAILURE.message


def test_verdict_and_headline_figures_come_first(document):
    assert list(document)[5:8] == ["verdict", "counts", "cards"]
    assert document["verdict"] == {"verdict": "DEGRADED", "summary": "a summary", "reasons": ["The client was slow."]}
    assert document["counts"] == {"succeeded": 40, "failed": 5, "cancelled": 0, "warmup": 2}


def test_figures_are_those_of_the_summary(reported, document):
    for card in document["cards"]:
        stats = reported.summary.metrics[card["tag"]]
        assert card["value"] == pytest.approx(getattr(stats, card["statistic"] or "avg"), rel=1e-5)
    rows = {row["tag"]: row["cells"] for row in document["latencies"]["rows"]}
    ttft = reported.summary.metrics["time_to_first_token"]
    names = document["latencies"]["columns"]
    expected = [getattr(ttft, name) for name in names]
    assert [cell["value"] for cell in rows["time_to_first_token"]] == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A run whose time to first token is INVALID and whose inter-token latency cannot be observed."""
    verdicts = {
        "time_to_first_token": Judgement("INVALID", ["The client was late."]),
        "inter_token_latency": Judgement(UNOBSERVABLE, ["Too close together."]),
    }
    certificate = Certificate("INVALID", ["The client was late."], {}, metrics=verdicts)
    records = [make_record(number=n, at=200 * n) for n in range(20)]
    return read_page(report_run(tmp_path_factory.mktemp("j"), records, certificate=certificate).path("report.html"))


def test_metric_that_cannot_be_observed_is_left_out_with_its_reason(judged):
    cards, rows = ([each["tag"] for each in part] for part in (judged["cards"], judged["latencies"]["rows"]))
    assert "inter_token_latency" not in cards
    assert "inter_token_latency" not in rows
    assert judged["verdict"]["reasons"] == ["The client was late.", "Too close together."]
    assert "inter_token_latency" in [row["tag"] for row in judged["metrics"]["rows"]], "the table of all metrics has it"


def test_metric_that_the_client_spoiled_is_marked(judged):
    verdicts = {each["tag"]: each["verdict"] for each in (*judged["cards"], *judged["latencies"]["rows"])}
    assert verdicts["time_to_first_token"] == "INVALID"
    assert verdicts["request_latency"] is None


def test_bounds_and_intervals_are_shown_where_the_summary_has_them(reported):
    from penstock.reports import run_page

    summary = msgspec.structs.replace(
        reported.summary,
        bounds={"request_latency": {"p50": FigureBounds(119.5, 110.0, 119.5)}},
        intervals={"request_latency": {"p50": FigureInterval(118.0, 121.0), "p99": FigureInterval()}},
    )
    cell = run_page._cell(summary, "request_latency", "p50")
    assert cell["bounds"] == [110, 119.5]
    assert cell["interval"] == [118, 121]
    assert "interval" not in run_page._cell(summary, "request_latency", "p99")


def test_distributions_hold_every_successful_profiled_request(document):
    found = charts(document)
    for name in ("ttft", "itl", "latency"):
        assert sum(v for v in found[f"{name}-histogram"]["series"][0]["values"] if v) == 40
        shares = found[f"{name}-cdf"]["series"][0]["values"]
        assert shares == sorted(shares)
        assert shares[-1] == 100
    cdf = found["ttft-cdf"]
    assert (cdf["x"][0], cdf["x"][-1]) == (50, 89)
    assert cdf["marks"] == [{"x": 70, "label": "objective"}]
    middle = min(range(len(cdf["x"])), key=lambda i: abs(cdf["x"][i] - 69.5))
    assert cdf["series"][0]["values"][middle] == pytest.approx(50, abs=2)


def test_time_line_counts_every_request_and_token(document):
    found = charts(document)
    rate = found["request-rate"]
    edges = [*rate["x"], rate["end"]]

    def total(series):
        return sum(v * (end - begin) for v, (begin, end) in zip(series["values"], pairwise(edges), strict=True))

    totals = {s["label"]: total(s) for s in rate["series"]}
    assert totals == pytest.approx({"sent": 47, "succeeded": 42, "failed": 5}, rel=1e-3)
    assert rate["marks"] == [{"x": 0, "label": "profiling begins"}]
    assert total(found["token-rate"]["series"][0]) == pytest.approx(42 * 5, rel=1e-3)
    assert total(found["in-flight"]["series"][0]) == pytest.approx(47 * 0.105 + sum(range(40)) / 1000, rel=1e-3)
    highest = max(v for v in found["latency-time"]["series"][-1]["values"] if v is not None)
    assert highest == 139


def test_gaps_are_shown_by_their_position(reported, document):
    (chart,) = document["gaps"]
    assert chart["x"] == [2, 3, 4, 5]
    assert chart["series"][0]["values"] == pytest.approx([10, 15, 5, 20], rel=0.011)
    positions = reported.summary.gap_profile.positions
    for series in chart["series"]:
        assert series["values"] == pytest.approx([getattr(each, series["label"]) for each in positions], rel=1e-5)


def test_gaps_of_the_warmup_are_not_in_the_distribution(document):
    assert sum(charts(document)["gaps-histogram"]["series"][0]["values"]) == 40 * 4


def test_turns_of_a_session_share_a_lane(document):
    lanes = document["lanes"]
    assert len(lanes["bars"]) == 45
    of_session = {}
    for lane, _, _, _, _, session, _ in lanes["bars"]:
        of_session.setdefault(session, set()).add(lane)
    assert all(len(of_session[n]) == 1 for n in range(8))
    assert {bar[4] for bar in lanes["bars"]} == {0, 1}


def test_slowest_and_failed_requests_have_time_lines(document):
    slowest = document["slowest"]
    assert [request["id"] for request in slowest[:3]] == ["r39", "r38", "r37"]
    assert slowest[0]["latency"] == 139
    assert (slowest[0]["reply"], slowest[0]["model"]) == ("chatcmpl-1", "served")
    assert slowest[0]["parts"] == [
        ["waited for an earlier reply", 0, 2],
        ["client delay", 2, 5],
        ["send", 5, 6],
        ["wait for the server", 6, 45],
        ["first content", 45, 94],
        ["decode", 94, 149],
    ]
    assert slowest[0]["stamps"] == [94, 104, 119, 124, 144]
    assert [request["id"] for request in document["failed"]] == ["f0", "f1", "f2"]
    assert document["failed"][0]["error"]["code"] == 503


def test_settings_machine_and_command_are_shown(document):
    changed = {name: value for name, value, changed in document["settings"] if changed}
    assert changed["goodput"] == "time_to_first_token:70"
    assert changed["endpoint.streaming"] == "true"
    assert "endpoint.timeout_s" not in changed
    assert document["command"] == "aiperf profile --model 'mock'"
    assert document["machine"]["cpus"] == 2


def test_checklist_says_what_the_run_did(document):
    items = {item["rule"]: item for item in document["checklist"]}
    assert items["State the load model"]["text"] == "Closed loop: 1 conversation at a time."
    assert items["Leave the warm-up out"]["status"] == "done"
    assert items["Keep the client off the server's machine"]["status"] == "missing"
    assert items["Have enough requests for the percentiles"]["status"] == "missing"
    good = items["Say which share of the requests meets the objectives"]["text"]
    assert good.startswith("21 of 45 requests")


def test_checklist_has_the_steady_state_and_the_certainty_of_figures(reported):
    header = make_header(goodput="time_to_first_token:70")
    load = msgspec.structs.replace(header.settings.load, rate=5.0, concurrency=None)
    header = msgspec.structs.replace(header, settings=msgspec.structs.replace(header.settings, load=load))
    steady = SteadyState(1.5, 9.25, 35, 5, {}, {})
    intervals = {"good_request_fraction": {"avg": FigureInterval(0.4, 0.6)}}
    overload = Overload(40.0, 38.0, 5, 60)
    summary = msgspec.structs.replace(reported.summary, steady_state=steady, overload=overload, intervals=intervals)
    items = {item.rule: item for item in checklist(summary, header)}
    found = items["Find the steady state, without ramp and drain, and report it beside the whole run"]
    assert (found.status, found.text) == (
        "done",
        "From 1.5 s to 9.2 s (MSER-5), with 35 requests; 5 requests before it.",
    )
    assert "overloaded" in items["Tell when the server does not keep up with the load"].text
    assert items["Give confidence intervals that respect autocorrelation"].status == "done"
    assert "40.0% to 60.0%" in items["Say which share of the requests meets the objectives"].text
    assert items["Send at absolute times, not after sleeps"].status == "done"


def test_steady_state_is_shown_beside_the_whole_run_and_on_the_time_line(tmp_path):
    # The first 50 of 400 requests are slower.
    records = [make_record(number=n, at=20 * n, request_id=f"r{n}") for n in range(400)]
    for record in records[:50]:
        record.stamps = [stamp + 900 * MS for stamp in record.stamps]
        record.end += 900 * MS
    run = report_run(tmp_path, records, phases=(PROFILING,))
    steady = run.summary.steady_state
    assert steady.head >= 50
    document = read_page(run.path("report.html"))
    shown = document["latencies"]["steady"]
    rows = {row["tag"]: row["cells"] for row in shown["rows"]}
    assert rows["request_latency"][0]["value"] == pytest.approx(steady.metrics["request_latency"].avg, rel=1e-5)
    assert shown["differs"]
    marks = {mark["label"]: mark["x"] for mark in charts(document)["request-rate"]["marks"]}
    assert marks["steady state"] == pytest.approx(steady.begin_s)


def test_percentiles_of_too_few_requests_are_marked(document):
    rows = {row["tag"]: row["cells"] for row in document["latencies"]["rows"]}
    marked = [cell.get("unsupported", False) for cell in rows["request_latency"]]
    assert dict(zip(document["latencies"]["columns"], marked, strict=True)) == {
        "avg": False,
        "p50": False,
        "p90": False,
        "p95": True,
        "p99": True,
        "max": False,
    }


def test_no_html_writes_no_page(tmp_path):
    settings = make_settings()
    settings = msgspec.structs.replace(settings, output=msgspec.structs.replace(settings.output, html=False))
    run = report_run(tmp_path, [make_record()], settings=settings)
    assert "report.html" not in os.listdir(run.folder)


@pytest.mark.parametrize("records", [[], [make_record(failure=FAILURE, stamps=[])], [make_record(cancelled=True)]])
def test_run_without_a_success_has_a_page(tmp_path, records):
    run = report_run(tmp_path, records)
    document = read_page(run.path("report.html"))
    assert document["counts"]["succeeded"] == 0
    assert document["distributions"] == []


def test_replies_that_are_not_streamed_have_no_gaps(tmp_path):
    record = make_record(streamed=False, stamps=[], pieces=[], first_output=None)
    document = read_page(report_run(tmp_path, [record], streaming=False).path("report.html"))
    assert document["gaps"] == []
    assert [chart["id"] for chart in document["distributions"]] == ["latency-histogram", "latency-cdf"]


def test_large_run_is_sampled_and_the_page_stays_small(tmp_path):
    long = make_record(number=1600, stamps=[(50 + n) * MS for n in range(1000)], pieces=[1] * 1000, end=1055 * MS)
    run = report_run(tmp_path, [*(make_record(number=n, at=n) for n in range(1600)), long])
    document = read_page(run.path("report.html"))
    assert len(document["lanes"]["bars"]) < 1600
    assert "A part of the run" in document["lanes"]["caption"]
    assert len(document["slowest"][0]["stamps"]) == 300
    assert document["slowest"][0]["stamps_of"] == 1000
    assert os.path.getsize(run.path("report.html")) < 600_000


def test_phases_of_other_points_do_not_count(tmp_path):
    phases = (PROFILING, LoggedPhase(0, "profiling", "profiling"))
    document = read_page(report_run(tmp_path, [make_record(), make_record(phase=1)], phases=phases).path("report.html"))
    assert document["counts"]["succeeded"] == 2
    assert math.isclose(charts(document)["request-rate"]["x"][0], 0)


def test_title_is_escaped():
    assert b"<title>&lt;b&gt; " in page({"title": "<b>"})
