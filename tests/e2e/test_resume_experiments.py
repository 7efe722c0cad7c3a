"""`--resume` of every kind of experiment, after `kill -9` and Ctrl-C at random moments: each turn counts once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from penstock.records.bodies import BodyReader
from penstock.records.log import SEARCH_LOAD, RunLog
from penstock.schedule.users import UserArrivals
from support.programs import Outcome, Program, Running

pytestmark = pytest.mark.slow

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGKILL)
CONVERSATIONS, TURNS = 60, 3


class Kind(NamedTuple):
    flags: tuple[Any, ...]
    points: int = 1
    """Points of the experiment; 0 if the results decide."""
    requests: int | None = None
    """Requests of each profiling phase; None if the results decide."""
    warmup: int = 0
    """Requests of the warmup of the first point."""
    servers: int = 1
    files: str = "prompts"


KINDS = {
    "raw replies of conversations": Kind(
        ("--concurrency", 6, "--conversation-num", CONVERSATIONS, "--export-level", "raw", "--workers-max", 2),
        requests=CONVERSATIONS * TURNS,
        files="conversations",
    ),
    "a number of requests of conversations": Kind(
        ("--concurrency", 4, "--request-count", 160, "--random-seed", 1), requests=160, files="conversations"
    ),
    "a rate": Kind(("--request-rate", 150, "--request-count", 200), requests=200),
    "a sweep": Kind(("--concurrency", "2,4,8", "--request-count", 80), points=3, requests=80),
    "a sweep until a precision": Kind(
        ("--concurrency", "4,8", "--request-count", 3000, "--until", "avg request_latency ±30%"), points=2
    ),
    "a sweep of synthetic prompts": Kind(
        ("--isl", "10,20", "--osl", 4, "--concurrency", 4, "--request-count", 80, "--tokenizer", "builtin"),
        points=2,
        requests=80,
        files="none",
    ),
    "repeated runs": Kind(
        ("--num-profile-runs", 3, "--concurrency", 4, "--request-count", 60, "--warmup-request-count", 20),
        points=3,
        requests=60,
        warmup=20,
    ),
    "a sweep that chooses its points": Kind(("--sweep", "auto", "--request-count", 60), points=0, requests=60),
    "a search": Kind(("--find-max", "concurrency", "--slo", "p90 request_latency<60", "--search-max", 16), points=0),
    "a search for a peak": Kind(
        (
            *("--search-recipe", "max-goodput-under-slo", "--e2e-sla-ms", 90, "--search-min", 20),
            *("--search-max", 640, "--request-count", 60),
        ),
        points=0,
        requests=60,
    ),
    "users": Kind(
        ("--user-centric-rate", 120, "--num-users", 12, "--conversation-num", CONVERSATIONS),
        requests=sum(UserArrivals(12, 120.0).turns_of(number, TURNS) for number in range(CONVERSATIONS)),
        files="conversations",
    ),
    "a comparison of servers": Kind(("--concurrency", 4, "--request-count", 80), requests=160, servers=2),
    "conversations that start others": Kind(
        ("--concurrency", 4, "--conversation-num", CONVERSATIONS, "--workers-max", 2),
        requests=CONVERSATIONS * 6,
        files="trees",
    ),
    "a replay that is still being read": Kind(
        ("--custom-dataset-type", "raw_payload", "--concurrency", 8), requests=600, files="payloads"
    ),
}


def input_flags(folder: Path, files: str) -> list[Any]:
    path = folder / f"{files}.jsonl"
    match files:
        case "none":
            return []
        case "prompts":
            lines: list[Any] = [{"text": f"Prompt {number}."} for number in range(600)]
        case "payloads":
            lines = [
                {"model": "m", "messages": [{"role": "user", "content": f"Prompt {number}."}]} for number in range(600)
            ]
        case "trees":
            lines = [line for number in range(CONVERSATIONS) for line in tree(number)]
        case _:
            lines = [
                {"session_id": f"c{number}", "turns": [{"text": f"Turn {turn} of {number}."} for turn in range(TURNS)]}
                for number in range(CONVERSATIONS)
            ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    more = ["--custom-dataset-type", "multi_turn"] if files == "conversations" else []
    return ["--input-file", path, "--use-server-token-count", *more]


def tree(number: int) -> list[dict[str, Any]]:
    """Return the lines of a root whose second turn waits for a child, and which ends with two forks."""

    def turn(**fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": f"Prompt of {number}."}], **fields}

    root = [turn(spawns=[f"s{number}"]), turn(forks=[f"f{number}", f"g{number}"])]
    children = [(f"s{number}", [turn(), turn()]), (f"f{number}", [turn()]), (f"g{number}", [turn()])]
    return [{"session_id": name, "turns": turns} for name, turns in [(f"r{number}", root), *children]]


def end(running: Running, random: Random, number: int) -> bool:
    """End a run at a random moment after it has begun to write records; return False if it has ended by then."""
    log = running.folder / "log"
    while running.process.poll() is None and not any(path.stat().st_size for path in log.glob("worker-*.log")):
        time.sleep(0.01)
    time.sleep(random.random())
    if running.process.poll() is not None:
        return False
    os.killpg(os.getpgid(running.process.pid), number)
    return running.wait().status in (-number, 130)


@pytest.mark.parametrize("name", KINDS)
def test_each_turn_counts_once_after_ends_at_random_moments(mock, program: Program, name: str) -> None:
    kind = KINDS[name]
    random = Random(f"{name} 1")
    slow = mock(ttft=40, tokens=2, slots=8)
    urls = [slow.url, *(mock(ttft=50, tokens=2).url for _ in range(1, kind.servers))]
    folder = program.folder / "run"
    begin = ["profile"] if kind.servers == 1 else ["compare"]
    flags = [flag for url in urls for flag in ("--url", url)]
    data = input_flags(program.folder, kind.files)
    env = {"PENSTOCK_FIRST_BYTES": "2000"} if kind.files == "payloads" else {}
    arguments: list[Any] = [*begin, "--model", "m", "--artifact-dir", folder, *flags, *data, *kind.flags]
    running = program.start(*arguments, folder=folder, command="penstock", **env)
    for number in SIGNALS:
        if not end(running, random, number):
            break
        assert not twice(folder)
        running = program.start("profile", "--resume", folder, folder=folder, **env)
    done = running.wait()
    if "is complete: there is nothing to resume." in done.err:  # it was killed while it wrote its report
        done = program.run("report", folder, command="penstock")
        done.folder = folder
    assert done.status == 0, done
    check(kind, done, folder)
    again = program.run("profile", "--resume", folder)
    assert again.status == 2
    assert "is complete: there is nothing to resume." in again.err


def counted(log: RunLog) -> Counter[tuple[str, int, int]]:
    kinds = {phase.index: phase.kind for phase in log.phases}
    return Counter((kinds[record.phase], record.number, record.turn) for record in log.records())


def logs(folder: Path) -> list[RunLog]:
    log = RunLog(str(folder / "log"))
    return [log.at_point(point.index) for point in log.points] or [log]


def twice(folder: Path) -> list[Any]:
    """Return the turns that count more than once."""
    return [turn for log in logs(folder) for turn, count in counted(log).items() if count > 1]


def check(kind: Kind, done: Outcome, folder: Path) -> None:
    points = logs(folder)
    assert len(points) == kind.points or not kind.points
    assert not twice(folder)
    for number, log in enumerate(points):
        found = counted(log)
        profiled = [turn for turn in found if turn[0] == "profiling"]
        if kind.requests is not None:
            assert len(profiled) == kind.requests
        assert len(found) - len(profiled) == (kind.warmup if number == 0 else 0)
        assert all(record.failure is None and not record.cancelled for record in log.records())
        if kind.files == "conversations" and "--conversation-num" in kind.flags and "--num-users" not in kind.flags:
            turns = [(number, turn) for number in range(CONVERSATIONS) for turn in range(TURNS)]
            assert sorted((number, turn) for _, number, turn in profiled) == turns
        if "raw" in kind.flags:
            with BodyReader(log) as reader:
                assert all(reader.raw_reply(record) is not None for record in log.records())
    if kind.servers > 1:
        assert json.loads((folder / "compare.json").read_text())
    elif points[0].point is None:
        assert done.summary["is_complete"] is True
        assert done.summary["request_count"]["avg"] == sum(turn[0] == "profiling" for turn in counted(points[0]))
    if "--find-max" in kind.flags:
        decisions = RunLog(str(folder / "log")).decisions(SEARCH_LOAD)
        assert len(decisions) == len({decision.phase for decision in decisions}) == len(points)
