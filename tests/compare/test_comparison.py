"""Two per-request files, side by side."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.compare.comparison import compare
from penstock.compare.runs import pair, read_requests
from penstock.compare.table import comparison_text
from penstock.errors import UserError


def line(number: int, body: str, latency: float, *, failed: bool = False, **about: Any) -> str:
    start = 1_000_000_000 + number * 10_000_000
    metadata = {
        "session_num": number,
        "turn_index": 0,
        "benchmark_phase": "profiling",
        "request_start_ns": start,
        "request_end_ns": start + int(latency * 1e6),
        "body_sha256": sha256(body.encode()).hexdigest(),
        "url": "http://x",
    } | about
    metrics = (
        {} if failed else {"request_latency": {"value": latency, "unit": "ms"}, "inter_chunk_latency": {"value": [1]}}
    )
    return json.dumps({"metadata": metadata, "metrics": metrics, **({"error": {"type": "x"}} if failed else {})})


def run(tmp_path: Path, name: str, lines: list[str]) -> str:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "profile_export.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


def made(tmp_path: Path, name: str, count: int, extra: float, seed: int, **more: Any) -> str:
    draw = Random(seed)
    latencies = [10 + n % 7 + draw.random() + extra for n in range(count)]
    return run(tmp_path, name, [line(n, f"body {n}", latency, **more) for n, latency in enumerate(latencies)])


def rows(found: Any) -> dict[tuple[str, str], Any]:
    return {(row.metric, row.statistic): row for row in found.rows}


def test_what_is_slower_is_called_so(tmp_path: Path) -> None:
    a, b = made(tmp_path, "a", 250, 0, 1), made(tmp_path, "b", 250, 2, 2)
    found = compare(pair(read_requests(a, "a"), read_requests(b, "b")), throughput=True)
    assert found.pairs == 250
    row = rows(found)["request_latency", "avg"]
    assert (row.verdict, row.unit) == ("A is better", "ms")
    assert row.low < 2 < row.high
    assert row.percent == pytest.approx(100 * row.difference / row.a)
    assert set(rows(found)) >= {("request_latency", name) for name in ("avg", "p50", "p90", "p99")}
    assert rows(found)["request_throughput", "avg"].verdict == "within noise", "both were sent at the same pace"
    text = comparison_text(found)
    assert "A is better, beyond noise, in Request Latency." in text
    assert "250 pairs of requests with the same body." in text
    assert max(map(len, text.splitlines())) < 140


def test_the_same_is_within_noise(tmp_path: Path) -> None:
    a, b = made(tmp_path, "a", 120, 0, 1), made(tmp_path, "b", 120, 0, 2)
    found = compare(pair(read_requests(a, "a"), read_requests(b, "b")), throughput=True)
    assert {row.verdict for row in found.rows} == {"within noise"}
    assert "No difference is more than noise." in comparison_text(found)
    assert ("request_latency", "p99") not in rows(found), "120 requests do not tell a p99"


def test_pairs_are_found_by_body_in_the_order_of_the_plan(tmp_path: Path) -> None:
    """A body that was sent three times in A and twice in B makes two pairs; warmups and cancelled ones make none."""
    first = [
        line(2, "x", 3),
        line(0, "x", 1),
        line(1, "x", 2),
        line(3, "only a", 9),
        line(4, "x", 8, benchmark_phase="warmup"),
        line(5, "x", 8, was_cancelled=True),
    ]
    second = [line(7, "x", 20), line(3, "x", 10), line(9, "y", 30)]
    a, b = run(tmp_path, "a", first), run(tmp_path, "b", second)
    pairs = pair(read_requests(a, "a"), read_requests(b, "b"))
    assert [values.tolist() for values in pairs.values("request_latency")] == [[1, 2], [10, 20]]
    assert (pairs.only_a, pairs.only_b) == (2, 1)
    found = compare(pairs, throughput=False)
    assert [row.verdict for row in found.rows] == ["too few pairs"] * 3
    assert all(row.low is None and row.p is None for row in found.rows)


def test_failures_count_and_have_no_latency(tmp_path: Path) -> None:
    a = made(tmp_path, "a", 60, 0, 1)
    b = run(tmp_path, "b", [line(n, f"body {n}", 10, failed=n % 2 == 0) for n in range(60)])
    found = rows(compare(pair(read_requests(a, "a"), read_requests(b, "b")), throughput=False))
    assert found["request_error_rate", "avg"].difference == 50
    assert found["request_error_rate", "avg"].verdict == "A is better"
    assert found["request_latency", "avg"].pairs == 30


def test_arms_of_one_run_are_paired_by_its_plan(tmp_path: Path) -> None:
    """Bodies may differ there, because each server's replies go into the turns that follow."""
    a = run(tmp_path, "a", [line(n, f"a {n}", 1) for n in (0, 3, 5)])
    b = run(tmp_path, "b", [line(n, f"b {n}", 2) for n in (1, 2)])
    pairs = pair(read_requests(a, "a"), read_requests(b, "b"), blocks=2)
    assert (len(pairs), pairs.only_a, pairs.only_b, pairs.how) == (2, 1, 0, "plan")


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    a = run(tmp_path, "a", [line(0, "x", 1)])
    other = run(tmp_path, "b", [line(0, "y", 1)])
    old = run(tmp_path, "c", [line(0, "x", 1, body_sha256=None)])
    empty = run(tmp_path, "d", [line(0, "x", 1, benchmark_phase="warmup")])
    broken = run(tmp_path, "e", ["{}"])
    (tmp_path / "f").mkdir()
    for path, said in (
        (other, "No request of a has the same body as one of b"),
        (old, "The per-request file of b has no body_sha256"),
        (empty, "has no completed request to compare"),
        (broken, "profile_export.jsonl:1: not a line of a per-request file"),
        (str(tmp_path / "f"), "holds no per-request file"),
    ):
        with pytest.raises(UserError, match=said):
            pair(read_requests(a, "a"), read_requests(path, "b"))
