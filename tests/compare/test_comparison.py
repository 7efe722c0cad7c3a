"""Comparison of two per-request files."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.compare.comparison import compare
from penstock.compare.read_runs import pair, read_requests
from penstock.compare.text_table import comparison_text
from penstock.errors import UserError


def line(number: int, body: str, latency: float, *, failed: bool = False, **changes: Any) -> str:
    start = 1_000_000_000 + number * 10_000_000
    metadata = {
        "session_num": number,
        "turn_index": 0,
        "benchmark_phase": "profiling",
        "request_start_ns": start,
        "request_end_ns": start + int(latency * 1e6),
        "body_sha256": sha256(body.encode()).hexdigest(),
        "url": "http://x",
    } | changes
    metrics = (
        {} if failed else {"request_latency": {"value": latency, "unit": "ms"}, "inter_chunk_latency": {"value": [1]}}
    )
    return json.dumps({"metadata": metadata, "metrics": metrics, **({"error": {"type": "x"}} if failed else {})})


def write_run(tmp_path: Path, name: str, lines: list[str]) -> str:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "profile_export.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


def write_random_run(tmp_path: Path, name: str, count: int, extra: float, seed: int, **more: Any) -> str:
    rng = Random(seed)
    latencies = [10 + n % 7 + rng.random() + extra for n in range(count)]
    return write_run(tmp_path, name, [line(n, f"body {n}", latency, **more) for n, latency in enumerate(latencies)])


def rows(comparison: Any) -> dict[tuple[str, str], Any]:
    return {(row.metric, row.statistic): row for row in comparison.rows}


def test_slower_run_is_reported_as_worse(tmp_path: Path) -> None:
    a, b = write_random_run(tmp_path, "a", 250, 0, 1), write_random_run(tmp_path, "b", 250, 2, 2)
    comparison = compare(pair(read_requests(a, "a"), read_requests(b, "b")), throughput=True)
    assert comparison.pairs == 250
    row = rows(comparison)["request_latency", "avg"]
    assert (row.verdict, row.unit) == ("A is better", "ms")
    assert row.low < 2 < row.high
    assert row.percent == pytest.approx(100 * row.difference / row.a)
    assert set(rows(comparison)) >= {("request_latency", name) for name in ("avg", "p50", "p90", "p99")}
    assert rows(comparison)["request_throughput", "avg"].verdict == "within noise", "both were sent at the same rate"
    text = comparison_text(comparison, 140)
    assert "A is better, beyond noise, in Request Latency." in text
    assert "250 pairs of requests with the same body." in text
    assert max(map(len, text.splitlines())) < 140


def test_equal_runs_are_within_noise(tmp_path: Path) -> None:
    a, b = write_random_run(tmp_path, "a", 120, 0, 1), write_random_run(tmp_path, "b", 120, 0, 2)
    comparison = compare(pair(read_requests(a, "a"), read_requests(b, "b")), throughput=True)
    assert {row.verdict for row in comparison.rows} == {"within noise"}
    assert "No difference is more than noise." in comparison_text(comparison, 140)
    assert ("request_latency", "p99") not in rows(comparison), "120 requests are too few for a p99"


def test_requests_are_paired_by_body_in_the_order_of_the_plan(tmp_path: Path) -> None:
    """A body sent three times in A and twice in B makes two pairs; warmup and cancelled requests make none."""
    first = [
        line(2, "x", 3),
        line(0, "x", 1),
        line(1, "x", 2),
        line(3, "only a", 9),
        line(4, "x", 8, benchmark_phase="warmup"),
        line(5, "x", 8, was_cancelled=True),
    ]
    second = [line(7, "x", 20), line(3, "x", 10), line(9, "y", 30)]
    a, b = write_run(tmp_path, "a", first), write_run(tmp_path, "b", second)
    pairs = pair(read_requests(a, "a"), read_requests(b, "b"))
    assert [values.tolist() for values in pairs.values("request_latency")] == [[1, 2], [10, 20]]
    assert (pairs.only_a, pairs.only_b) == (2, 1)
    comparison = compare(pairs, throughput=False)
    assert [row.verdict for row in comparison.rows] == ["too few pairs"] * 3
    assert comparison.conclusion == "There are too few pairs to tell a difference from noise: at least 10 are needed."
    assert all(row.low is None and row.p is None for row in comparison.rows)


def test_failures_count_as_errors_and_have_no_latency(tmp_path: Path) -> None:
    a = write_random_run(tmp_path, "a", 60, 0, 1)
    b = write_run(tmp_path, "b", [line(n, f"body {n}", 10, failed=n % 2 == 0) for n in range(60)])
    by_row = rows(compare(pair(read_requests(a, "a"), read_requests(b, "b")), throughput=False))
    assert by_row["request_error_rate", "avg"].difference == 50
    assert by_row["request_error_rate", "avg"].verdict == "A is better"
    assert by_row["request_latency", "avg"].pairs == 30


def test_interleaved_runs_are_paired_by_plan(tmp_path: Path) -> None:
    """Bodies may differ, because each server's replies become part of the following turns."""
    a = write_run(tmp_path, "a", [line(n, f"a {n}", 1) for n in (0, 3, 5)])
    b = write_run(tmp_path, "b", [line(n, f"b {n}", 2) for n in (1, 2)])
    pairs = pair(read_requests(a, "a"), read_requests(b, "b"), blocks=2)
    assert (len(pairs), pairs.only_a, pairs.only_b, pairs.paired_by) == (2, 1, 0, "plan")


