"""Files that are read while they are sent, and files that change under the run. The first stretch is made small for it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.programs import MockServer, Outcome, Program, Running, wait_for

BODY = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x" * 900}]}


def big(program: Program, lines: int = 4000, bad: dict[int, str] | None = None) -> Path:
    """`bad` are other texts for some lines, by number from 1."""
    path = program.folder / "big.jsonl"
    with path.open("w") as file:
        for number in range(1, lines + 1):
            text = (bad or {}).get(number) or json.dumps(BODY | {"tag": number})
            file.write(text + "\n")
    return path


def begin(program: Program, server: MockServer, path: Path, *flags: object) -> Running:
    """With a first stretch of 64 KB instead of 64 MB, so that small files are large ones."""
    words = ("--input-file", path, "--use-server-token-count", "--concurrency", 8, *flags)
    return program.begin(server.url, *words, texts=None, PENSTOCK_FIRST_BYTES="65536")


def replay(program: Program, server: MockServer, path: Path, *flags: object) -> Outcome:
    return begin(program, server, path, *flags).wait()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_large_file_is_sent_whole_and_once(program: Program, mock: Callable[..., MockServer], workers: int) -> None:
    server = mock(hashes=True)
    done = replay(program, server, big(program, 3000), "--workers-max", workers)
    assert done.status == 0, done
    assert "big.jsonl (raw_payload, reading on while it is sent), byte for byte" in done.out
    assert done.summary["request_count"]["avg"] == 3000
    assert len({t["body_sha256"] for t in server.logged_requests()}) == 3000
    checked = program.run("verify", done.folder, "--against", program.folder / "big.jsonl", command="penstock")
    assert (checked.status, "are at another position" in checked.out) == (0, False), checked


def test_a_bad_line_found_later_ends_the_run(program: Program, mock: Callable[..., MockServer]) -> None:
    """Exit status 2, all problems, and a report of what was sent until then."""
    server = mock(ttft=2)
    path = big(program, 6000, {5000: "oops", 5500: "[]"})
    done = replay(program, server, path)
    assert done.status == 2, done
    assert "big.jsonl has 2 errors:\n  big.jsonl:5000: not valid JSON (expecting value, column 1)" in done.err
    assert "  big.jsonl:5500: the line should be an object, not a list" in done.err
    assert done.summary["is_complete"] is False
    assert "big.jsonl:5000" in done.summary["incomplete_reason"]
    assert 0 < done.summary["request_count"]["avg"] < 5000


def test_what_is_not_needed_is_not_read(program: Program, mock: Callable[..., MockServer]) -> None:
    """Behind the first stretch only; the lines that are sent lie before the bad one."""
    server = mock()
    path = big(program, 4000, {3000: "oops"})
    assert replay(program, server, path, "--request-count", 500).status == 0
    assert replay(program, server, big(program, 4000, {30: "oops"}), "--request-count", 5).status == 2


@pytest.mark.parametrize("strategy", ["shuffle", "random"])
def test_other_orders_index_the_whole_file_first(
    program: Program, mock: Callable[..., MockServer], strategy: str
) -> None:
    server = mock(hashes=True)
    path = big(program, 1500, {1400: "oops"})
    words = ("--dataset-sampling-strategy", strategy, "--request-count", 50, "--random-seed", 1)
    done = replay(program, server, path, *words)
    assert (done.status, "big.jsonl:1400" in done.err) == (2, True)
    assert not done.folder.joinpath("profile_export.jsonl").exists()
    assert replay(program, server, big(program, 1500), *words).status == 0
    assert len(server.logged_requests()) == 50


def test_the_index_goes_on_when_the_run_ends_by_time(program: Program, mock: Callable[..., MockServer]) -> None:
    """It must neither be waited for nor be left behind."""
    server = mock(ttft=20)
    done = replay(program, server, big(program, 20_000), "--benchmark-duration", 0.5)
    assert done.status == 0, done
    assert not [line for line in _processes() if str(program.folder) in line]


def _processes() -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found.append(Path("/proc", name, "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: os.truncate(path, 1_000_000), "the file was cut short during the run, from"),
        (lambda path: path.open("r+b").write(b'{"Model"'), "was changed during the run"),
        (lambda path: path.open("a").write("\n"), "grew during the run"),
        (lambda path: path.unlink(), "cannot be read any more (No such file or directory)"),
        (
            lambda path: (
                path.with_suffix(".new").write_bytes(path.read_bytes()),
                path.with_suffix(".new").replace(path),
            ),
            "was replaced by another file during the run",
        ),
    ],
    ids=["truncated", "edited", "grown", "removed", "replaced"],
)
def test_a_file_that_changes_during_the_run(
    program: Program, mock: Callable[..., MockServer], change: Callable[[Path], object], said: str
) -> None:
    server = mock(ttft=30)
    path = big(program, 3000)
    run = begin(program, server, path)
    records = run.folder / "log" / "worker-0.log"
    wait_for(lambda: records.exists() and records.stat().st_size, what="the first record")
    change(path)
    done = run.wait()
    assert done.status == 2, done
    assert said in done.err, done.err
    assert "Traceback" not in done.err
    assert done.summary["is_complete"] is False
    assert done.summary["request_count"]["avg"] > 0


def test_a_folder_with_more_files_than_may_be_open(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(hashes=True)
    folder = program.folder / "talks"
    folder.mkdir()
    for number in range(300):
        (folder / f"{number:04d}.jsonl").write_text(json.dumps(BODY | {"tag": number}) + "\n")
    words = ["profile", "--model", "m", "--url", server.url, "--input-file", folder, "--use-server-token-count"]
    script = f"ulimit -n 120; exec aiperf {' '.join(map(str, words))} --artifact-dir {program.folder / 'out'}"
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = program.run("-c", script, command="/bin/bash", **env)
    assert done.status == 0, done
    assert len(server.logged_requests()) == 300
