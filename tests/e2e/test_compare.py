"""`penstock compare` with real runs."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from penstock.reports.report_html import read_page
from support.programs import BIN, LIMIT_S, Capture, MockServer, Program, wait_for


def payloads(program: Program, count: int) -> str:
    path = program.folder / "payloads.jsonl"
    bodies = [
        {"model": "m", "stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": str(n)}]}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return str(path)


def invalid_sides(comparison: dict[str, Any]) -> list[str]:
    """Return the sides whose certificate is INVALID. On a busy machine this can happen in any test."""
    return [letter for letter in "AB" if comparison[letter.lower()]["verdict"] == "INVALID"]


@pytest.mark.slow
def test_comparison_of_two_servers_sends_every_payload_to_both(
    program: Program, mock: Callable[..., MockServer]
) -> None:
    fast, slow = mock(ttft=4, hashes=True), mock(ttft=104, hashes=True)
    arguments = ("--model", "m", "--input-file", payloads(program, 40), "--use-server-token-count", "--concurrency", 2)
    out = program.folder / "out"
    done = program.run(
        "compare",
        "--url",
        fast.url,
        "--url",
        slow.url,
        *arguments,
        "--artifact-dir",
        out,
        "--random-seed",
        5,
        "--results-url",
        f"file://{program.folder}/copy",
        command="penstock",
    )
    assert done.status == 0, done
    assert (program.folder / "copy" / "compare.json").exists()
    comparison = json.loads((out / "compare.json").read_text())
    page = read_page(str(out / "report.html"))
    assert page["conclusions"] == [comparison["conclusion"]]
    assert [run["href"] for run in page["runs"]] == ["a/report.html", "b/report.html"]
    assert ("A is better, beyond noise, in Time to First Token" in done.out) == (not invalid_sides(comparison))
    assert (comparison["pairs"], comparison["paired_by"], comparison["a"]["urls"], comparison["b"]["urls"]) == (
        40,
        "plan",
        [fast.url],
        [slow.url],
    )
    row = next(row for row in comparison["rows"] if (row["metric"], row["statistic"]) == ("time_to_first_token", "avg"))
    assert row["verdict"] == "A is better"
    assert row["low"] <= row["difference"] <= row["high"]
    server_logs = [server.logged_requests() for server in (fast, slow)]
    lines = Path(payloads(program, 40)).read_bytes().splitlines()
    for server_log in server_logs:
        assert sorted(t["body_sha256"] for t in server_log) == sorted(sha256(line).hexdigest() for line in lines)
    for letter, server in (("a", fast), ("b", slow)):
        records = [json.loads(line) for line in (out / letter / "profile_export.jsonl").read_text().splitlines()]
        assert {r["metadata"]["url"] for r in records} == {server.url}
        assert json.loads((out / letter / "profile_export_aiperf.json").read_text())["request_count"]["avg"] == 40
    everything = sorted((r["metadata"]["session_num"], letter) for letter in "ab" for r in _records(out / letter))
    firsts = [letter for number, letter in everything if number % 2 == 0]
    assert 8 < firsts.count("a") < 32, "neither server is always first"


def _records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_comparison_of_two_runs_pairs_requests_by_body(program: Program, mock: Callable[..., MockServer]) -> None:
    fast, slow = mock(ttft=2), mock(ttft=102)
    path = payloads(program, 30)
    runs = [program.profile(s.url, "--input-file", path, "--use-server-token-count", texts=None) for s in (fast, slow)]
    assert [run.status for run in runs] == [0, 0], runs
    done = program.run("compare", runs[0].folder, runs[1].folder, "--json", command="penstock")
    assert done.status == 0, done
    comparison = json.loads(done.out)
    assert (comparison["pairs"], comparison["paired_by"]) == (30, "body")
    assert {row["metric"]: row["verdict"] for row in comparison["rows"] if row["statistic"] == "avg"}[
        "time_to_first_token"
    ] == "A is better"
    text = program.run("compare", runs[1].folder, runs[0].folder, command="penstock")
    assert ("B is better, beyond noise, in Time to First Token" in text.out) == (not invalid_sides(comparison))
    assert "Note: The runs took place at different times" in text.out


@pytest.mark.slow
def test_runs_with_different_prompts_are_compared_unpaired_by_the_named_metric(
    program: Program, mock: Callable[..., MockServer]
) -> None:
    run = program.profile(mock(ttft=2).url, "--input-file", payloads(program, 25), texts=None)
    bodies = program.folder / "other.jsonl"
    bodies.write_text(Path(payloads(program, 20)).read_text().replace('"content": "', '"content": "another '))
    other = program.profile(mock(ttft=102).url, "--input-file", bodies, texts=None)
    command = ("compare", run.folder, other.folder, "--metric", "request_latency")
    done = program.run(*command, "--json", command="penstock")
    assert done.status == 0, done
    found = json.loads(done.out)
    assert (found["pairs"], found["paired_by"], found["metric"]) == (0, None, "request_latency")
    row = next(row for row in found["rows"] if row["test"] == "primary")
    assert (row["metric"], row["statistic"], row["verdict"]) == ("request_latency", "avg", "A is better")
    assert {row["statistic"] for row in found["rows"]} == {"avg", "p50", "p90", "p95", "p99"}
    assert "None of the 20 requests have the same body in both runs" in found["notes"][-2]
    assert "The requests are not paired.\n" in program.run(*command, command="penstock").out


@pytest.mark.slow
def test_invalid_run_leads_to_no_conclusion(program: Program, mock: Callable[..., MockServer]) -> None:
    """The log of one run is truncated after its requests, so its worker's report is missing."""
    path = payloads(program, 30)
    flags = ("--input-file", path, "--use-server-token-count")
    runs = [program.profile(mock(ttft=ttft).url, *flags, texts=None) for ttft in (2, 12)]
    log = runs[0].folder / "log" / "worker-0.log"
    log.write_bytes(log.read_bytes()[:-1])
    assert program.run("report", runs[0].folder, "--overwrite", command="penstock").status == 0
    folders = [run.folder for run in runs]
    text = program.run("compare", *folders, command="penstock")
    assert text.status == 0, text
    assert f"A: {folders[0]}" in text.out
    assert "30 requests, INVALID\n" in text.out
    assert "beyond noise" not in text.out
    comparison = json.loads(program.run("compare", *folders, "--json", command="penstock").out)
    assert "A" in invalid_sides(comparison)
    whose = "Run A is" if invalid_sides(comparison) == ["A"] else "Both runs are"
    assert comparison["conclusion"] == f"{whose} INVALID: do not rely on this comparison."
    assert f"{comparison['conclusion']}\n" in text.out
    assert any(note.startswith("A") and "INVALID." in note for note in comparison["notes"])


