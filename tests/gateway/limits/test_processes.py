"""Limits shared by several processes: exact under load, and correct after a process is killed."""

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

from penstock.errors import UserError
from penstock.gateway.limits import Reservation, SharedTable, open_limiter
from penstock.gateway.resources.config import LimitsConfig
from support import TESTS
from support.limit_objects import admitted, attempt, key, model, run

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a process, which waits for a line on stdin before it works."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.limit_process", *map(str, arguments)],
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


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def results(processes: list[subprocess.Popen[str]]) -> list[Any]:
    for process in processes:
        wait_until_ready(process)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [json.loads(process.communicate(timeout=60)[0]) for process in processes]


def test_four_processes_together_admit_exactly_the_limit(table_path: str, start: Start) -> None:
    table = SharedTable.open(table_path)
    # Three processes cannot use up the limit, four can: each admits some, however the kernel schedules them.
    counts = results([start("hammer", table_path, 1300, 4000) for _ in range(4)])
    assert sum(counts) == 4000
    assert all(count > 0 for count in counts)
    table.close()


def test_four_processes_never_hold_more_slots_than_the_limit(table_path: str, start: Start) -> None:
    table = SharedTable.open(table_path)
    held_by_process = results([start("hold", table_path, 100, 3) for _ in range(4)])
    changes = sorted(
        [(start, 1) for spans in held_by_process for start, _ in spans]
        + [(end, -1) for spans in held_by_process for _, end in spans]
    )
    held = max_held = 0
    for _, change in changes:
        held += change
        max_held = max(max_held, held)
    assert max_held == 3
    table.close()


def test_slots_of_a_killed_process_are_released(table_path: str, start: Start) -> None:
    table = SharedTable.open(table_path)
    holder = start("occupy", table_path, 2)
    wait_until_ready(holder)
    limiter = open_limiter(LimitsConfig(), table)
    caller, requested = key(concurrency=2), model()

    async def scenario() -> None:
        refused = await attempt(limiter, caller, requested, now=time.time())
        assert not admitted(refused)
        holder.kill()
        holder.wait()
        deadline = time.monotonic() + 60
        while not admitted(await attempt(limiter, caller, requested, now=time.time())):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert admitted(await attempt(limiter, caller, requested, now=time.time()))
        assert not admitted(await attempt(limiter, caller, requested, now=time.time()))
        await limiter.close()

    run(scenario())


def test_lock_of_a_killed_process_is_released(table_path: str, start: Start) -> None:
    table = SharedTable.open(table_path)
    holder = start("lock", table_path)
    wait_until_ready(holder)
    holder.kill()
    limiter = open_limiter(LimitsConfig(), table)

    async def scenario() -> None:
        assert admitted(await attempt(limiter, key(rpm=1), now=time.time()))
        await limiter.close()

    run(scenario())


def test_counts_survive_a_worker_restart(table_path: str) -> None:
    table = SharedTable.open(table_path)

    async def scenario() -> list[bool]:
        outcomes = []
        for _ in range(3):
            limiter = open_limiter(LimitsConfig(), SharedTable.attach(table_path))
            outcomes.append(admitted(await attempt(limiter, key(rpm=2), now=1_800_000_000.0)))
            await limiter.close()
        return outcomes

    assert run(scenario()) == [True, True, False]
    table.close()


@pytest.mark.parametrize("limits", [{"rpd": 2}, {"tpd": 20}, {"rpm": 2, "rpd": 50}])
def test_counts_survive_a_restart_of_the_gateway(table_path: str, limits: dict[str, int]) -> None:
    async def scenario() -> list[bool]:
        outcomes = []
        for _ in range(3):
            main = SharedTable.open(table_path)
            limiter = open_limiter(LimitsConfig(), SharedTable.attach(table_path))
            outcomes.append(admitted(await attempt(limiter, key(**limits), tokens=10, now=1_800_000_000.0)))
            await limiter.close()
            main.close()
        return outcomes

    assert run(scenario()) == [True, True, False]


@pytest.mark.parametrize("content", [b"", b"x" * 8192, b"PSNL3\0\0\0" + b"\x01" * 16])
def test_damaged_table_is_replaced(table_path: str, content: bytes) -> None:
    Path(table_path).write_bytes(content)
    table = SharedTable.open(table_path)
    limiter = open_limiter(LimitsConfig(), table)
    assert admitted(run(attempt(limiter, key(rpd=1), now=time.time())))
    table.close()


def test_table_that_cannot_be_created_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be created"):
        SharedTable.open(str(tmp_path / "missing" / "limits"))


def test_table_file_is_private_and_symlinks_are_not_followed(table_path: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    os.symlink(other, table_path)
    table = SharedTable.open(table_path)
    assert other.read_text() == "mine"
    assert os.stat(table_path).st_mode & 0o777 == 0o600
    table.close()
    os.unlink(table_path)
    os.symlink(other, table_path)
    with pytest.raises(OSError, match="symbolic"):
        SharedTable.attach(table_path)


def test_file_that_is_not_a_table_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\0" * 8192)
    with pytest.raises(ValueError, match="not a limits table"):
        SharedTable.attach(str(tmp_path / "x"))


def test_full_table_keeps_its_size_and_evicts_the_oldest_windows(table_path: str) -> None:
    table = SharedTable.open(table_path, windows=64, slots=16)
    size = os.path.getsize(table_path)
    limiter = open_limiter(LimitsConfig(), table)
    now = 1_800_000_000.0

    async def scenario() -> None:
        for number in range(500):
            assert admitted(await attempt(limiter, key(f"k{number}", rpm=1, concurrency=1), now=now + number / 100))
        assert os.path.getsize(table_path) == size
        assert limiter.evicted == table.evicted > 0
        # the newest windows still count
        assert not admitted(await attempt(limiter, key("k499", rpm=1, concurrency=5), now=now + 5))

    run(scenario())
    table.close()


def test_replacing_expired_windows_is_not_counted_as_eviction(table_path: str) -> None:
    table = SharedTable.open(table_path, windows=16, slots=16)
    limiter = open_limiter(LimitsConfig(), table)

    async def scenario() -> None:
        for number in range(200):
            outcome = await attempt(limiter, key(f"k{number}", rps=1), now=1_800_000_000.0 + number)
            assert isinstance(outcome, Reservation)

    run(scenario())
    assert table.evicted == 0
    table.close()
