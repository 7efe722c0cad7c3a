"""A worker process: `python -m penstock.gateway.serving.worker FOLDER NUMBER LISTENER`, started by `serving.worker_pool`.

It serves until it gets a signal or its parent ends. On SIGTERM it accepts no more connections, finishes running requests
within `drain_s`, and ends the rest; on SIGUSR1 it ends all requests at once. On SIGUSR2 it does the same as on SIGTERM, but
leaves its slot in the shared state to the worker that has replaced it. Every request is recorded.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
import socket
import sys

import uvloop

from penstock.gateway.inbound.connection import CallerServer
from penstock.gateway.limits import SharedTable, open_limiter
from penstock.gateway.observe.recorder import Recorder
from penstock.gateway.operator_log import set_worker_number
from penstock.gateway.serving.app import App
from penstock.gateway.serving.drain import drain
from penstock.gateway.serving.listeners import BACKLOG
from penstock.gateway.serving.runtime import STACK_SIGNAL, Runtime
from penstock.gateway.serving.tls import server_context
from penstock.processes import on_closed_stdin, raise_descriptor_limit

CUT_OFF = signal.SIGUSR1


def main() -> int:
    folder, number, listener = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C and signals its workers
    set_worker_number(number)
    raise_descriptor_limit()
    runtime = Runtime.attach(folder)
    stack = open(runtime.stack_path(number), "w")  # noqa: SIM115 - open until the process ends
    faulthandler.register(STACK_SIGNAL, stack)
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
    callers = CallerServer(app.handle, app.config.listen.keep_alive_s)
    listening = await loop.create_server(
        callers,
        sock=socket.socket(fileno=listener),
        backlog=BACKLOG,
        ssl=server_context(app.config.listen),
    )
    stop, cut_off = asyncio.Event(), asyncio.Event()

    def retire() -> None:
        app.replaced = True
        stop.set()

    def end() -> None:
        cut_off.set()
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR2, retire)
    loop.add_signal_handler(CUT_OFF, end)
    on_closed_stdin(loop, lambda: os.kill(os.getpid(), signal.SIGTERM))  # the main process has ended
    app.start(loop)
    await stop.wait()
    listening.close()  # the main process and the next worker still listen
    await drain(app, callers, cut_off)
    await app.limiter.close()


if __name__ == "__main__":
    sys.exit(main())