@pytest.mark.slow
def test_errors_in_the_client_lead_to_no_conclusion(program: Program, mock: Callable[..., MockServer]) -> None:
    """The limit on open files is lower than what the run needs."""
    arguments = ["compare", "--model", "m", "--input-file", program.prompts(60), "--use-server-token-count"]
    arguments += [
        "--url",
        mock(ttft=4000).url,
        "--url",
        mock(ttft=4000).url,
        "--request-rate",
        200,
        "--artifact-dir",
        "out",
    ]
    limited = ["bash", "-c", 'ulimit -n 120; exec "$@"', "-", BIN / "penstock", *map(str, arguments)]
    done = subprocess.run(limited, cwd=program.folder, env=program.env, capture_output=True, text=True, timeout=LIMIT_S)
    comparison = json.loads((program.folder / "out" / "compare.json").read_text())
    assert {comparison[side]["verdict"] for side in "ab"} == {"INVALID"}, done
    assert "Both runs are INVALID: do not rely on this comparison.\n" in done.stdout
    assert "Both runs are INVALID" in comparison["conclusion"]
    assert any("because of an error in the client" in note for note in comparison["notes"])


def test_too_few_pairs_are_reported_and_lines_fit_the_terminal(
    program: Program, mock: Callable[..., MockServer]
) -> None:
    path = payloads(program, 3)
    runs = [program.profile(mock().url, "--input-file", path, "--use-server-token-count", texts=None) for _ in "ab"]
    done = program.run("compare", *(run.folder.name for run in runs), command="penstock", COLUMNS="80")
    said = "There are too few requests to tell a difference from noise: at least 10 are needed."
    assert said in " ".join(done.out.split())
    assert "No difference" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_interrupted_comparison_has_a_note(program: Program, mock: Callable[..., MockServer]) -> None:
    servers = [mock(ttft=30) for _ in "ab"]
    out = program.folder / "out"
    arguments = [
        "--model",
        "m",
        "--input-file",
        payloads(program, 500),
        "--use-server-token-count",
        "--artifact-dir",
        out,
    ]
    running = program.start("compare", "--url", servers[0].url, "--url", servers[1].url, *arguments, command="penstock")
    wait_for(lambda: all(len(server.log.read_bytes().splitlines()) > 4 for server in servers))
    running.interrupt()
    done = running.wait()
    assert done.status == 130, done
    comparison = json.loads((out / "compare.json").read_text())
    for text in (done.out, "\n".join(comparison["notes"])):
        assert "A and B: The run was interrupted before its end." in text
    # Each server is judged by the requests that it had completed.
    for side in "ab":
        summary = json.loads((out / side / "profile_export_aiperf.json").read_text())
        assert summary["was_cancelled"] is True
        assert comparison[side]["verdict"] == summary["certificate"]["verdict"]
        assert comparison[side]["requests"] == summary["request_count"]["avg"] > 0


