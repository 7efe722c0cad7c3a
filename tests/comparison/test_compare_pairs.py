"""Comparison of two per-request files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.comparison.compare_pairs import compare
from penstock.comparison.read_runs import Pairs, pair, read_requests
from penstock.comparison.text_table import comparison_text
from penstock.errors import UserError


def line(
    number: int,
    body: str,
    latency: float,
    *,
    failed: bool = False,
    metrics: dict[str, float] | None = None,
    **changes: Any,
) -> str:
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
    values: dict[str, Any] = {"request_latency": latency, "inter_chunk_latency": [1], **(metrics or {})}
    exported = {} if failed else {tag: {"value": value} for tag, value in values.items()}
    return json.dumps({"metadata": metadata, "metrics": exported, **({"error": {"type": "x"}} if failed else {})})


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
    assert (row.test, comparison.metric) == ("primary", "request_latency"), "nothing was streamed"
    percentiles = [rows(comparison)["request_latency", name] for name in ("p50", "p90", "p95", "p99")]
    for percentile in percentiles:
        assert percentile.low < percentile.difference < percentile.high
        assert (percentile.p, percentile.verdict, percentile.follows) == (None, None, "request_latency")
    assert rows(comparison)["request_throughput", "avg"].verdict == "within noise", "both were sent at the same rate"
    text = comparison_text(comparison, 140)
    assert "A is better, beyond noise, in Request Latency." in text
    assert "250 pairs of requests with the same body." in text
    assert max(map(len, text.splitlines())) < 140


def test_equal_runs_are_within_noise(tmp_path: Path) -> None:
    a, b = write_random_run(tmp_path, "a", 120, 0, 1), write_random_run(tmp_path, "b", 120, 0, 2)
    comparison = compare(pair(read_requests(a, "a"), read_requests(b, "b")), throughput=True)
    assert {row.verdict for row in comparison.rows if row.test} == {"within noise"}
    assert "No difference is more than noise." in comparison_text(comparison, 140)
    p95, p99 = (rows(comparison)["request_latency", name] for name in ("p95", "p99"))
    assert p95.low is not None
    assert (p99.low, p99.high) == (None, None), "120 requests are too few for the interval of a p99"


def test_smallest_detectable_difference_follows_from_the_noise_of_the_runs(tmp_path: Path) -> None:
    """The standard error of the difference of two means of 400 values is 10 * sqrt(2 / 400) = 0.71; 2.8 of them are found in
    80 % of the cases."""
    rng = np.random.default_rng(7)
    runs = [
        [line(i, f"{name}{i}", latency) for i, latency in enumerate(rng.normal(100, 10, 400).tolist())] for name in "ab"
    ]
    a, b = (read_requests(write_run(tmp_path, name, lines), name) for name, lines in zip("ab", runs, strict=True))
    comparison = compare(pair(a, b), throughput=False)
    row = next(row for row in comparison.rows if (row.metric, row.statistic) == ("request_latency", "avg"))
    assert row.detectable == pytest.approx(1.98, rel=0.2)
    assert "Smallest difference of means that these runs find in 4 of 5 cases: Request Latency" in comparison_text(
        comparison, 200
    )


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
    assert [row.verdict for row in comparison.rows] == ["too few requests", None, None, None, None]
    assert (
        comparison.conclusion == "There are too few requests to tell a difference from noise: at least 10 are needed."
    )
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


def write_streamed_run(tmp_path: Path, name: str, ttfts: Sequence[float], wait: float = 0.1, **more: Any) -> str:
    """Write a run with all metrics of a stream of 10 tokens, 2 ms apart on average, after the given TTFTs."""
    rng = Random(name)
    lines = []
    for number, ttft in enumerate(ttfts):
        itl = rng.uniform(1.5, 2.5)
        latency = ttft + 9 * itl
        metrics = {
            "time_to_first_token": ttft,
            "effective_latency": latency + wait,
            "inter_token_latency": itl,
            "time_per_output_token": itl,
            "output_token_throughput_per_user": 1000 / itl,
            "e2e_output_token_throughput": 10_000 / latency,
            "output_sequence_length": 10,
        }
        lines.append(line(number, f"body {number}", latency, metrics=metrics, **more))
    return write_run(tmp_path, name, lines)


def streamed_pairs(tmp_path: Path, **more: Any) -> Pairs:
    ttfts = [Random(n).gauss(25, 3) for n in range(120)]
    runs = [write_streamed_run(tmp_path, name, ttfts[i::2], **more) for i, name in enumerate("ab")]
    return pair(read_requests(runs[0], "a"), read_requests(runs[1], "b"))


def metric_tests(comparison: Any) -> dict[str, str]:
    return {row.metric: row.test for row in comparison.rows if row.test is not None}


def test_rows_that_follow_from_others_are_not_tested(tmp_path: Path) -> None:
    comparison = compare(streamed_pairs(tmp_path), throughput=True)
    assert comparison.metric == "time_to_first_token"
    assert metric_tests(comparison) == {
        "time_to_first_token": "primary",
        "request_latency": "corrected",
        "inter_token_latency": "corrected",
        "output_sequence_length": "corrected",
        "request_throughput": "corrected",
    }
    by_row = rows(comparison)
    for metric, follows in (
        ("effective_latency", "request_latency"),
        ("e2e_output_token_throughput", "request_latency"),
        ("time_per_output_token", "inter_token_latency"),
        ("output_token_throughput_per_user", "inter_token_latency"),
        ("output_token_throughput", "request_throughput"),
    ):
        row = by_row[metric, "avg"]
        assert (row.follows, row.verdict, row.p) == (follows, None, None)
        assert row.low <= row.difference <= row.high
    assert all((row.follows is None) == (row.test is not None) for row in comparison.rows)
    text = comparison_text(comparison, 160)
    assert "see Request Latency\n" in text
    assert "The verdicts of 4 other metrics are corrected (Holm)" in text


def test_named_metric_is_primary_and_stands_for_its_group(tmp_path: Path) -> None:
    pairs = streamed_pairs(tmp_path)
    comparison = compare(pairs, throughput=False, metric="time_per_output_token")
    assert comparison.metric == "time_per_output_token"
    assert metric_tests(comparison) == {
        "time_per_output_token": "primary",
        "time_to_first_token": "corrected",
        "request_latency": "corrected",
        "output_sequence_length": "corrected",
    }
    assert rows(comparison)["inter_token_latency", "p90"].follows == "time_per_output_token"
    assert compare(pairs, throughput=False, metric="request_error_rate").metric == "request_error_rate"
    with pytest.raises(
        UserError, match=r"--metric request_throughput: .* They can by time_to_first_token, request_lat"
    ):
        compare(pairs, throughput=False, metric="request_throughput")


def test_effective_latency_is_tested_if_requests_waited(tmp_path: Path) -> None:
    comparison = compare(streamed_pairs(tmp_path, wait=10), throughput=False)
    assert metric_tests(comparison)["effective_latency"] == "corrected"
    assert rows(comparison)["e2e_output_token_throughput", "avg"].follows == "request_latency"


def test_only_the_primary_metric_is_tested_without_correction(tmp_path: Path) -> None:
    """Both metrics have the same values, and a difference that is significant only without correction."""
    noise = np.random.default_rng(1).normal(0, 1, 60)
    difference = noise - noise.mean() + 2.1 * noise.std() / np.sqrt(60)
    latencies = np.full(60, 25.0), 25 + difference
    runs = [
        write_run(
            tmp_path,
            name,
            [
                line(n, str(n), value, metrics={"time_to_first_token": value, "output_sequence_length": 1})
                for n, value in enumerate(values)
            ],
        )
        for name, values in zip("ab", latencies, strict=True)
    ]
    by_row = rows(compared(*runs))
    primary, other = by_row["time_to_first_token", "avg"], by_row["request_latency", "avg"]
    assert 0.025 < primary.p <= 0.05
    assert other.p == pytest.approx(2 * primary.p)
    assert (primary.verdict, other.verdict) == ("A is better", "within noise")


def test_runs_with_different_prompts_are_compared_unpaired(tmp_path: Path) -> None:
    a = write_streamed_run(tmp_path, "a", [Random(n).gauss(25, 3) for n in range(80)])
    b = write_streamed_run(tmp_path, "b", [Random(n).gauss(29, 3) for n in range(500, 560)])
    other = Path(b, "profile_export.jsonl")
    lines = [json.loads(text) for text in other.read_text().splitlines()]
    for number, record in enumerate(lines[4:]):
        record["metadata"]["body_sha256"] = sha256(f"other {number}".encode()).hexdigest()
    other.write_text("".join(json.dumps(record) + "\n" for record in lines))
    comparison = compared(a, b)
    assert (comparison.pairs, comparison.paired_by, comparison.a.unpaired, comparison.b.unpaired) == (0, None, 0, 0)
    row = rows(comparison)["time_to_first_token", "avg"]
    assert (row.verdict, row.pairs) == ("A is better", 60)
    assert row.low < 4 < row.high
    assert comparison.notes[0].startswith("Only 4 of the 60 requests have the same body in both runs, so all requests")
    assert "\nThe requests are not paired.\n" in comparison_text(comparison, 140)


def test_run_without_body_hashes_is_compared_unpaired(tmp_path: Path) -> None:
    a, b = write_random_run(tmp_path, "a", 60, 0, 1), write_random_run(tmp_path, "b", 60, 3, 2, body_sha256=None)
    comparison = compared(a, b)
    assert rows(comparison)["request_latency", "avg"].verdict == "A is better"
    assert comparison.notes[0].startswith("The per-request file of b has no body_sha256")


def simulate(tmp_path: Path, count: int, extra_ms: float) -> int:
    """Return how many interleaved comparisons find a difference in TTFT: 60 requests each, 25 ms, deviation 3 ms."""
    rng = np.random.default_rng(round(extra_ms * 10))
    differences = 0
    for number in range(count):
        sides = []
        for position, name in enumerate("ab"):
            lines = []
            for n, ttft in enumerate(rng.normal(25 + position * extra_ms, 3, 60)):
                metrics = {"time_to_first_token": ttft, "output_sequence_length": 8}
                lines.append(line(2 * n + position, "x", ttft + rng.normal(20, 1), metrics=metrics))
            sides.append(read_requests(write_run(tmp_path, f"{extra_ms}-{number}{name}", lines), name))
        comparison = compare(pair(*sides, blocks=2), throughput=False)
        differences += rows(comparison)["time_to_first_token", "avg"].verdict in ("A is better", "B is better")
    return differences


@pytest.mark.parametrize("resamples", [399, pytest.param(1999, marks=pytest.mark.slow)])
def test_difference_of_two_thirds_of_the_deviation_is_found_with_60_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resamples: int
) -> None:
    """At least 90 % must be found; Student's t-test would find 95 %."""
    monkeypatch.setattr("penstock.comparison.bootstrap._MAX_RESAMPLES", resamples)
    assert simulate(tmp_path, 200, extra_ms=2) >= 180


