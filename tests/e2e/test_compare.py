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

from support.programs import BIN, LIMIT_S, Capture, MockServer, Program, wait_for


def payloads(program: Program, count: int) -> str:
    path = program.folder / "payloads.jsonl"
    bodies = [
        {"model": "m", "stream": True, "max_tokens": 4, "messages": [{"role": "user", "content": str(n)}]}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return str(path)


def invalid(found: dict[str, Any]) -> list[str]:
    """The sides that cannot be decided by, as when the machine took the cores away from a run."""
    return [letter for letter in "AB" if found[letter.lower()]["verdict"] == "INVALID"]


def test_two_servers_in_one_run(program: Program, mock: Callable[..., MockServer]) -> None:
    """Every payload goes to both, in an order that is drawn, and the slower one is found."""
    fast, slow = mock(ttft=4, hashes=True), mock(ttft=104, hashes=True)
    words = ("--model", "m", "--input-file", payloads(program, 40), "--use-server-token-count", "--concurrency", 2)
    out = program.folder / "out"
    done = program.run(
        "compare",
        "--url",
        fast.url,
        "--url",
        slow.url,
        *words,
        "--artifact-dir",
        out,
        "--random-seed",
        5,
        command="penstock",
    )
    assert done.status == 0, done
    found = json.loads((out / "compare.json").read_text())
    assert ("A is better, beyond noise, in Time to First Token" in done.out) == (not invalid(found))
    assert (found["pairs"], found["paired_by"], found["a"]["urls"], found["b"]["urls"]) == (
        40,
        "plan",
        [fast.url],
        [slow.url],
    )
    row = next(row for row in found["rows"] if (row["metric"], row["statistic"]) == ("time_to_first_token", "avg"))
    assert row["verdict"] == "A is better"
    assert row["low"] <= row["difference"] <= row["high"]
    truths = [server.logged_requests() for server in (fast, slow)]
    lines = Path(payloads(program, 40)).read_bytes().splitlines()
    for truth in truths:
        assert sorted(t["body_sha256"] for t in truth) == sorted(sha256(line).hexdigest() for line in lines)
    for letter, server in (("a", fast), ("b", slow)):
        records = [json.loads(line) for line in (out / letter / "profile_export.jsonl").read_text().splitlines()]
        assert {r["metadata"]["url"] for r in records} == {server.url}
        assert json.loads((out / letter / "profile_export_aiperf.json").read_text())["request_count"]["avg"] == 40
    everything = sorted((r["metadata"]["session_num"], letter) for letter in "ab" for r in _records(out / letter))
    firsts = [letter for number, letter in everything if number % 2 == 0]
    assert 8 < firsts.count("a") < 32, "neither is always first"


def _records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]


def test_two_runs_that_were_made(program: Program, mock: Callable[..., MockServer]) -> None:
    fast, slow = mock(ttft=2), mock(ttft=102)
    path = payloads(program, 30)
    runs = [program.profile(s.url, "--input-file", path, "--use-server-token-count", texts=None) for s in (fast, slow)]
    assert [run.status for run in runs] == [0, 0], runs
    done = program.run("compare", runs[0].folder, runs[1].folder, "--json", command="penstock")
    assert done.status == 0, done
    found = json.loads(done.out)
    assert (found["pairs"], found["paired_by"]) == (30, "body")
    assert {row["metric"]: row["verdict"] for row in found["rows"] if row["statistic"] == "avg"}[
        "time_to_first_token"
    ] == "A is better"
    text = program.run("compare", runs[1].folder, runs[0].folder, command="penstock")
    assert ("B is better, beyond noise, in Time to First Token" in text.out) == (not invalid(found))
    assert "Note: The runs took place at different times" in text.out


def test_a_run_that_is_invalid_decides_nothing(program: Program, mock: Callable[..., MockServer]) -> None:
    """The log of one is cut behind its requests, so that nobody can vouch for it any more."""
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
    found = json.loads(program.run("compare", *folders, "--json", command="penstock").out)
    assert "A" in invalid(found)
    whose = "Run A is" if invalid(found) == ["A"] else "Both runs are"
    assert found["conclusion"] == f"{whose} INVALID: do not rely on this comparison."
    assert f"{found['conclusion']}\n" in text.out
    assert any(note.startswith("A") and "INVALID." in note for note in found["notes"])


def test_servers_that_we_failed_ourselves_are_not_decided_between(
    program: Program, mock: Callable[..., MockServer]
) -> None:
    """The run may have fewer files open than it comes to need."""
    words = ["compare", "--model", "m", "--input-file", program.prompts(60), "--use-server-token-count"]
    words += [
        "--url",
        mock(ttft=4000).url,
        "--url",
        mock(ttft=4000).url,
        "--request-rate",
        200,
        "--artifact-dir",
        "out",
    ]
    limited = ["bash", "-c", 'ulimit -n 120; exec "$@"', "-", BIN / "penstock", *map(str, words)]
    done = subprocess.run(limited, cwd=program.folder, env=program.env, capture_output=True, text=True, timeout=LIMIT_S)
    found = json.loads((program.folder / "out" / "compare.json").read_text())
    assert {found[side]["verdict"] for side in "ab"} == {"INVALID"}, done
    assert "Both runs are INVALID: do not rely on this comparison.\n" in done.stdout
    assert "Both runs are INVALID" in found["conclusion"]
    assert any("because of an error in the client" in note for note in found["notes"])