def test_comparison_interrupted_before_every_server_answered_is_an_error(program: Program, capture: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        arguments = [
            "--model",
            "m",
            "--input-file",
            payloads(program, 5),
            "--use-server-token-count",
            "--concurrency",
            5,
        ]
        urls = ["--url", capture.url, "--url", f"http://127.0.0.1:{silent.getsockname()[1]}"]
        running = program.start("compare", *urls, *arguments, command="penstock")
        wait_for(lambda: capture.requests)
        running.interrupt()
        time.sleep(1.0)  # a second signal within 100 ms would count as the same Ctrl-C
        running.interrupt()
        done = running.wait()
    assert done.status == 130, done
    assert (
        "The run was interrupted before every server had completed a request, so there is nothing to compare."
        in done.err
    )


def test_compare_finds_runs_with_any_export_prefix(program: Program, capture: Capture) -> None:
    folders = []
    for prefix in ("my_raw_run", "raw"):
        done = program.profile(capture.url, "--profile-export-prefix", prefix, texts=20)
        folders.append(done.folder)
        (done.folder / f"{prefix}_raw.jsonl").write_text("an export of AIPerf\n")
    compared = program.run("compare", *folders)
    assert compared.status == 0, compared
    assert "20 pairs of requests with the same body" in compared.out


def test_wrong_arguments_of_compare_are_errors(program: Program) -> None:
    for arguments, message in (
        (["nowhere", "nothing"], "There is no run at 'nowhere'."),
        (["one"], "Name two artifact folders, or give --url twice"),
        (["--url", "mock://", "--model", "m"], "Give --url at least twice"),
        (["one", "two", "--metric", "speed"], "--metric"),
        (["--url", "mock://", "mock://", "--model", "m", "--metric", "request_throughput"], "share its rate"),
        (["--url", "mock://", "mock://", "--model", "m", "--export-level", "summary"], "keeps no request records"),
    ):
        done = program.run("compare", *arguments, command="penstock")
        assert (done.status, message in done.err) == (2, True), done
    assert "compare --url A --url B" in program.run("compare", "--help", command="penstock").out


@pytest.mark.slow
def test_difference_beyond_a_limit_gives_exit_status_1(program: Program, mock: Callable[..., MockServer]) -> None:
    flags = ("--input-file", payloads(program, 30), "--use-server-token-count", "--concurrency", 2)
    runs = [program.profile(mock(ttft=ttft).url, *flags, texts=None).folder for ttft in (2, 52)]
    limits = ("--fail-if", "avg time_to_first_token>50%", "--fail-if", "p90 time_to_first_token<0")
    done = program.run("compare", *limits, *runs, command="penstock")
    assert done.status == 1
    assert "--fail-if 'avg time_to_first_token>50%'" in done.err
    plain = json.loads(program.run("compare", *runs, "--json", command="penstock").out)
    if not invalid_sides(plain):
        assert done.err.count("--fail-if") == 1
        assert program.run("compare", *runs, *limits[2:], command="penstock").status == 0
    refused = program.run("compare", *runs, "--fail-if", "p90 benchmark_duration>1", command="penstock")
    assert refused.status == 2
