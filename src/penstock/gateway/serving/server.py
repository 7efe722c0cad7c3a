"""The main process: it reads the files, starts the workers and replaces those that die, answers operators, moves usage
into the ledger, and ends all of it in order.

    SIGHUP            take the resource file again
    SIGTERM, SIGINT   drain: /readyz says 503, live requests are finished, then everything ends; at a second one they are
                      cut off, with their records
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import RunError, UserError
from penstock.gateway.limits import SharedTable
from penstock.gateway.observe.access_log import check_log
from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.resources.config import GatewayConfig, ListenConfig
from penstock.gateway.serving.runtime import Runtime
from penstock.processes import spawn

if TYPE_CHECKING:
    from penstock.gateway.serving.reload import Reloader
    from penstock.gateway.serving.status import StatusListener

__all__ = ["Gateway"]

START_S = 20.0
POLL_S = 0.05
KILL_S = 3.0
"""After the drain's end: how long a worker may take to write its last records."""
CUT_OFF_S = 1.5
"""For somebody out of patience: the same."""
CRASHES, CRASH_WINDOW_S = 5, 30.0
"""So many deaths of workers within so long mean that starting them again does not help."""


class Gateway:
    def __init__(self, resources: str, config: GatewayConfig) -> None:
        self._resources = resources
        self._placeholder, listen = reserve(config.listen)
        self.config = msgspec.structs.replace(config, listen=listen)
        self._workers: list[subprocess.Popen[bytes] | None] = []
        self._deaths: list[float] = []
        self._event = threading.Event()
        self._stops = 0
        self._draining = False

    def run(self, announce: Callable[[Gateway], None]) -> int:
        """Serve until a signal. `announce` is called when requests are served."""
        check_log(self.config.access_log_file)
        if self.config.listen.tls_cert is not None:
            from penstock.gateway.serving.tls import check_tls

            check_tls(self.config.listen)
        runtime = Runtime.create(self.config)
        try:
            return self._run(runtime, announce)
        finally:
            for worker in self._workers:
                if worker is not None and worker.poll() is None:
                    worker.kill()
                    worker.wait()
            self._placeholder.close()
            runtime.remove()

    def _run(self, runtime: Runtime, announce: Callable[[Gateway], None]) -> int:
        from penstock.gateway.serving.reload import Reloader

        reloader = Reloader(self._resources, runtime, os.environ, log_operator_message)
        reloader.first()
        from penstock.gateway.ledger.mover import Mover
        from penstock.gateway.observe.exposition import Exposition

        mover = Mover(self.config.ledger.spool, self.config.ledger.url, log_operator_message)
        exposition = Exposition(self.config.ledger.spool)
        with contextlib.ExitStack() as ends:  # the last one first, and all of them, whatever happens to one
            ends.callback(SharedTable.create(runtime.limits_path).close)
            self._signals(reloader.ask)
            self._workers = [self._spawn(runtime, number) for number in range(self.config.listen.workers)]
            # The workers take a moment to start, in which the rest is made ready.
            status = self._status(runtime, reloader, lambda: exposition.render(mover.state(), reloader.metrics()))
            status.start()
            ends.callback(status.stop)
            mover.start()
            ends.callback(mover.stop)
            ends.callback(self._end_workers)
            reloader.start()
            ends.callback(reloader.stop)
            self._await_start(runtime)
            if not self._stops:
                announce(self)
            failed = self._watch(runtime)
            self._drain(runtime)
        return 1 if failed else 0

    def _status(self, runtime: Runtime, reloader: Reloader, metrics: Callable[[], bytes]) -> StatusListener:
        """It listens from now on; which port it is, is in the configuration then."""
        from penstock.gateway.observe.exposition import CONTENT_TYPE
        from penstock.gateway.serving.status import StatusListener

        listen = self.config.listen
        try:
            status = StatusListener(
                listen.status_host,
                listen.status_port,
                lambda: self._ready(runtime),
                reloader.status,
                lambda: (CONTENT_TYPE, metrics()),
            )
        except OSError as error:
            raise _cannot_listen(listen.status_host, listen.status_port, error, "listen.status_port") from None
        self.config = msgspec.structs.replace(
            self.config, listen=msgspec.structs.replace(listen, status_port=status.port)
        )
        return status

    # -- workers ------------------------------------------------------------------------------------------------------

    def _spawn(self, runtime: Runtime, number: int) -> subprocess.Popen[bytes]:
        return spawn("penstock.gateway.serving.worker", runtime.folder, str(number))

    def _await_start(self, runtime: Runtime) -> None:
        deadline = time.monotonic() + START_S
        while not self._stops:
            for number, worker in enumerate(self._workers):
                if worker is not None and worker.poll() is not None:
                    raise RunError(f"worker {number} ended with status {worker.returncode} as it started.")
            if all(runtime.board.slot(number).pid for number in range(len(self._workers))) and self._answers():
                return
            if time.monotonic() > deadline:
                raise RunError(f"The workers did not start within {START_S:.0f} seconds.")
            time.sleep(0.005)

    def _answers(self) -> bool:
        listen = self.config.listen
        try:
            socket.create_connection((_reachable(listen.host), listen.port), 1.0).close()
        except OSError:
            return False
        return True

    def _watch(self, runtime: Runtime) -> bool:
        """Until a signal, or until workers die faster than it makes sense to replace them: then True."""
        while not self._stops:
            self._event.wait(POLL_S)
            for number, worker in enumerate(self._workers):
                if worker is None or worker.poll() is None:
                    continue
                runtime.board.clear_slot(number)
                now = time.monotonic()
                self._deaths = [then for then in self._deaths if now - then < CRASH_WINDOW_S] + [now]
                if len(self._deaths) >= CRASHES:
                    log_operator_message(
                        f"worker {number} ended with status {worker.returncode}, as others did lately; giving up"
                    )
                    return True
                log_operator_message(f"worker {number} ended with status {worker.returncode}; starting another")
                if worker.stdin is not None:
                    worker.stdin.close()
                self._workers[number] = self._spawn(runtime, number)
        return False

    def _drain(self, runtime: Runtime) -> None:
        self._draining = True
        runtime.board.drain()
        listen = self.config.listen
        self._wait(listen.drain_notice_s, lambda: False)
        self._tell_workers(signal.SIGTERM)
        if self._wait(listen.drain_s + KILL_S, self._all_ended):
            return
        self._tell_workers(signal.SIGUSR1)
        if not self._wait(CUT_OFF_S, self._all_ended, patience=3):
            log_operator_message("some workers did not end in time and are killed")

    def _wait(self, seconds: float, done: Callable[[], bool], patience: int = 2) -> bool:
        """False when the time is over, or at so many signals."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() >= deadline or self._stops >= patience:
                return False
            time.sleep(0.01)
        return True

    def _tell_workers(self, number: int) -> None:
        for worker in self._workers:
            if worker is not None and worker.poll() is None:
                worker.send_signal(number)

    def _all_ended(self) -> bool:
        return all(worker is None or worker.poll() is not None for worker in self._workers)

    def _end_workers(self) -> None:
        for worker in self._workers:
            if worker is not None:
                if worker.poll() is None:
                    worker.kill()
                worker.wait()
                if worker.stdin is not None:
                    worker.stdin.close()

    # -- for operators ------------------------------------------------------------------------------------------------

    def _ready(self, runtime: Runtime) -> tuple[bool, dict[str, object]]:
        # The workers that are left serve every connection while one is replaced: no reason to send callers elsewhere.
        # One is alive a moment before it listens, and for a moment after it was killed: so callers' own way is tried.
        alive = sum(1 for number in range(len(self._workers)) if runtime.board.slot(number).pid)
        ready = not self._draining and alive > 0 and self._answers()
        detail: dict[str, object] = {
            "ready": ready,
            "draining": self._draining,
            "workers": {"alive": alive, "configured": len(self._workers)},
        }
        return ready, detail

    def _signals(self, reload: Callable[[], None]) -> None:
        def stop(_number: int, _frame: object) -> None:
            self._stops += 1
            self._event.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        signal.signal(signal.SIGHUP, lambda _number, _frame: reload())


def reserve(listen: ListenConfig) -> tuple[socket.socket, ListenConfig]:
    """Hold the port until the workers listen on it. They share it, so that this only works for those who agreed to."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
        # The kernel lets another gateway of ours share the port as well; a socket that shares with nobody finds out.
        with socket.socket(family, kind, proto) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            port = alone.getsockname()[1]
        held = socket.socket(family, kind, proto)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((address[0], port, *address[2:]))
    except OSError as error:
        raise _cannot_listen(listen.host, listen.port, error, "listen.port or with --port") from None
    return held, msgspec.structs.replace(listen, host=address[0], port=port)


def _cannot_listen(host: str, port: int, error: OSError, setting: str) -> UserError:
    if isinstance(error, socket.gaierror):
        return UserError(f"cannot listen on {host}: {error.strerror}")
    if error.errno == errno.EADDRINUSE:
        return UserError(f"port {port} on {host} is already in use; choose another one in {setting}")
    return UserError(f"cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}")


def _reachable(host: str) -> str:
    """An address on which a listener on all addresses can be reached."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