def test_few_pairs_are_said_to_be_few_and_lines_fit(program: Program, mock: Callable[..., MockServer]) -> None:
    path = payloads(program, 3)
    runs = [program.profile(mock().url, "--input-file", path, "--use-server-token-count", texts=None) for _ in "ab"]
    done = program.run("compare", *(run.folder.name for run in runs), command="penstock", COLUMNS="80")
    assert "There are too few pairs to tell a difference from noise: at least 10 are needed." in done.out
    assert "No difference" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_an_interrupted_comparison_says_so(program: Program, mock: Callable[..., MockServer]) -> None:
    servers = [mock(ttft=30) for _ in "ab"]
    out = program.folder / "out"
    words = ["--model", "m", "--input-file", payloads(program, 500), "--use-server-token-count", "--artifact-dir", out]
    running = program.start("compare", "--url", servers[0].url, "--url", servers[1].url, *words, command="penstock")
    wait_for(lambda: all(len(server.log.read_bytes().splitlines()) > 4 for server in servers))
    running.interrupt()
    done = running.wait()
    assert done.status == 130, done
    found = json.loads((out / "compare.json").read_text())
    for said in (done.out, "\n".join(found["notes"])):
        assert "A and B: The run was interrupted before its end." in said
    # Both arms were stopped, and each is judged by what it had until then.
    for side in "ab":
        summary = json.loads((out / side / "profile_export_aiperf.json").read_text())
        assert summary["was_cancelled"] is True
        assert found[side]["verdict"] == summary["certificate"]["verdict"]
        assert found[side]["requests"] == summary["request_count"]["avg"] > 0


def test_a_comparison_that_is_interrupted_at_once_has_nothing_to_compare(program: Program, capture: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        words = ["--model", "m", "--input-file", payloads(program, 5), "--use-server-token-count", "--concurrency", 5]
        urls = ["--url", capture.url, "--url", f"http://127.0.0.1:{silent.getsockname()[1]}"]
        running = program.start("compare", *urls, *words, command="penstock")
        wait_for(lambda: capture.requests)
        running.interrupt()
        time.sleep(1.0)  # sooner, the next could count as the same one
        running.interrupt()
        done = running.wait()
    assert done.status == 130, done
    assert (
        "The run was interrupted before every server had completed a request, so there is nothing to compare."
        in done.err
    )


def test_a_run_is_found_under_any_prefix(program: Program, capture: Capture) -> None:
    folders = []
    for prefix in ("my_raw_run", "raw"):
        done = program.profile(capture.url, "--profile-export-prefix", prefix, texts=20)
        folders.append(done.folder)
        (done.folder / f"{prefix}_raw.jsonl").write_text("what AIPerf calls raw\n")
    compared = program.run("compare", *folders)
    assert compared.status == 0, compared
    assert "20 pairs of requests with the same body" in compared.out


def test_bad_calls(program: Program) -> None:
    for words, said in (
        (["nowhere", "nothing"], "There is no run at 'nowhere'."),
        (["one"], "Name two artifact folders, or give --url twice"),
        (["--url", "mock://", "--model", "m"], "Give --url at least twice"),
        (["--url", "mock://", "mock://", "--model", "m", "--export-level", "summary"], "keeps no request records"),
    ):
        done = program.run("compare", *words, command="penstock")
        assert (done.status, said in done.err) == (2, True), done
    assert "compare --url A --url B" in program.run("compare", "--help", command="penstock").out


def test_difference_beyond_a_limit_gives_exit_status_1(program: Program, mock: Callable[..., MockServer]) -> None:
    flags = ("--input-file", payloads(program, 30), "--use-server-token-count", "--concurrency", 2)
    runs = [program.profile(mock(ttft=ttft).url, *flags, texts=None).folder for ttft in (2, 52)]
    limits = ("--fail-if", "avg time_to_first_token>50%", "--fail-if", "p90 time_to_first_token<0")
    done = program.run("compare", *limits, *runs, command="penstock")
    assert done.status == 1
    assert "--fail-if 'avg time_to_first_token>50%'" in done.err
    plain = json.loads(program.run("compare", *runs, "--json", command="penstock").out)
    if not invalid(plain):
        assert done.err.count("--fail-if") == 1
        assert program.run("compare", *runs, *limits[2:], command="penstock").status == 0
    refused = program.run("compare", *runs, "--fail-if", "p90 benchmark_duration>1", command="penstock")
    assert refused.status == 2
