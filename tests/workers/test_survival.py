"""Runs in which something outside breaks: the disk fills, the server restarts, the network is cut, the clock is set."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.records import log as run_log
from penstock.wire import clock as clocks
from penstock.wire import kernel_stamps
from penstock.wire.kernel_stamps import TIMESPEC
from support.worker_harness import Connection, Harness, Request, always, chat_reply

BODIES = [[{"messages": [{"role": "user", "content": f"prompt {number}"}]}] for number in range(60)]


def test_full_disk_ends_the_run_with_one_sentence_and_keeps_the_records_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two flushes of the worker's log succeed, then the disk is full."""
    write, flushes = os.write, 0

    class FullDisk:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        @staticmethod
        def write(file: int, data: bytes) -> int:
            nonlocal flushes
            if os.readlink(f"/proc/self/fd/{file}").endswith("worker-0.log"):
                flushes += 1
                if flushes > 2:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(file, data)

    monkeypatch.setattr(run_log, "os", FullDisk())
    monkeypatch.setattr(run_log, "_FLUSH_BYTES", 1)
    harness = Harness(tmp_path, always(chat_reply()))
    with pytest.raises(UserError, match="The disk is full"):
        harness.run(BODIES)
    monkeypatch.undo()
    log = run_log.RunLog(str(tmp_path / "log"))
    assert len(list(log.records())) == 2


def test_requests_fail_while_the_server_restarts_and_the_later_ones_succeed(tmp_path: Path) -> None:
    async def answer(request: Request, connection: Connection) -> None:
        if 20 <= request.number < 25:
            connection.reset()
        else:
            await connection.send(chat_reply())

    outcome = Harness(tmp_path, answer).run(BODIES)
    failed = [record for record in outcome.records if record.failure is not None]
    assert len(outcome.records) == 60
    assert len(failed) == 5
    assert {record.failure.type for record in failed if record.failure is not None} == {"ConnectionLost"}


def test_request_during_a_network_cut_ends_when_the_network_is_back(tmp_path: Path) -> None:
    """The bytes of both sides are held for a second, as those of a cut network that TCP sends again."""

    async def answer(request: Request, connection: Connection) -> None:
        if request.number == 10:
            await asyncio.sleep(1.0)
        await connection.send(chat_reply())

    outcome = Harness(tmp_path, answer).run(BODIES)
    assert all(record.failure is None for record in outcome.records)
    slow = [record for record in outcome.records if record.end - record.start >= 1_000_000_000]
    assert [record.number for record in slow] == [10]


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_stepped_wall_clock_is_counted_and_leaves_durations_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    stepped = False

    class SteppedStamp:
        @staticmethod
        def unpack(data: bytes) -> tuple[int, int]:
            seconds, nanoseconds = TIMESPEC.unpack(data)
            return seconds + (step_s if stepped else 0), nanoseconds

    monkeypatch.setattr(kernel_stamps, "TIMESPEC", SteppedStamp)
    monkeypatch.setattr(clocks, "time_ns", lambda: time.time_ns() + (step_s * 1_000_000_000 if stepped else 0))

    async def answer(request: Request, connection: Connection) -> None:
        nonlocal stepped
        if request.number == 5:
            stepped = True
            await asyncio.sleep(0.2)  # longer than the time between two readings of the clock
        await connection.send(chat_reply())

    outcome = Harness(tmp_path, answer).run(BODIES)
    assert outcome.report.clock_steps == 1
    assert all(record.failure is None for record in outcome.records)
    assert all(0 < record.end - record.start < 60_000_000_000 for record in outcome.records)


def test_descriptors_stay_flat_over_many_connections_and_failures(tmp_path: Path) -> None:
    """Each request has a connection of its own, and every fifth one is reset. The server's sockets are counted, too."""
    open_files: list[int] = []

    async def answer(request: Request, connection: Connection) -> None:
        open_files.append(len(os.listdir("/proc/self/fd")))
        if request.number % 5 == 4:
            connection.reset()
        else:
            await connection.send(chat_reply())

    before = len(os.listdir("/proc/self/fd"))
    harness = Harness(tmp_path, answer)
    outcome = harness.run(BODIES, reuse=False, slots=8, requests=300)
    assert len(outcome.records) == 300
    assert harness.connections[0] >= 300
    assert max(open_files) - before < 100
    assert len(os.listdir("/proc/self/fd")) - before < 20