def test_runs_that_cannot_be_compared_are_rejected(tmp_path: Path) -> None:
    a = write_run(tmp_path, "a", [line(0, "x", 1)])
    other = write_run(tmp_path, "b", [line(0, "y", 1)])
    old = write_run(tmp_path, "c", [line(0, "x", 1, body_sha256=None)])
    empty = write_run(tmp_path, "d", [line(0, "x", 1, benchmark_phase="warmup")])
    malformed = write_run(tmp_path, "e", ["{}"])
    (tmp_path / "f").mkdir()
    for path, message in (
        (other, "No request of a has the same body as one of b"),
        (old, "The per-request file of b has no body_sha256"),
        (empty, "has no completed request to compare"),
        (malformed, "profile_export.jsonl:1: not a line of a per-request file"),
        (str(tmp_path / "f"), "holds no per-request file"),
    ):
        with pytest.raises(UserError, match=message):
            pair(read_requests(a, "a"), read_requests(path, "b"))


def write_certificate(
    folder: str, verdict: str, *reasons: str, name: str = "profile_export_aiperf.json", **more: Any
) -> str:
    certificate = {"verdict": verdict, "reasons": reasons, "figures": {}, "summary": ""}
    (Path(folder) / name).write_text(json.dumps({"certificate": certificate, **more}))
    return folder


def different_runs(tmp_path: Path) -> tuple[str, str]:
    return write_random_run(tmp_path, "a", 100, 0, 1), write_random_run(tmp_path, "b", 100, 5, 2)


def compared(a: str, b: str) -> Any:
    return compare(pair(read_requests(a, "a"), read_requests(b, "b")), throughput=False)


@pytest.mark.parametrize(
    ("verdicts", "concluded"),
    [
        (("VALID", "INVALID"), "Run B is INVALID: do not rely on this comparison."),
        (("INVALID", "DEGRADED"), "Run A is INVALID: do not rely on this comparison."),
        (("INVALID", "INVALID"), "Both runs are INVALID: do not rely on this comparison."),
        (("DEGRADED", "VALID"), "A is better, beyond noise, in Request Latency."),
    ],
)
def test_invalid_run_gives_no_conclusion(tmp_path: Path, verdicts: tuple[str, str], concluded: str) -> None:
    for folder, verdict in zip(different_runs(tmp_path), verdicts, strict=True):
        write_certificate(folder, verdict, *([] if verdict == "VALID" else [f"The {verdict} reason."]))
    comparison = compared(str(tmp_path / "a"), str(tmp_path / "b"))
    assert comparison.conclusion == concluded
    assert (comparison.a.verdict, comparison.b.verdict) == verdicts
    text = comparison_text(comparison, 140)
    for letter, verdict in zip("AB", verdicts, strict=True):
        assert f"{letter}: {letter.lower()} (http://x), 100 requests, {verdict}\n" in text
        if verdict != "VALID":
            assert re.search(rf"Note: .*{letter}.*: {verdict}\. The {verdict} reason\.", text)


def test_note_that_both_runs_share_appears_once(tmp_path: Path) -> None:
    for folder in different_runs(tmp_path):
        write_certificate(folder, "DEGRADED", "Late.", incomplete_reason="Interrupted.")
    assert compared(str(tmp_path / "a"), str(tmp_path / "b")).notes == [
        "A and B: Interrupted.",
        "A and B: DEGRADED. Late.",
    ]


def test_summary_with_a_prefix_is_found_and_aiperf_summary_has_no_certificate(tmp_path: Path) -> None:
    a, b = different_runs(tmp_path)
    (Path(a) / "profile_export.jsonl").rename(Path(a) / "mine.jsonl")
    write_certificate(a, "VALID", name="mine.json")
    (Path(b) / "profile_export_aiperf.json").write_text('{"request_count": {"avg": 100}}')
    comparison = compared(a, b)
    assert (comparison.a.verdict, comparison.b.verdict) == ("VALID", None)
    assert "100 requests, no certificate" in comparison_text(comparison, 140)


def test_interval_that_contradicts_its_verdict_is_explained(tmp_path: Path) -> None:
    row = compared(*different_runs(tmp_path)).rows[0]
    noisy = msgspec.structs.replace(row, low=0.47, high=3.75, p=0.2, verdict="within noise")
    comparison = msgspec.structs.replace(compared(str(tmp_path / "a"), str(tmp_path / "b")), rows=[row, noisy, noisy])
    text = comparison_text(comparison, 140)
    assert text.count("+0.47 to +3.75  within noise *\n") == 2
    assert "\n* The interval excludes 0, but the difference is not significant after the correction." in text
    assert "the verdicts are corrected for 3 rows (Holm)." in text
    assert "*" not in comparison_text(msgspec.structs.replace(comparison, rows=[row]), 140)


def test_narrow_terminal_gets_the_narrow_table(tmp_path: Path) -> None:
    comparison = compared(*different_runs(tmp_path))
    rows = [msgspec.structs.replace(row, a=12345.678, b=22345.678, low=-1234.5, high=1234.5) for row in comparison.rows]
    wide, narrow = (comparison_text(msgspec.structs.replace(comparison, rows=rows), width) for width in (140, 80))
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    assert "\nRequest Latency (ms)\navg " in narrow
    assert [narrow.count(number) for number in ("12,345.68", "+1,234.50")] == [3, 3]
