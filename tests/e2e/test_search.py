"""The search for the largest load under service level objectives, against the mock."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.records.log import SEARCH_LOAD, RunLog
from penstock.reports.report_html import read_page
from support.programs import MockServer, Outcome, Program, wait_for

SYNTHETIC = ("--tokenizer", "builtin", "--streaming", "--isl", 10)


def search_of(done: Outcome) -> Any:
    return json.loads(done.text("profile_export_penstock_search.json"))


def test_search_reports_the_curve_and_the_limit(program: Program, mock: Callable[..., MockServer]) -> None:
    """The limits are so far from the times of the mock that a slow machine does not matter."""
    server = mock(ttft=1)
    easy = program.profile(
        server.url,
        *(*SYNTHETIC, "--osl", 2, "--find-max", "concurrency", "--search-max", 2),
        *("--slo", "p50 time_to_first_token<60000", "--slo", "request_error_rate<50"),
        texts=None,
    )
    assert easy.status == 0, easy
    found = search_of(easy)
    assert found["found"]
    assert found["limit"] == {"estimate": 2.0, "low": 2.0, "high": None}
    assert [level["concurrency"] for level in found["levels"]] == [1, 2]
    assert {level["decision"] for level in found["levels"]} == {"pass"}
    assert all(level["misses"] == [0, 0] for level in found["levels"])
    assert "The objectives are met up to concurrency 2, the highest that was tried" in easy.out
    assert (easy.folder / "concurrency_2" / "profile_export_aiperf.json").exists()
    page = read_page(str(easy.folder / "report.html"))
    assert [row[1]["status"] for row in page["loads"]["rows"]] == ["pass", "pass"]
    assert [f"{run['name']}/report.html" for run in page["runs"]] == [run["href"] for run in page["runs"]]
    again = program.run("report", easy.folder, "--output-dir", easy.folder / "again")
    assert again.status == 0, again
    assert json.loads((easy.folder / "again" / "profile_export_penstock_search.json").read_text()) == found
    assert read_page(str(easy.folder / "again" / "report.html"))["loads"] == page["loads"]

    hard = program.profile(
        server.url,
        *(*SYNTHETIC, "--osl", 2, "--search-recipe", "max-concurrency-under-sla", "--ttft-sla-ms", 0.001),
        *("--concurrency-max", 4),
        texts=None,
    )
    assert hard.status == 1, hard
    assert not search_of(hard)["found"]
    assert search_of(hard)["objectives"] == ["p95 time_to_first_token<0.001"]
    assert "No concurrency met the objectives, not even 1." in hard.out


@pytest.mark.slow
def test_search_for_a_request_rate(program: Program, mock: Callable[..., MockServer]) -> None:
    done = program.profile(
        mock(ttft=1).url,
        *(*SYNTHETIC, "--osl", 2, "--find-max", "request-rate", "--search-min", 20, "--search-max", 40),
        *("--slo", "request_error_rate<50", "--arrival-pattern", "constant"),
        texts=None,
    )
    assert done.status == 0, done
    found = search_of(done)
    assert found["parameter"] == "request_rate"
    assert found["limit"] == {"estimate": 40.0, "low": 40.0, "high": None}
    assert [level["request_rate"] for level in found["levels"]] == [20, 40]
    assert "The objectives are met up to request rate 40, the highest that was tried" in done.out
    assert "request_rate_40: passes; of " in done.out
    for name in ("request_rate_20", "request_rate_40", "request_rate_40_visit_2"):
        summary = json.loads((done.folder / name / "profile_export_aiperf.json").read_text())
        assert summary["is_complete"]
        assert summary["request_count"]["avg"] >= 20


def test_interrupted_search_reports_the_interval_so_far(program: Program, mock: Callable[..., MockServer]) -> None:
    running = program.begin(
        mock(ttft=20).url,
        *(*SYNTHETIC, "--osl", 2, "--find-max", "concurrency", "--slo", "p50 time_to_first_token<60000"),
        texts=None,
    )
    log = running.folder / "log"
    wait_for(lambda: (log / "runner.log").exists() and len(list(RunLog(str(log)).decisions(SEARCH_LOAD))) > 1)
    running.interrupt()
    done = running.wait()
    assert done.status == 130, done
    limit = search_of(done)["limit"]
    assert limit["low"] >= 2
    assert limit["high"] is None
    assert f"What was found at the concurrency {limit['low']:g} rests on a quick test of few requests" in " ".join(
        done.out.split()
    )


def test_run_ends_at_its_target_precision(program: Program, mock: Callable[..., MockServer]) -> None:
    done = program.profile(
        mock(ttft=1).url,
        *(*SYNTHETIC, "--osl", 2, "--request-count", 3000, "--concurrency", 2),
        *("--until", "avg request_latency +-60000"),
        texts=None,
    )
    assert done.status == 0, done
    outcome = done.summary["until"]
    assert outcome["reached"]
    assert outcome["ended_run"]
    assert outcome["requests"] >= 100
    assert done.summary["is_complete"]
    assert "The run ended because avg request_latency +-60000 was reached, after" in " ".join(done.out.split())
    again = program.run("report", done.folder, command="penstock")
    assert "stopped before its end" not in again.out, again


def test_precision_needs_a_limit(program: Program) -> None:
    done = program.profile("http://127.0.0.1:9", *SYNTHETIC, "--until", "avg request_latency ±5%", texts=None)
    assert done.status == 2
    assert "give --request-count or --benchmark-duration" in done.err


def test_metric_of_streams_is_refused_before_anything_is_sent(program: Program) -> None:
    done = program.profile(
        "http://127.0.0.1:9",
        *("--use-server-token-count", "--request-count", 200, "--until", "p50 time_to_first_token ±5%"),
    )
    assert done.status == 2
    assert "only streamed replies have time_to_first_token; add --streaming, or choose another metric." in done.err