@pytest.mark.parametrize(
    ("resamples", "count", "most"), [(399, 200, 16), pytest.param(1999, 1000, 62, marks=pytest.mark.slow)]
)
def test_equal_servers_differ_in_one_comparison_of_twenty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resamples: int, count: int, most: int
) -> None:
    """The limits are 5 % and not quite two standard deviations more."""
    monkeypatch.setattr("penstock.comparison.bootstrap._MAX_RESAMPLES", resamples)
    assert simulate(tmp_path, count, extra_ms=0) <= most


def test_runs_that_cannot_be_compared_are_rejected(tmp_path: Path) -> None:
    a = write_run(tmp_path, "a", [line(0, "x", 1)])
    empty = write_run(tmp_path, "d", [line(0, "x", 1, benchmark_phase="warmup")])
    malformed = write_run(tmp_path, "e", ["{}"])
    (tmp_path / "f").mkdir()
    for path, message in (
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


def test_metric_that_one_run_could_not_observe_is_not_compared(tmp_path: Path) -> None:
    a, b = different_runs(tmp_path)
    judged = {"request_latency": {"verdict": "UNOBSERVABLE", "reasons": ["The tokens arrived together."]}}
    certificate = {"verdict": "VALID", "reasons": [], "figures": {}, "summary": "", "metrics": judged}
    assert "request_latency" in {row.metric for row in compared(a, b).rows}
    (Path(b) / "profile_export_aiperf.json").write_text(json.dumps({"certificate": certificate}))
    comparison = compared(a, b)
    assert "request_latency" not in {row.metric for row in comparison.rows}
    assert any("could not observe it: Request Latency." in note for note in comparison.notes)


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
    noisy = msgspec.structs.replace(row, low=0.47, high=3.75, p=0.2, verdict="within noise", test="corrected")
    comparison = msgspec.structs.replace(compared(str(tmp_path / "a"), str(tmp_path / "b")), rows=[row, noisy, noisy])
    text = comparison_text(comparison, 140)
    assert text.count("+0.47 to +3.75  within noise *\n") == 2
    assert "The primary metric is Request Latency. The verdicts of 2 other metrics are corrected (Holm)" in text
    assert (
        "* Request Latency: its own interval excludes 0, but 2 metrics are tested together, and between equal servers one of "
        "them differs this clearly in 20% of the comparisons; up to 5 % would be a difference. If you decided beforehand to "
        "compare by it, --metric request_latency tests it alone."
    ) in " ".join(text.split())
    assert "*" not in comparison_text(msgspec.structs.replace(comparison, rows=[row]), 140)


def test_narrow_terminal_gets_the_narrow_table(tmp_path: Path) -> None:
    comparison = compared(*different_runs(tmp_path))
    rows = [msgspec.structs.replace(row, a=12345.678, b=22345.678, low=-1234.5, high=1234.5) for row in comparison.rows]
    wide, narrow = (comparison_text(msgspec.structs.replace(comparison, rows=rows), width) for width in (140, 80))
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    assert "\nRequest Latency (ms)\navg " in narrow
    assert [narrow.count(number) for number in ("12,345.68", "+1,234.50")] == [5, 5]
