"""Runs the server: opens the socket and the log file, runs the event loop, handles signals."""

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
from penstock.mock_server.behaviour import Behaviour
from penstock.mock_server.request_log import RequestLog
from penstock.mock_server.server import Server
from penstock.mock_server.server_settings import ServerSettings
from penstock.processes import end_with_parent, on_closed_stdin, raise_descriptor_limit


def serve(behaviour: Behaviour, settings: ServerSettings, announce: Callable[[int], None]) -> int:
    """Serve until a signal arrives or the parent process ends. Return the number of requests served.

    Call `announce` with the port when the server accepts connections.
    """
    raise_descriptor_limit()
    listener = listen(settings.host, settings.port)
    file = open_log(settings.log)
    loop = uvloop.new_event_loop()
    log = None if file is None else RequestLog(loop, file, writes=settings.log_writes, hashes=settings.log_hash)
    server = Server(loop, listener, behaviour, log)
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, loop.stop)
    if settings.parent:
        # stdin does not close while another process holds its other end; PR_SET_PDEATHSIG exists only on Linux.
        on_closed_stdin(loop, loop.stop)
        if settings.parent_thread and not end_with_parent(settings.parent, signal.SIGTERM):
            loop.call_soon(loop.stop)
    # Objects that exist now live as long as the server, and replies leave no cycles: collect rarely, to avoid pauses.
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
    except socket.gaierror as error:
        raise UserError(f"cannot listen on {host}: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            advice = "choose another with --port, or use --port 0 for any free port"
            raise UserError(f"port {port} on {host} is already in use; {advice}") from None
        raise UserError(f"cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}") from None
    return listener


def open_log(path: str | None) -> BinaryIO | None:
    if path is None:
        return None
    try:
        return open(path, "wb")
    except OSError as error:
        raise UserError(f"cannot write the log {path}: {error.strerror}") from None
