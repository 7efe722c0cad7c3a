"""A worker process: `python -m penstock.gateway.serving.worker FOLDER NUMBER LISTENER`, started by `serving.worker_pool`.

It serves until it gets a signal or its parent ends. On SIGTERM it accepts no more connections, finishes running requests
within `drain_s`, and ends the rest; on SIGUSR1 it ends all requests at once. On SIGUSR2 it does the same as on SIGTERM, but
leaves its slot in the shared state to the worker that has replaced it. Every request is recorded.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from typing import Any

import uvloop
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.server.embed import Server

from penstock.gateway.limits import SharedTable, open_limiter
from penstock.gateway.observe.recorder import Recorder
from penstock.gateway.operator_log import set_worker_number
from penstock.gateway.resources.config import ListenConfig
from penstock.gateway.serving.app import App
from penstock.gateway.serving.drain import Drain
from penstock.gateway.serving.listeners import BACKLOG, stop_accepting
from penstock.gateway.serving.runtime import Runtime
from penstock.processes import on_closed_stdin, raise_descriptor_limit

CUT_OFF = signal.SIGUSR1
GRACE_S = 0.3
"""How long connections without a request are kept open when the worker stops."""
CONNECTIONS = 1 << 16
"""Maximum number of connections of a worker; further ones wait to be accepted."""


def main() -> int:
    folder, number, listener = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C and signals its workers
    set_worker_number(number)
    raise_descriptor_limit()
    runtime = Runtime.attach(folder)
    config = runtime.config
    limiter = open_limiter(config.limits, SharedTable.attach(runtime.limits_path))
    recorder = Recorder(config.ledger.spool, number, config.access_log, config.access_log_file)
    app = App(runtime, number, limiter, recorder)
    # The objects so far live as long as the process, and requests leave no cycles, so collect garbage rarely.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    # The longest time for which an inspection in a thread holds the interpreter before the event loop gets it (default 5 ms).
    sys.setswitchinterval(0.001)
    try:
        uvloop.run(_serve(app, listener))
    finally:
        if not app.replaced:
            runtime.state.clear_slot(number)
        recorder.close()
        app.response_ids.close()
    return 0


async def _serve(app: App, listener: int) -> None:
    loop = asyncio.get_running_loop()
    server = _server(app, app.config.listen, listener)
    drain = Drain(loop, app)

    def stop() -> None:
        if drain.start():
            stop_accepting(listener, app.runtime.folder)
            # Granian closes connections without a request at once. Those that were just accepted have not sent theirs.
            loop.call_later(GRACE_S if drain.has_connections() else 0, server.stop)

    def cut_off() -> None:
        stop()
        drain.cut_off()

    def retire() -> None:
        app.replaced = True
        stop()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGUSR2, retire)
    loop.add_signal_handler(CUT_OFF, cut_off)
    on_closed_stdin(loop, lambda: os.kill(os.getpid(), signal.SIGTERM))  # the main process has ended
    app.start(loop)
    await server.serve()
    await app.limiter.close()


class _InheritedSocketServer(Server):
    """A server on a listening socket that the main process has opened."""

    def __init__(self, listener: int, target: Any, **options: Any) -> None:
        super().__init__(target, **options)
        self._listener = listener

    def _init_shared_socket(self) -> None:
        # The constructor is not in Granian's type stub; its arguments are those of `SocketHolder.__getstate__`.
        holder: Any = SocketHolder
        self._shd: Any = holder(self._listener, False, BACKLOG)


def _server(app: App, listen: ListenConfig, listener: int) -> Server:
    from pathlib import Path

    return _InheritedSocketServer(
        listener,
        app,
        address=listen.host,
        port=listen.port,
        interface=Interfaces.RSGI,
        # With HTTP/2 the caller's socket would not show whether it keeps up (`relay.response_stream`).
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=30_000),
        websockets=False,
        backlog=BACKLOG,
        backpressure=CONNECTIONS,
        log_enabled=False,
        ssl_cert=Path(listen.tls_cert) if listen.tls_cert else None,
        ssl_key=Path(listen.tls_key) if listen.tls_key else None,
        ssl_protocol_min=SSLProtocols.tls12,
    )


if __name__ == "__main__":
    sys.exit(main())
