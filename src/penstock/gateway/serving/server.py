"""The main process: it reads the files, starts workers and replaces those that die, serves the status port, moves usage
into the ledger, and shuts everything down in order.

    SIGHUP            reload the resource file
    SIGTERM, SIGINT   drain: /readyz returns 503, running requests are finished, then the gateway ends. A second signal
                      ends running requests at once; they are still recorded
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
SECONDS_PER_DAY = 86400.0
POLL_S = 0.05
KILL_S = 3.0
"""How long a worker may take to write its last entries after the drain time."""
CUT_OFF_S = 1.5
"""The same after a second signal."""
CRASHES, CRASH_WINDOW_S = 5, 30.0
"""After so many exits of workers within this time the gateway gives up."""


class Gateway:
    """The main process of the gateway. The constructor reserves the port."""

    def __init__(self, resources: str, config: GatewayConfig) -> None:
        self._resources = resources
        self._reserved_socket, listen = reserve_port(config.listen)
        self.config = msgspec.structs.replace(config, listen=listen)
        self._workers: list[subprocess.Popen[bytes] | None] = []
        self._exits: list[float] = []
        self._wake = threading.Event()
        self._stop_signals = 0
        self._draining = False

    def run(self, announce: Callable[[Gateway], None]) -> int:
        """Serve until a signal. Call `announce` when the workers accept requests."""
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
            self._reserved_socket.close()
            runtime.remove()

    def _run(self, runtime: Runtime, announce: Callable[[Gateway], None]) -> int:
        from penstock.gateway.serving.reload import Reloader

        reloader = Reloader(self._resources, runtime, os.environ, log_operator_message)
        reloader.load_first()
        from penstock.gateway.ledger.mover import Mover
        from penstock.gateway.observe.exposition import Exposition

        ledger = self.config.ledger
        mover = Mover(
            ledger.spool, ledger.url, log_operator_message, retention_s=ledger.retention_days * SECONDS_PER_DAY
        )
        exposition = Exposition(self.config.ledger.spool)
        with contextlib.ExitStack() as cleanup:  # runs in reverse order, and completely even if one callback fails
            cleanup.callback(SharedTable.create(runtime.limits_path).close)
            self._signals(reloader.request_reload)
            self._workers = [self._spawn(runtime, number) for number in range(self.config.listen.workers)]
            # Prepare the rest while the workers start.
            status = self._open_status_listener(
                runtime, reloader, lambda: exposition.render(mover.state(), reloader.metrics())
            )
            status.start()
            cleanup.callback(status.stop)
            mover.start()
            cleanup.callback(mover.stop)
            cleanup.callback(self._kill_workers)
            reloader.start()
            cleanup.callback(reloader.stop)
            self._await_start(runtime)
            if not self._stop_signals:
                announce(self)
            failed = self._supervise(runtime)
            self._drain(runtime)
        return 1 if failed else 0

    def _open_status_listener(
        self, runtime: Runtime, reloader: Reloader, metrics: Callable[[], bytes]
    ) -> StatusListener:
        """Open the status listener, and put its actual port into the configuration."""
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
        while not self._stop_signals:
            for number, worker in enumerate(self._workers):
                if worker is not None and worker.poll() is not None:
                    raise RunError(f"worker {number} ended with status {worker.returncode} during its start.")
            if (
                all(runtime.state.slot(number).pid for number in range(len(self._workers)))
                and self._accepts_connections()
            ):
                return
            if time.monotonic() > deadline:
                raise RunError(f"The workers did not start within {START_S:.0f} seconds.")
            time.sleep(0.005)

    def _accepts_connections(self) -> bool:
        listen = self.config.listen
        try:
            socket.create_connection((_connect_address(listen.host), listen.port), 1.0).close()
        except OSError:
            return False
        return True

    def _supervise(self, runtime: Runtime) -> bool:
        """Replace workers that end, until a signal. Return True if they end so often that the gateway gives up."""
        while not self._stop_signals:
            self._wake.wait(POLL_S)
            for number, worker in enumerate(self._workers):
                if worker is None or worker.poll() is None:
                    continue
                runtime.state.clear_slot(number)
                now = time.monotonic()
                self._exits = [then for then in self._exits if now - then < CRASH_WINDOW_S] + [now]
                if len(self._exits) >= CRASHES:
                    log_operator_message(
                        f"worker {number} ended with status {worker.returncode}; {CRASHES} workers ended within "
                        f"{CRASH_WINDOW_S:.0f} seconds, giving up"
                    )
                    return True
                log_operator_message(f"worker {number} ended with status {worker.returncode}; starting a new one")
                if worker.stdin is not None:
                    worker.stdin.close()
                self._workers[number] = self._spawn(runtime, number)
        return False

    def _drain(self, runtime: Runtime) -> None:
        self._draining = True
        runtime.state.drain()
        listen = self.config.listen
        self._wait(listen.drain_notice_s, lambda: False)
        self._signal_workers(signal.SIGTERM)
        if self._wait(listen.drain_s + KILL_S, self._all_ended):
            return
        self._signal_workers(signal.SIGUSR1)
        if not self._wait(CUT_OFF_S, self._all_ended, max_signals=3):
            log_operator_message("some workers did not end in time and were killed")

    def _wait(self, seconds: float, done: Callable[[], bool], max_signals: int = 2) -> bool:
        """Wait until `done`. Return False when the time is over, or after so many stop signals."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() >= deadline or self._stop_signals >= max_signals:
                return False
            time.sleep(0.01)
        return True

    def _signal_workers(self, number: int) -> None:
        for worker in self._workers:
            if worker is not None and worker.poll() is None:
                worker.send_signal(number)

    def _all_ended(self) -> bool:
        return all(worker is None or worker.poll() is not None for worker in self._workers)

    def _kill_workers(self) -> None:
        for worker in self._workers:
            if worker is not None:
                if worker.poll() is None:
                    worker.kill()
                worker.wait()
                if worker.stdin is not None:
                    worker.stdin.close()

    # -- status and signals -------------------------------------------------------------------------------------------

    def _ready(self, runtime: Runtime) -> tuple[bool, dict[str, object]]:
        # One worker is enough: it serves all connections while another is replaced. A worker's slot is set shortly before
        # it listens, and stays set shortly after it was killed, so try to connect as well.
        alive = sum(1 for number in range(len(self._workers)) if runtime.state.slot(number).pid)
        ready = not self._draining and alive > 0 and self._accepts_connections()
        detail: dict[str, object] = {
            "ready": ready,
            "draining": self._draining,
            "workers": {"alive": alive, "configured": len(self._workers)},
        }
        return ready, detail

    def _signals(self, reload: Callable[[], None]) -> None:
        def stop(_number: int, _frame: object) -> None:
            self._stop_signals += 1
            self._wake.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        signal.signal(signal.SIGHUP, lambda _number, _frame: reload())


def reserve_port(listen: ListenConfig) -> tuple[socket.socket, ListenConfig]:
    """Reserve the port until the workers listen on it, and return its actual number. The workers share it (SO_REUSEPORT)."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
        # SO_REUSEPORT would also share the port with another gateway of this user; first bind without it to detect one.
        with socket.socket(family, kind, proto) as exclusive:
            exclusive.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            exclusive.bind(address)
            port = exclusive.getsockname()[1]
        reserved = socket.socket(family, kind, proto)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((address[0], port, *address[2:]))
    except OSError as error:
        raise _cannot_listen(listen.host, listen.port, error, "listen.port or with --port") from None
    return reserved, msgspec.structs.replace(listen, host=address[0], port=port)


def _cannot_listen(host: str, port: int, error: OSError, setting: str) -> UserError:
    if isinstance(error, socket.gaierror):
        return UserError(f"cannot listen on {host}: {error.strerror}")
    if error.errno == errno.EADDRINUSE:
        return UserError(f"port {port} on {host} is already in use; choose another port in {setting}")
    return UserError(f"cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}")


def _connect_address(host: str) -> str:
    """Return the address to connect to, for a listener on all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
