"""Supervision of workers: those that end or hang are replaced, and only those that serve count as alive."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.gateway.resources.config import GatewayConfig, ListenConfig
from penstock.gateway.serving import worker_pool
from penstock.gateway.serving.listeners import Listeners
from penstock.gateway.serving.runtime import Runtime, WorkerState
from penstock.gateway.serving.worker_pool import WorkerPool
from support.programs import wait_for


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    listeners = Listeners.open(ListenConfig(port=0, workers=2))
    yield listeners
    listeners.close_all()


@pytest.fixture
def runtime(listeners: Listeners) -> Iterator[Runtime]:
    listen = ListenConfig(port=listeners.port, workers=2, worker_timeout_s=5)
    runtime = Runtime.create(GatewayConfig(listen=listen))
    yield runtime
    runtime.remove()


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(worker_pool, "time", clock)
    return clock


@pytest.fixture
def pool(runtime: Runtime, listeners: Listeners, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    """Two workers that only wait to be killed."""

    def spawn(*_: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])

    monkeypatch.setattr(WorkerPool, "_spawn", spawn)
    pool = WorkerPool(runtime, listeners)
    pool.start()
    yield pool
    pool.kill()


def beat(pool: WorkerPool, runtime: Runtime, number: int, heartbeat: int) -> None:
    process = pool._workers[number].process
    assert process is not None
    runtime.state.write_slot(number, WorkerState(process.pid, 1, 0, 0, 0, heartbeat))


def kill(pool: WorkerPool, number: int = 0) -> None:
    process = pool._workers[number].process
    assert process is not None
    process.kill()
    process.wait()


def test_worker_without_heartbeat_is_not_alive_and_is_replaced(
    pool: WorkerPool, runtime: Runtime, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pool.alive() == 0
    beat(pool, runtime, 0, 1)
    beat(pool, runtime, 1, 1)
    hanging = pool._workers[0].process
    assert hanging is not None
    hanging.send_signal(signal.SIGSTOP)
    assert pool.alive() == 2
    for heartbeat in range(2, 20):
        clock.now += 0.4
        beat(pool, runtime, 1, heartbeat)
        pool.supervise()
        if heartbeat == 10:
            assert pool.alive() == 1
    wait_for(lambda: hanging.poll() is not None)
    pool.supervise()
    assert pool.restarts() == [1, 0]
    assert pool._workers[0].process not in (None, hanging)
    assert capsys.readouterr().err.count("does not respond") == 1


def test_stack_of_a_worker_that_hangs_is_logged_before_it_is_killed(
    runtime: Runtime,
    listeners: Listeners,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = (
        "import faulthandler, signal, sys\n"
        "faulthandler.register(signal.SIGQUIT, open(sys.argv[1], 'w'))\n"
        "print(flush=True)\n"
        "def spin_forever():\n"
        "    while True: pass\n"
        "spin_forever()\n"
    )

    def spawn(_pool: WorkerPool, number: int, _listener: int) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-S", "-c", code, runtime.stack_path(number)]
        process = subprocess.Popen(program, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    monkeypatch.setattr(WorkerPool, "_spawn", spawn)
    pool = WorkerPool(runtime, listeners)
    pool.start()
    hanging = pool._workers[0].process
    assert hanging is not None
    clock.now += worker_pool.START_S + 1
    pool.supervise()
    wait_for(lambda: "spin_forever" in Path(runtime.stack_path(0)).read_text())
    assert hanging.poll() is None
    clock.now += worker_pool.STACK_S
    pool.supervise()
    wait_for(lambda: hanging.poll() is not None)
    assert "in spin_forever" in capsys.readouterr().err
    pool.kill()


def test_pause_of_the_main_process_does_not_count_as_silence(pool: WorkerPool, runtime: Runtime, clock: Clock) -> None:
    for number in (0, 1):
        beat(pool, runtime, number, 1)
    pool.supervise()
    clock.now += 3600
    pool.supervise()
    assert (pool.alive(), pool.restarts()) == (2, [0, 0])


def test_worker_that_keeps_ending_is_replaced_after_growing_delays(pool: WorkerPool, clock: Clock) -> None:
    delays = []
    for _ in range(9):
        kill(pool)
        pool.supervise()
        started = pool._workers[0].restart_at or clock.now
        delays.append(started - clock.now)
        clock.now = started
        pool.supervise()
        assert pool._workers[0].process is not None
    assert delays == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    clock.now += worker_pool.HEALTHY_S
    kill(pool)
    pool.supervise()
    assert pool._workers[0].process is not None
    assert pool.restarts()[0] == 10


def test_connections_wait_for_a_replacement_or_go_to_another_worker(pool: WorkerPool, listeners: Listeners) -> None:
    kill(pool)
    pool.supervise()
    assert len(listeners.descriptors()) == 2  # the replacement accepts what waits
    kill(pool)
    pool.supervise()
    assert len(listeners.descriptors()) == 1  # it starts later, and its callers must not wait for it
    socket.create_connection(("127.0.0.1", listeners.port), 10).close()
