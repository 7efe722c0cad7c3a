"""The worker processes: start them, notice those that end or hang, and replace them.

A worker that ends is replaced at once. One that keeps ending soon after its start is replaced after a growing delay, during
which the others serve its callers. A worker whose event loop does not run for `worker_timeout_s`, such as a stopped process,
is killed and replaced. Before that, its stack is logged.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from math import inf

from penstock.errors import RunError
from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.serving.listeners import Listeners
from penstock.gateway.serving.runtime import STACK_SIGNAL, Runtime
from penstock.processes import spawn

START_S = 20.0
KILL_S = 3.0
"""How long a worker may take to write its last entries after the drain time."""
MAX_STACK_CHARS = 16_384
HEALTHY_S = 60.0
"""Age from which a worker has started well: if it ends later, it is replaced without a delay."""
FIRST_DELAY_S, LAST_DELAY_S = 0.5, 30.0
STALE_S = 2.0
"""Time without a heartbeat after which a worker does not count as alive."""
STACK_S = 1.0
"""How long a worker that does not respond may take to write its stack."""
MAX_STEP_S = 0.5
"""If the main process itself was stopped, the time does not count as silence of the workers."""


class _Worker:
    """One worker process, and the history of its predecessors."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.restarts = 0
        self.early_ends = 0
        """Ends in a row, each less than HEALTHY_S after the start."""
        self.restart_at: float | None = None
        self.heartbeat = (0, 0)
        """Process id and number of the last heartbeat that was seen."""
        self.silent_s = 0.0
        self.kill_at: float | None = None
        """When to kill the worker, which has been asked for its stack."""


