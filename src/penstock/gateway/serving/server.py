"""The main process: it reads the files, starts workers and replaces those that die, serves the status port, moves usage
into the ledger, and shuts everything down in order.

    SIGHUP            reload the resource file and gateway.yaml
    SIGTERM, SIGINT   drain: /readyz returns 503, running requests are finished, then the gateway ends. A second signal
                      ends running requests at once; they are still recorded. After SIGTERM, new requests are accepted for
                      `drain_notice_s` before that
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import RunError, UserError
from penstock.gateway.limits import SharedTable
from penstock.gateway.observe.access_log import check_log
from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.resources.config import GatewayConfig
from penstock.gateway.serving.config_watch import ConfigWatch, applicable_config
from penstock.gateway.serving.listeners import Listeners, cannot_listen
from penstock.gateway.serving.runtime import Runtime
from penstock.gateway.serving.take_over import HandOver, TakenOver, take_over
from penstock.gateway.serving.worker_pool import KILL_S, START_S, WorkerPool
from penstock.gateway.storage.id_databases import check_id_url

if TYPE_CHECKING:
    from penstock.gateway.serving.reload import Reloader
    from penstock.gateway.serving.status import StatusListener

SECONDS_PER_DAY = 86400.0
POLL_S = 0.05
CUT_OFF_S = 1.5
"""How long workers may take to write their last entries after a second signal."""


class Gateway:
    """The main process of the gateway. The constructor reserves the port."""

    def __init__(
        self,
        resources: str,
        config: GatewayConfig,
        *,
        load_config: Callable[[], GatewayConfig] | None = None,
        config_path: str | None = None,
        replace: bool = False,
    ) -> None:
        """`load_config` reads the configuration again, when the file at `config_path` changes or on SIGHUP. With `replace`,
        take the port from the gateway that uses it, if there is one."""
        self._resources = resources
        self._taken_over: TakenOver | None = take_over(config.listen) if replace else None
        self._listeners = Listeners.open(config.listen, self._taken_over.listeners if self._taken_over else None)
        self.config = msgspec.structs.replace(config, listen=self._listeners.configure(config.listen))
        self._load_config = load_config
        self._config_watch = ConfigWatch(config_path, self.config)
        self._wake = threading.Event()
        self._stop_signals = 0
        self._interrupted = False
        self._reload_config = False
        self._draining = False

    def run(self, announce: Callable[[Gateway], None]) -> int:
        """Serve until a signal. Call `announce` when the workers accept requests."""
        try:
            self._check_files(self.config)
            runtime = Runtime.create(self.config)
            try:
                return self._run(runtime, announce)
            finally:
                runtime.remove()
        finally:
            self._listeners.close_all()
            if self._taken_over is not None:
                self._taken_over.close()

    def _check_files(self, config: GatewayConfig) -> None:
        check_log(config.access_log_file)
        if config.listen.tls_cert is not None:
            from penstock.gateway.serving.tls import check_tls

            check_tls(config.listen)
        check_id_url(config.responses.id_url)

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
        exposition = Exposition(ledger.spool)
        pool = WorkerPool(runtime, self._listeners)

        def metrics() -> bytes:
            generations = [runtime.state.slot(number).generation for number in range(len(pool))]
            workers = list(zip(pool.restarts(), generations, strict=True))
            return exposition.render(mover.state(), reloader.state, reloader.hash, workers)

        with contextlib.ExitStack() as cleanup:  # runs in reverse order, and completely even if one callback fails
            cleanup.callback(SharedTable.open(runtime.limits_path).close)
            self._signals(reloader.request_reload)
            cleanup.callback(pool.kill)
            pool.start()
            # Prepare the rest while the workers start.
            status = self._open_status_listener(pool, reloader, metrics)
            status.start()
            cleanup.callback(status.stop)
            hand_over = HandOver(runtime, self._listeners, status.fileno())
            cleanup.callback(hand_over.close)
            mover.start()
            cleanup.callback(mover.stop)
            cleanup.callback(pool.kill)
            self._await_start(pool)
            if not self._stop_signals:
                announce(self)
                if self._taken_over is not None:
                    self._taken_over.confirm()
            if self._supervise(runtime, pool, hand_over, reloader):
                status.close_listener()
                self._interrupted = True
            self._drain(runtime, pool)
        return 0

    def _open_status_listener(
        self, pool: WorkerPool, reloader: Reloader, metrics: Callable[[], bytes]
    ) -> StatusListener:
        """Open the status listener, and put its actual port into the configuration."""
        from penstock.gateway.observe.exposition import CONTENT_TYPE
        from penstock.gateway.serving.status import StatusListener

        listen = self.config.listen
        inherited = self._taken_over.status if self._taken_over is not None else None
        if inherited is not None and inherited.getsockname()[1] != listen.status_port:
            inherited.close()
            inherited = None
        try:
            status = StatusListener(
                listen.status_host,
                listen.status_port,
                lambda: self._ready(pool),
                reloader.status,
                lambda: (CONTENT_TYPE, metrics()),
                inherited,
            )
        except (OSError, UnicodeError) as error:
            raise cannot_listen(listen.status_host, listen.status_port, error, "listen.status_port") from None
        self.config = msgspec.structs.replace(
            self.config, listen=msgspec.structs.replace(listen, status_port=status.port)
        )
        return status

    def _await_start(self, pool: WorkerPool) -> None:
        deadline = time.monotonic() + START_S
        while not self._stop_signals and not pool.started():
            if time.monotonic() > deadline:
                raise RunError(f"The workers did not start within {START_S:.0f} seconds.")
            time.sleep(0.005)

    def _supervise(self, runtime: Runtime, pool: WorkerPool, hand_over: HandOver, reloader: Reloader) -> bool:
        """Supervise the workers until a signal. Return True if another gateway has taken over."""
        while not self._stop_signals:
            self._wake.wait(POLL_S)
            self._wake.clear()
            pool.supervise()
            reloader.poll()
            if self._reload_config or (runtime.config.watch and self._config_watch.changed()):
                self._reload_config = False
                self._apply_config(runtime, pool)
            if hand_over.poll():
                log_operator_message("another gateway has taken over")
                return True
        return False

    def _apply_config(self, runtime: Runtime, pool: WorkerPool) -> None:
        """Read gateway.yaml again, and replace the workers if it or a TLS file has changed."""
        if self._load_config is None:
            return
        previous = self.config
        try:
            loaded = self._load_config()
            self._check_files(loaded)
        except UserError as error:
            log_operator_message(f"{error} The previous configuration stays in use.", "error")
            return
        config, fixed = applicable_config(previous, loaded)
        if fixed:
            log_operator_message(f"changes of {', '.join(fixed)} need a restart of the gateway", "warning")
        files_changed = self._config_watch.files_changed(config)
        if config == previous and not files_changed:
            return
        self.config = config
        runtime.replace_config(config)
        if pool.replace_all():
            log_operator_message("the configuration was reloaded")
        else:
            log_operator_message("a worker did not start with the new configuration", "error")

    # -- end ----------------------------------------------------------------------------------------------------------

    def _drain(self, runtime: Runtime, pool: WorkerPool) -> None:
        self._draining = True
        runtime.state.drain()
        listen = self.config.listen
        if not self._interrupted:
            self._wait(listen.drain_notice_s, lambda: False)
        pool.signal(signal.SIGTERM)
        self._listeners.close_all()
        if self._wait(listen.drain_s + KILL_S, pool.ended):
            return
        pool.signal(signal.SIGUSR1)
        if not self._wait(CUT_OFF_S, pool.ended, max_signals=3):
            log_operator_message("some workers did not end in time and were killed", "error")

    def _wait(self, seconds: float, done: Callable[[], bool], max_signals: int = 2) -> bool:
        """Wait until `done`. Return False when the time is over, or after the given number of stop signals."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() >= deadline or self._stop_signals >= max_signals:
                return False
            time.sleep(0.01)
        return True

    # -- status and signals -------------------------------------------------------------------------------------------

    def _ready(self, pool: WorkerPool) -> tuple[bool, dict[str, object]]:
        alive = pool.alive()  # one is enough: it serves all connections while another is replaced
        ready = not self._draining and alive > 0
        detail: dict[str, object] = {
            "ready": ready,
            "draining": self._draining,
            "workers": {"alive": alive, "configured": len(pool)},
        }
        return ready, detail

    def _signals(self, reload: Callable[[], None]) -> None:
        def stop(number: int, _frame: object) -> None:
            self._stop_signals += 1
            self._interrupted = self._interrupted or number == signal.SIGINT
            self._wake.set()

        def hang_up(_number: int, _frame: object) -> None:
            self._reload_config = True
            reload()
            self._wake.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        signal.signal(signal.SIGHUP, hang_up)
