"""Files that are indexed during the run, and files that change during the run."""

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
    """Write a file of bodies. `bad` has other texts for some lines, which are numbered from 1."""
    path = program.folder / "big.jsonl"
    with path.open("w") as file:
        for number in range(1, lines + 1):
            text = (bad or {}).get(number) or json.dumps(BODY | {"tag": number})
            file.write(text + "\n")
    return path


def begin(program: Program, server: MockServer, path: Path, *flags: object) -> Running:
    """Start a run that indexes 64 KB instead of 64 MB before the first request, so that small files count as large."""
    arguments = ("--input-file", path, "--use-server-token-count", "--concurrency", 8, *flags)
    return program.begin(server.url, *arguments, texts=None, PENSTOCK_FIRST_BYTES="65536")


def replay(program: Program, server: MockServer, path: Path, *flags: object) -> Outcome:
    return begin(program, server, path, *flags).wait()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_large_file_is_sent_completely_and_once(
    program: Program, mock: Callable[..., MockServer], workers: int
) -> None:
    server = mock(hashes=True)
    done = replay(program, server, big(program, 3000), "--workers-max", workers)
    assert done.status == 0, done
    assert "big.jsonl (raw_payload, reading on while it is sent), byte for byte" in done.out
    assert done.summary["request_count"]["avg"] == 3000
    assert len({t["body_sha256"] for t in server.logged_requests()}) == 3000
    checked = program.run("verify", done.folder, "--against", program.folder / "big.jsonl", command="penstock")
    assert (checked.status, "are at another position" in checked.out) == (0, False), checked


def test_invalid_line_found_during_the_run_ends_it(program: Program, mock: Callable[..., MockServer]) -> None:
    """The exit status is 2, all errors are listed, and the report covers the requests sent before."""
    server = mock(ttft=2)
    path = big(program, 20_000, {18_000: "oops", 19_000: "[]"})  # indexing them takes a fifth of a second
    done = replay(program, server, path)
    assert done.status == 2, done
    assert "big.jsonl has 2 errors:\n  big.jsonl:18000: not valid JSON (expecting value, column 1)" in done.err
    assert "  big.jsonl:19000: the line should be an object, not a list" in done.err
    assert done.summary["is_complete"] is False
    assert "big.jsonl:18000" in done.summary["incomplete_reason"]
    assert 0 < done.summary["request_count"]["avg"] < 18_000


def test_lines_beyond_the_request_count_are_not_read(program: Program, mock: Callable[..., MockServer]) -> None:
    """This holds only after the part that is checked before the first request."""
    server = mock()
    path = big(program, 4000, {3000: "oops"})
    assert replay(program, server, path, "--request-count", 500).status == 0
    assert replay(program, server, big(program, 4000, {30: "oops"}), "--request-count", 5).status == 2


@pytest.mark.parametrize("strategy", ["shuffle", "random"])
def test_shuffle_and_random_index_the_whole_file_first(
    program: Program, mock: Callable[..., MockServer], strategy: str
) -> None:
    server = mock(hashes=True)
    path = big(program, 1500, {1400: "oops"})
    arguments = ("--dataset-sampling-strategy", strategy, "--request-count", 50, "--random-seed", 1)
    done = replay(program, server, path, *arguments)
    assert (done.status, "big.jsonl:1400" in done.err) == (2, True)
    assert not done.folder.joinpath("profile_export.jsonl").exists()
    assert replay(program, server, big(program, 1500), *arguments).status == 0
    assert len(server.logged_requests()) == 50


def test_indexer_ends_with_a_run_that_ends_by_time(program: Program, mock: Callable[..., MockServer]) -> None:
    """The run neither waits for the indexer nor leaves it running."""
    server = mock(ttft=20)
    done = replay(program, server, big(program, 20_000), "--benchmark-duration", 0.5)
    assert done.status == 0, done
    assert not [line for line in _processes() if str(program.folder) in line]


def _processes() -> list[str]:
    command_lines = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                command_lines.append(Path("/proc", name, "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return command_lines


@pytest.mark.parametrize(
    ("change", "message"),
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
def test_file_changed_during_the_run_ends_it(
    program: Program, mock: Callable[..., MockServer], change: Callable[[Path], object], message: str
) -> None:
    server = mock(ttft=30)
    path = big(program, 3000)
    run = begin(program, server, path)
    records = run.folder / "log" / "worker-0.log"
    wait_for(lambda: records.exists() and records.stat().st_size, what="the first record")
    change(path)
    done = run.wait()
    assert done.status == 2, done
    assert message in done.err, done.err
    assert "Traceback" not in done.err
    assert done.summary["is_complete"] is False
    assert done.summary["request_count"]["avg"] > 0


def test_folder_may_have_more_files_than_can_be_open(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(hashes=True)
    folder = program.folder / "talks"
    folder.mkdir()
    for number in range(300):
        (folder / f"{number:04d}.jsonl").write_text(json.dumps(BODY | {"tag": number}) + "\n")
    arguments = ["profile", "--model", "m", "--url", server.url, "--input-file", folder, "--use-server-token-count"]
    script = f"ulimit -n 120; exec aiperf {' '.join(map(str, arguments))} --artifact-dir {program.folder / 'out'}"
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = program.run("-c", script, command="/bin/bash", **env)
    assert done.status == 0, done
    assert len(server.logged_requests()) == 300
