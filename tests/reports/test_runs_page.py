"""The data of the page of several runs."""

import json

import msgspec
import pytest

from penstock.metrics.capacity import CapacitySearch, LoadResult, SearchOutcome, parse_slo
from penstock.metrics.experiment import RunFigures, group_runs
from penstock.metrics.statistics import Stats
from penstock.reports.runs_page import RunLink, comparison_document, experiment_document
from penstock.reports.search_page import limit_cards, limit_sentence, load_table, search_notes
from penstock.settings.schema import ExperimentSettings
from support.runs import make_settings

LOADS = {1: (10.0, 20.0), 2: (19.0, 22.0), 4: (18.0, 30.0), 8: (40.0, 90.0)}
"""Concurrency to throughput and p99 of the first token. Point 4 is worse than point 2."""


def run(concurrency, trial=0, error=None):
    rate, latency = LOADS[concurrency]
    metrics = {
        "request_throughput": Stats("requests/sec", avg=rate + trial),
        "time_to_first_token": Stats("ms", avg=latency, p50=latency / 2, p99=latency + trial),
    }
    label = f"concurrency_{concurrency}"
    return RunFigures(label, label, {"concurrency": concurrency}, concurrency, metrics, "VALID", 10, 0, error)


def settings_of(concurrency, **experiment):
    settings = make_settings(goodput="ttft:50")
    return msgspec.structs.replace(
        settings,
        load=msgspec.structs.replace(settings.load, concurrency=concurrency),
        experiment=ExperimentSettings(parameters=("concurrency",), **experiment),
    )


def page_of(values):
    chart = {
        "id": "ttft-cdf",
        "title": "T",
        "x_label": "ms",
        "y_label": "%",
        "x": values,
        "series": [{"values": [0, 100]}],
    }
    return {"distributions": [chart]}


def sweep(runs, trials=1):
    links = [
        RunLink(
            f"{run.label} {n}", f"{run.label}/report.html", settings_of(run.parameters["concurrency"]), None, run.label
        )
        for n, run in enumerate(runs)
    ]
    document = experiment_document(group_runs(runs, 0.95), settings_of(1, runs=trials), links, "0")
    return json.loads(msgspec.json.encode(document))


def test_curve_shows_throughput_against_latency_with_pareto_front_and_objective():
    document = sweep([run(concurrency) for concurrency in LOADS])
    curve = document["charts"][0]
    assert curve["id"] == "curve-request-throughput"
    assert curve["x"] == [20, 22, 30, 90]
    points, front = curve["series"]
    assert points["values"] == [10, 19, 18, 40]
    assert points["names"] == ["1", "2", "4", "8"]
    assert front["values"] == [10, 19, None, 40]
    assert curve["marks"] == [{"x": 50, "label": "objective"}]
    assert any("concurrency 1, concurrency 2, concurrency 8" in text for text in document["conclusions"])


def test_percentiles_of_few_requests_are_marked_and_unobservable_figures_are_left_out():
    few, many = run(1), run(2)
    for point, count in ((few, 367), (many, 368)):
        point.metrics["time_to_first_token"] = Stats("ms", avg=20.0, p50=10.0, p99=20.0, count=count)
    document = sweep([few, many._replace(unobservable=["time_to_first_token"]), run(4)])
    columns, rows = document["overview"]["columns"], document["overview"]["rows"]
    cells = [row[columns.index("TTFT p99 (ms)")] for row in rows]
    assert cells[0] == {"value": 20, "unsupported": True}
    assert cells[1] is None
    assert cells[2] == {"value": 30}
    assert document["notes"] == [
        "Time to First Token cannot be observed at concurrency 2: the tokens arrived closer together than reads can tell apart."
    ]
    assert "by-concurrency-time-to-first-token" not in [chart["id"] for chart in document["charts"]]


def test_points_of_one_run_are_compared_with_the_first():
    (changes,) = sweep([run(concurrency) for concurrency in LOADS])["differences"]
    assert changes["rows"][0][:2] == ["concurrency 2", "+90.0 %"]


def test_repeated_runs_have_intervals():
    document = sweep([run(1, trial) for trial in range(3)] + [run(2, trial) for trial in range(3)], trials=3)
    cell = document["overview"]["rows"][0][1]
    assert cell["value"] == 11
    assert cell["interval"] == pytest.approx([11 - 2.484, 11 + 2.484], abs=0.001)
    assert len(document["differences"]) == 2
    assert document["charts"][0]["series"][0]["low"][0] == pytest.approx(cell["interval"][0])


def test_changed_settings_are_listed_for_one_run_of_each_point():
    changed = sweep([run(1), run(2), run(1, 1)])["changed"]
    assert changed["columns"] == ["Setting", "concurrency_1 0", "concurrency_2 1"]
    assert changed["rows"] == [["load.concurrency", "1", "2"]]


@pytest.fixture(scope="module")
def search():
    slos = (parse_slo("p90 time_to_first_token<50"), parse_slo("request_error_rate<2"))
    found = CapacitySearch(slos, 1, 8, whole=True)
    found.add(LoadResult(2, 200, (0, 0), "pass", observed=(20.0, 0.0)))
    found.add(LoadResult(4, 300, (15, 0), "pass", is_final=True, observed=(40.0, 0.0)))
    found.add(LoadResult(8, 30, (20, 3), "fail", is_final=True, observed=(90.0, 10.0)))
    return SearchOutcome("concurrency", slos, found.result())


