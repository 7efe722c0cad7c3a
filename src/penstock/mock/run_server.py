"""Running the server: the socket, the loop, the signals, the log file."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
from collections.abc import Callable
from typing import BinaryIO

import uvloop

from penstock.errors import UserError
from penstock.mock.behaviour import Behaviour
from penstock.mock.request_log import RequestLog
from penstock.mock.server import Server
from penstock.mock.server_settings import ServerSettings
from penstock.processes import end_with_parent, on_closed_stdin, raise_descriptor_limit

__all__ = ["serve"]


def serve(behaviour: Behaviour, serving: ServerSettings, announce: Callable[[int], None]) -> int:
    """Serve until a signal or the end of the parent. Returns how many requests were served."""
    raise_descriptor_limit()
    listener = listen(serving.host, serving.port)
    file = open_log(serving.log)
    loop = uvloop.new_event_loop()
    log = None if file is None else RequestLog(loop, file, writes=serving.log_writes, hashes=serving.log_hash)
    server = Server(loop, listener, behaviour, log)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, loop.stop)
    if serving.parent:
        # Two ways, because each has a gap.
        on_closed_stdin(loop, loop.stop)
        if serving.parent_thread and not end_with_parent(serving.parent, signal.SIGTERM):
            loop.call_soon(loop.stop)
    # What exists now lives as long as the server, and replies leave no cycles: collecting is rarely worth its pauses.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    announce(listener.getsockname()[1])
    try:
        loop.run_forever()
    finally:
        server.close()
        loop.close()
    return server.requests


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except socket.gaierror as wrong:
        raise UserError(f"cannot listen on {host}: {wrong.strerror}") from None
    except OSError as wrong:
        if wrong.errno == errno.EADDRINUSE:
            advice = "choose another with --port, or any free one with --port 0"
            raise UserError(f"port {port} on {host} is already in use; {advice}") from None
        raise UserError(f"cannot listen on port {port} of {host}: {os.strerror(wrong.errno or 0)}") from None
    return listener


def open_log(path: str | None) -> BinaryIO | None:
    if path is None:
        return None
    try:
        return open(path, "wb")
    except OSError as wrong:
        raise UserError(f"cannot write the log {path}: {wrong.strerror}") from None
