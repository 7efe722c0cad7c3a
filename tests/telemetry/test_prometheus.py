"""The parser of metrics pages."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.telemetry.prometheus import Family, parse_page


def test_page_of_the_client_library_is_read_as_the_library_reads_it() -> None:
    registry = CollectorRegistry()
    Gauge("depth", 'Help with "quotes".', ["model"], registry=registry).labels('a\\b"c} 1\nd').set(3)
    Counter("sent", "Requests.", registry=registry).inc(7)
    Histogram("seconds", "Durations.", buckets=(0.1, 1), registry=registry).observe(0.5)
    page = generate_latest(registry).decode()
    expected = {
        (sample.name, tuple(sample.labels.items())): (sample.value, family.type)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    found = {(s.name, tuple(s.labels.items())): (value, s.family.type) for s, value in parse_page(page).values()}
    assert {key: found[key] for key in expected if not key[0].endswith("_created")} == {
        key: value for key, value in expected.items() if not key[0].endswith("_created")
    }
    assert {series.family.name for series, _ in parse_page(page).values()} >= {"depth", "sent", "seconds"}


@pytest.mark.parametrize(
    ("line", "name", "labels", "value"),
    [
        ("up 1", "up", {}, 1),
        ("up 1 1700000000000", "up", {}, 1),
        ('a{le="+Inf",} +Inf', "a", {"le": "+Inf"}, math.inf),
        ('a_total{x="1"} 5 # {trace="t"} 0.3', "a_total", {"x": "1"}, 5),
        ('a{x="1 # } 2"} 5', "a", {"x": "1 # } 2"}, 5),
        ('a {x="1"}\t5', "a", {"x": "1"}, 5),
    ],
)
def test_forms_of_a_line(line: str, name: str, labels: dict[str, str], value: float) -> None:
    ((series, found),) = parse_page(line).values()
    assert (series.name, series.labels, found) == (name, labels, value)


def test_words_of_a_comment_may_be_separated_by_any_white_space() -> None:
    ((series, _),) = parse_page("#  TYPE\ta  gauge\n# HELP a  The depth.\n#\na 1").values()
    assert series.family == Family("a", "gauge", "The depth.")


def test_other_text_has_no_series() -> None:
    assert parse_page("<html>\n<body>Not found</body>\n{}\n") == {}
