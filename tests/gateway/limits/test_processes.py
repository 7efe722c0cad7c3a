"""Limits that several processes share: exact under load, and sound when one of them is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.gateway.limits import Reservation, SharedTable, open_limiter
from penstock.gateway.limits.limit_plan import Window
from penstock.gateway.resources.config import LimitsConfig
from support import TESTS
from support.limit_objects import admitted, attempt, key, model, run

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process and waits until it is ready; `go` lets it begin."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*words: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.limit_process", *map(str, words)],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def is_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def results(processes: list[subprocess.Popen[str]]) -> list[Any]:
    for process in processes:
        is_ready(process)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [json.loads(process.communicate(timeout=60)[0]) for process in processes]


def test_four_processes_admit_together_exactly_the_limit(table_path: str, start: Start) -> None:
    table = SharedTable.create(table_path)
    # Three processes cannot use up the limit, four can: each admits some, however the kernel schedules them.
    counts = results([start("hammer", table_path, 1300, 4000) for _ in range(4)])
    assert sum(counts) == 4000
    assert all(count > 0 for count in counts)
    table.close()


def test_four_processes_never_hold_more_slots_than_there_are(table_path: str, start: Start) -> None:
    table = SharedTable.create(table_path)
    found = results([start("hold", table_path, 100, 3) for _ in range(4)])
    changes = sorted([(began, 1) for held in found for began, _ in held] + [(end, -1) for h in found for _, end in h])
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    assert most == 3
    table.close()


def test_the_slots_of_a_killed_process_are_free_again(table_path: str, start: Start) -> None:
    table = SharedTable.create(table_path)
    holder = start("occupy", table_path, 2)
    is_ready(holder)
    limiter = open_limiter(LimitsConfig(), table)
    caller, wanted = key(concurrency=2), model()

    async def play() -> None:
        refused = await attempt(limiter, caller, wanted, now=time.time())
        assert not admitted(refused)
        holder.kill()
        holder.wait()
        until = time.monotonic() + 60
        while not admitted(await attempt(limiter, caller, wanted, now=time.time())):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert admitted(await attempt(limiter, caller, wanted, now=time.time()))
        assert not admitted(await attempt(limiter, caller, wanted, now=time.time()))
        await limiter.close()

    run(play())


def test_a_process_killed_with_the_lock_in_its_hands_stops_nobody(table_path: str, start: Start) -> None:
    table = SharedTable.create(table_path)
    holder = start("lock", table_path)
    is_ready(holder)
    holder.kill()
    limiter = open_limiter(LimitsConfig(), table)

    async def play() -> None:
        assert admitted(await attempt(limiter, key(rpm=1), now=time.time()))
        await limiter.close()

    run(play())


def test_counts_outlive_the_processes_that_made_them(table_path: str) -> None:
    """A worker that is started anew goes on where the last one was."""
    table = SharedTable.create(table_path)

    async def play() -> list[bool]:
        outcomes = []
        for _ in range(3):
            limiter = open_limiter(LimitsConfig(), SharedTable.attach(table_path))
            outcomes.append(admitted(await attempt(limiter, key(rpm=2), now=1_800_000_000.0)))
            await limiter.close()
        return outcomes

    assert run(play()) == [True, True, False]
    table.close()


def test_a_sum_left_wrong_by_a_crash_refuses_nobody(table_path: str) -> None:
    """A process killed between the two writes of a charge: the sum has it, no counter does."""
    table = SharedTable.create(table_path)
    limiter = open_limiter(LimitsConfig(), table)
    now = 1_800_000_000.0
    window = Window("key", "key/id-alice", "requests", "minute", 3)

    async def play() -> list[bool]:
        outcomes = [admitted(await attempt(limiter, key(rpm=3), now=now))]
        table.words[table.find_window(window.low, window.high, window.width, 0) + 3] = 3
        outcomes += [admitted(await attempt(limiter, key(rpm=3), now=now)) for _ in range(3)]
        await limiter.close()
        return outcomes

    assert run(play()) == [True, True, True, False]


def test_the_file_is_private_and_not_followed_through_a_link(table_path: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    os.symlink(other, table_path)
    table = SharedTable.create(table_path)
    assert other.read_text() == "mine"
    assert os.stat(table_path).st_mode & 0o777 == 0o600
    table.close()
    os.unlink(table_path)
    os.symlink(other, table_path)
    with pytest.raises(OSError, match="symbolic"):
        SharedTable.attach(table_path)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\0" * 8192)
    with pytest.raises(ValueError, match="not a table"):
        SharedTable.attach(str(tmp_path / "x"))


def test_more_keys_than_the_table_holds_cost_no_memory_and_evict_the_oldest(table_path: str) -> None:
    table = SharedTable.create(table_path, windows=64, slots=16)
    size = os.path.getsize(table_path)
    limiter = open_limiter(LimitsConfig(), table)
    now = 1_800_000_000.0

    async def play() -> None:
        for number in range(500):
            assert admitted(await attempt(limiter, key(f"k{number}", rpm=1, concurrency=1), now=now + number / 100))
        assert os.path.getsize(table_path) == size
        assert limiter.evicted == table.evicted > 0
        # the newest are still counted
        assert not admitted(await attempt(limiter, key("k499", rpm=1, concurrency=5), now=now + 5))

    run(play())
    table.close()


def test_windows_that_ran_out_make_room_without_being_counted_as_evicted(table_path: str) -> None:
    table = SharedTable.create(table_path, windows=16, slots=16)
    limiter = open_limiter(LimitsConfig(), table)

    async def play() -> None:
        for number in range(200):
            outcome = await attempt(limiter, key(f"k{number}", rps=1), now=1_800_000_000.0 + number)
            assert isinstance(outcome, Reservation)

    run(play())
    assert table.evicted == 0
    table.close()