def test_search_shows_limit_decisions_and_objectives(search):
    variations = group_runs([run(concurrency) for concurrency in (2, 4, 8)], 0.95)
    settings = settings_of(2, find_max="concurrency", slos=tuple(slo.text for slo in search.slos))
    links = [RunLink("a", "a.html", settings)]
    document = json.loads(msgspec.json.encode(experiment_document(variations, settings, links, "0", search)))
    limit, rate = document["cards"]
    assert (limit["value"], limit["more"][0]) == ("4", "4 passes, 8 fails")
    assert rate == {"label": "Requests/s at concurrency 4", "value": 18, "more": []}
    assert document["conclusions"] == [limit_sentence(search)]
    assert document["loads"]["columns"][3:5] == ["Time to First Token p90 < 50 ms", "misses (allowed 10 %)"]
    assert document["loads"]["rows"][1] == ["concurrency 4", {"status": "pass"}, 300, 40, "15 (5 %)", 0, "0 (0 %)", ""]
    figure, misses, failed = document["charts"][:3]
    assert figure["x"] == misses["x"] == [2, 4, 8]
    assert figure["series"][0]["values"] == [20, 40, 90]
    assert figure["series"][0]["names"] == ["pass", "pass", "fail"]
    assert figure["lines"] == [{"y": 50, "label": "objective < 50 ms"}]
    assert figure["marks"] == [{"x": pytest.approx(search.result.limit.estimate), "label": "limit: 4 to 8"}]
    observed, fit = misses["series"]
    assert observed["values"] == pytest.approx([0, 5, 66.6667])
    assert observed["low"][1] < 5 < observed["high"][1]
    assert fit["values"] == pytest.approx(observed["values"])
    assert misses["lines"][0]["y"] == pytest.approx(10)
    assert failed["title"] == "Failed requests by concurrency"


def test_search_shows_the_certificates_of_the_loads_that_decided(search):
    distorted = search._replace(certificates={4.0: "INVALID", 8.0: "VALID"})
    assert [row[-1] for row in load_table(distorted)["rows"]] == ["", "INVALID", "VALID"]
    (note,) = search_notes(distorted)
    assert "concurrency 4" in note
    assert "INVALID" in note


def test_search_that_was_interrupted_says_that_its_ends_were_not_visited_a_last_time():
    slos = (parse_slo("p90 time_to_first_token<50"),)
    found = CapacitySearch(slos, 1, 8, whole=True)
    found.add(LoadResult(2, 200, (0,), "pass", is_final=True, observed=(20.0,)))
    found.add(LoadResult(4, 30, (30,), "fail", observed=(90.0,)))
    search = SearchOutcome("concurrency", slos, found.result())
    assert "at least 2 and below 4" in limit_sentence(search)
    (note,) = search_notes(search)
    assert "concurrency 4 rests on a quick test" in note


def test_search_without_a_level_that_passes_has_no_limit():
    slos = (parse_slo("p90 time_to_first_token<5"),)
    found = CapacitySearch(slos, 1, 8, whole=True)
    found.add(LoadResult(1, 30, (30,), "fail", observed=(20.0,)))
    (card,) = limit_cards(SearchOutcome("concurrency", slos, found.result()), [])
    assert card["value"] == "none"


def test_failed_runs_are_named():
    document = sweep([run(1), run(2, error="No request succeeded.")])
    assert document["notes"] == ["concurrency_2 is left out: No request succeeded."]
    assert document["overview"]["rows"][1][-1] == {"status": "failed"}


def test_comparison_shows_differences_with_intervals_and_both_distributions():
    side = {"name": "a", "urls": ["http://one"], "requests": 5, "verdict": "VALID"}
    row = {
        "name": "Time to First Token",
        "unit": "ms",
        "statistic": "avg",
        "a": 20.0,
        "b": 22.0,
        "difference": 2.0,
        "percent": 10.0,
        "low": 1.5,
        "high": 2.5,
        "verdict": "A is better",
    }
    comparison = {"a": side, "b": side | {"name": "b"}, "conclusion": "A is better.", "notes": ["n"], "rows": [row]}
    links = [
        RunLink("A", "a.html", settings_of(1), page_of([10, 20])),
        RunLink("B", "b.html", settings_of(2), page_of([15, 25])),
    ]
    document = json.loads(msgspec.json.encode(comparison_document([comparison], links, "0")))
    (table,) = document["differences"]
    change = {"value": 2, "signed": True, "interval": [1.5, 2.5]}
    assert table["rows"] == [["Time to First Token (ms)", "avg", 20, 22, change, "+10.0 %", "A is better"]]
    (chart,) = document["charts"]
    assert chart["x"] == [10, 15, 20, 25]
    assert [series["values"] for series in chart["series"]] == [[0, 50, 100, 100], [0, 0, 50, 100]]
    assert document["conclusions"] == ["A is better."]
