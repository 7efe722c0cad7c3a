"""Figures from samples: differences of counters, averages of gauges, restarts, names of several servers."""

from __future__ import annotations

import gzip
import socket

import pytest

from penstock.records.log import LoggedPhase, Sample
from penstock.telemetry.scrape import MetricsUrl, Scraper, _Page
from penstock.telemetry.server_metrics import SOURCE, ProfilingWindow, ServerMetrics, ServerMetricsBuilder, window_of
from penstock.wire.connection import Origin
from support.http_server import HttpReply, HttpServer

URL = "http://server/metrics"
WINDOW = ProfilingWindow(100, 400, 600)


def figures(pages: dict[int, str], window: ProfilingWindow = WINDOW) -> ServerMetrics:
    """Return the figures of pages by the time of their scrape."""
    builder, page = ServerMetricsBuilder(window), _Page()
    for at, text in pages.items():
        builder.add(Sample(SOURCE, at, {"url": URL, "latency_ns": 1000, **page.difference(text)}))
    result = builder.result()
    assert result is not None
    return result


def vllm(requests: int, waiting: int, extra: str = "") -> str:
    return (
        "# TYPE vllm:request_success_total counter\n"
        f'vllm:request_success_total{{model_name="m"}} {requests}\n'
        "# TYPE vllm:num_requests_waiting gauge\n"
        f'vllm:num_requests_waiting{{model_name="m"}} {waiting}\n{extra}'
    )


def test_counters_are_differences_over_the_phase_and_gauges_averages_within_it() -> None:
    pages = {50: vllm(5, 9), 90: vllm(10, 9), 200: vllm(14, 2), 300: vllm(20, 4), 450: vllm(30, 0), 700: vllm(99, 9)}
    result = figures(pages)
    assert result.metrics["vllm:request_success"].series[0].stats["total"] == 20
    assert result.metrics["vllm:num_requests_waiting"].series[0].stats["avg"] == 3
    concepts = result.concepts[URL]
    assert (concepts["requests"].total, concepts["queue_depth"].avg, concepts["queue_depth"].max) == (20, 3, 4)


def test_series_that_appears_later_counts_from_zero() -> None:
    late = '# TYPE aborts_total counter\naborts_total{reason="x"} 3\n'
    result = figures({90: vllm(0, 0), 200: vllm(0, 0, late)})
    assert result.metrics["aborts"].series[0].stats["total"] == 3


def test_restart_is_counted_and_loses_no_requests() -> None:
    result = figures({90: vllm(10, 0), 200: vllm(15, 0), 300: vllm(2, 0), 450: vllm(4, 0)})
    assert result.concepts[URL]["restarts"].total == 1
    assert result.concepts[URL]["requests"].total == 9


@pytest.mark.parametrize(
    ("type_", "line"), [("summary", 'delay{quantile="0.5"} %d\ndelay_sum 9\ndelay_count 3'), ("untyped", "delay %d")]
)
def test_quantile_or_untyped_value_that_falls_is_no_restart(type_: str, line: str) -> None:
    pages = {at: f"# TYPE delay {type_}\n{line % value}\n" for at, value in ((90, 5), (200, 3), (300, 4), (450, 1))}
    assert figures(pages).concepts[URL]["restarts"].total == 0


def test_gauges_of_a_phase_shorter_than_the_interval_come_from_the_scrapes_around_it() -> None:
    result = figures({50: vllm(0, 8), 90: vllm(0, 1), 450: vllm(1, 3)})
    assert result.metrics["vllm:num_requests_waiting"].series[0].stats["avg"] == 2


def test_times_after_the_values_are_not_values() -> None:
    pages = {
        at: f'# TYPE depth gauge\ndepth 4 {1_700_000_000_000 + at}\nother{{a="b"}} 1 {at}\n' for at in (90, 200, 300)
    }
    assert figures(pages).metrics["depth"].series[0].stats["avg"] == 4