class WorkerPool:
    """The workers of a gateway. For use by the main thread; `alive` and `restarts` may be called by any thread."""

    def __init__(self, runtime: Runtime, listeners: Listeners) -> None:
        self._runtime = runtime
        self._listeners = listeners
        self._workers = [_Worker(number) for number in range(runtime.config.listen.workers)]
        self._retired: list[tuple[subprocess.Popen[bytes], float]] = []
        """Processes that finish their requests after they were replaced, and when to kill them."""
        self._checked_at = time.monotonic()

    # -- start --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for worker in self._workers:
            self._start(worker)

    def _start(self, worker: _Worker) -> None:
        worker.process = self._spawn(worker.number, self._listeners.listen(worker.number))
        worker.started_at = time.monotonic()
        worker.restart_at = worker.kill_at = None
        worker.silent_s = 0.0

    def _spawn(self, number: int, listener: int) -> subprocess.Popen[bytes]:
        module = "penstock.gateway.serving.worker"
        return spawn(module, self._runtime.folder, str(number), str(listener), pass_fds=(listener,))

    def started(self) -> bool:
        """Return whether all workers serve. Raise RunError if one has ended."""
        for worker in self._workers:
            if worker.process is not None and worker.process.poll() is not None:
                raise RunError(
                    f"worker {worker.number} ended with status {worker.process.returncode} during its start."
                )
        return all(self._serves(worker) for worker in self._workers)

    def _serves(self, worker: _Worker) -> bool:
        return worker.process is not None and self._runtime.state.slot(worker.number).pid == worker.process.pid

    # -- supervision --------------------------------------------------------------------------------------------------

    def supervise(self) -> None:
        """Replace workers that have ended or hang. Call this several times a second."""
        now = time.monotonic()
        step = min(now - self._checked_at, MAX_STEP_S)
        self._checked_at = now
        for worker in self._workers:
            process = worker.process
            if process is None:
                if worker.restart_at is not None and now >= worker.restart_at:
                    self._start(worker)
            elif process.poll() is not None:
                self._on_end(worker, process, now)
            elif not self._is_hanging(worker, step, now):
                worker.kill_at = None
            elif worker.kill_at is None:
                process.send_signal(STACK_SIGNAL)
                worker.kill_at = now + STACK_S
            elif now >= worker.kill_at:
                self._kill(worker, process)
        self._reap_retired(now)

    def _kill(self, worker: _Worker, process: subprocess.Popen[bytes]) -> None:
        with open(self._runtime.stack_path(worker.number), "a+", errors="replace") as file:
            file.seek(0)
            stack = file.read(MAX_STACK_CHARS).strip() or "not known, because the process is stopped"
        log_operator_message(
            f"worker {worker.number} (process {process.pid}) does not respond; it is killed. Its stack: {stack}",
            "error",
        )
        process.kill()
        worker.kill_at = inf

    def _is_hanging(self, worker: _Worker, step: float, now: float) -> bool:
        if not self._serves(worker):
            return now - worker.started_at > START_S
        slot = self._runtime.state.slot(worker.number)
        if (slot.pid, slot.heartbeat) != worker.heartbeat:
            worker.heartbeat = (slot.pid, slot.heartbeat)
            worker.silent_s = 0.0
        else:
            worker.silent_s += step
        return worker.silent_s > self._runtime.config.listen.worker_timeout_s

    def _on_end(self, worker: _Worker, process: subprocess.Popen[bytes], now: float) -> None:
        self._runtime.state.clear_slot(worker.number)
        _close_stdin(process)
        worker.process = None
        worker.restarts += 1
        worker.early_ends = worker.early_ends + 1 if now - worker.started_at < HEALTHY_S else 0
        # The first end of a worker does not delay its replacement, however early it is.
        delay = min(FIRST_DELAY_S * 2 ** (worker.early_ends - 2), LAST_DELAY_S) if worker.early_ends > 1 else 0.0
        when = f"in {delay:g} s" if delay else "now"
        log_operator_message(
            f"worker {worker.number} ended with status {process.returncode}; starting a new one {when}", "error"
        )
        if delay:
            self._listeners.close(worker.number)
            worker.restart_at = now + delay
        else:
            self._start(worker)

    def replace_all(self) -> bool:
        """Start new workers with the current configuration, then let the previous ones finish their requests. If one of
        the new workers does not start, keep its predecessor and return False."""
        for worker in self._workers:
            previous = worker.process
            if previous is None:
                continue  # it starts later, with the current configuration
            self._start(worker)
            assert worker.process is not None
            deadline = time.monotonic() + START_S
            while not self._serves(worker):
                if worker.process.poll() is not None or time.monotonic() > deadline:
                    worker.process.kill()
                    worker.process.wait()
                    worker.process = previous
                    return False
                time.sleep(0.005)
            previous.send_signal(signal.SIGUSR2)
            drain_s = self._runtime.config.listen.drain_s
            self._retired.append((previous, time.monotonic() + drain_s + KILL_S))
        return True

    def _reap_retired(self, now: float) -> None:
        for process, deadline in list(self._retired):
            if process.poll() is not None:
                _close_stdin(process)
                self._retired.remove((process, deadline))
            elif now > deadline:
                process.kill()

    # -- status -------------------------------------------------------------------------------------------------------

    def alive(self) -> int:
        """Return the number of workers that serve requests."""
        return sum(1 for worker in self._workers if self._serves(worker) and worker.silent_s < STALE_S)

    def restarts(self) -> list[int]:
        return [worker.restarts for worker in self._workers]

    def __len__(self) -> int:
        return len(self._workers)

    # -- end ----------------------------------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        for process in self._processes():
            if process.poll() is None:
                process.send_signal(number)

    def ended(self) -> bool:
        return all(process.poll() is not None for process in self._processes())

    def kill(self) -> None:
        for process in self._processes():
            if process.poll() is None:
                process.kill()
            process.wait()
            _close_stdin(process)

    def _processes(self) -> list[subprocess.Popen[bytes]]:
        current = [worker.process for worker in self._workers if worker.process is not None]
        return [*current, *(process for process, _ in self._retired)]


def _close_stdin(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