def test_exemplars_are_not_values() -> None:
    pages = {at: f'# TYPE d counter\nd_total{{a="b"}} 4 # {{trace="t"}} {at}\n' for at in (90, 200, 300)}
    assert figures(pages).metrics["d"].series[0].stats["total"] == 0


def histogram(counts: tuple[int, int, int], total: float) -> str:
    names = ("0.1", "1.0", "+Inf")
    lines = [f'd_bucket{{le="{name}"}} {count}' for name, count in zip(names, counts, strict=True)]
    return "\n".join(["# TYPE d histogram", *lines, f"d_sum {total}", f"d_count {counts[-1]}", ""])


def test_endpoint_without_samples_is_scraped_until_it_has_some() -> None:
    pages = [b"", b"# HELP requests none yet\n", b"requests 3\n"]
    with HttpServer(lambda _, number: HttpReply(pages[number])) as server:
        url = f"{server.url}/metrics"
        origin = Origin("127.0.0.1", server.port, socket.AF_INET, ("127.0.0.1", server.port), None)
        scraper = Scraper(SOURCE, [MetricsUrl(url, origin, "/metrics")])
        found = [scraper.collect() for _ in pages]
        scraper.close()
    assert [observation.values.get("page") for (observation,) in found] == [None, None, "requests 3\n"]


@pytest.mark.parametrize("compressed", [False, True])
def test_page_over_five_megabytes_is_refused(compressed: bool) -> None:
    page = b"".join(b'requests{id="%d"} 1\n' % n for n in range(300_000))
    reply = HttpReply(gzip.compress(page, 1), headers={"Content-Encoding": "gzip"}) if compressed else HttpReply(page)
    with HttpServer(lambda *_: reply) as server:
        url = f"{server.url}/metrics"
        origin = Origin("127.0.0.1", server.port, socket.AF_INET, ("127.0.0.1", server.port), None)
        scraper = Scraper(SOURCE, [MetricsUrl(url, origin, "/metrics")])
        (observation,) = scraper.collect()
        scraper.close()
    assert f"more than {'5,000,000 bytes' if compressed else '5 MB'}" in observation.values["error"]


def test_quantiles_of_a_histogram_are_interpolated() -> None:
    result = figures({90: histogram((5, 5, 5), 1), 450: histogram((10, 15, 15), 6)})
    stats = result.metrics["d"].series[0].stats
    assert (stats["count"], stats["sum"], stats["avg"]) == (10, 5, 0.5)
    assert stats["p50_estimate"] == pytest.approx(0.1)
    assert stats["p75_estimate"] == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("sglang:num_queue_reqs 4\nsglang:token_usage 0.5\n", {"queue_depth": 4, "cache_usage": 50}),
        ("sglang_num_queue_reqs 4\n", {"queue_depth": 4}),
        ("trtllm_kv_cache_hit_rate 0.25\n", {"cache_hit_rate": 25}),
        ("tgi_queue_size 3\ntgi_batch_current_size 2\n", {"queue_depth": 3, "running_requests": 2}),
        ('vllm:num_requests_waiting{engine="0"} 1\nvllm:num_requests_waiting{engine="1"} 2\n', {"queue_depth": 3}),
        ("vllm:kv_cache_usage_perc 0.4\nvllm:gpu_cache_usage_perc 0.9\n", {"cache_usage": 40}),
    ],
)
def test_names_of_several_servers_are_one_concept(page: str, expected: dict[str, float]) -> None:
    concepts = figures({90: page, 200: page + " "}).concepts[URL]
    assert {name: concepts[name].avg for name in expected} == expected


def test_window_ends_where_a_phase_begins_that_does_not_count() -> None:
    phases = [
        LoggedPhase(0, "warmup", "warmup", start=10),
        LoggedPhase(1, "a", "profiling", start=20),
        LoggedPhase(2, "b", "profiling", start=30),
    ]
    assert window_of(phases, phases[:2], 25) == (20, 25, 30)
    assert window_of(phases, phases, 45)[:2] == (20, 45)
