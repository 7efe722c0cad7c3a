"""The process of the dashboard: `python -m penstock.cli.dashboard.process FD`, with the terminal as its standard streams.

It has a process of its own so that drawing never delays a measurement. It ends when the socket to the run is closed, so that
the terminal is restored even if the process of the run is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

from penstock.cli.dashboard.snapshot import Close, Header, Ready, Snapshot
from penstock.workers.message_socket import MessageSocket, wait_for

_NICE = 5
"""Priority of the process: workers have precedence if there are not enough cores."""


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the terminal sends Ctrl-C to the run, too
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)  # Textual would use them instead of the size of the terminal, even after a resize
    parent = os.getppid()
    messages = MessageSocket(socket.socket(fileno=int(sys.argv[1])))
    os.nice(_NICE)
    from penstock.cli.dashboard.app import Dashboard

    received = _wait(messages)
    if not received:
        return 0
    header = received[0]
    assert isinstance(header, Header)
    messages.send(Ready())
    received = received[1:] or _wait(messages)
    if not received or isinstance(received[-1], Close):
        return 0

    class Connected(Dashboard):
        """The dashboard with its messages."""

        async def on_load(self) -> None:
            asyncio.get_running_loop().add_reader(messages.fileno(), self._receive)

        def _receive(self) -> None:
            received = messages.receive()
            for snapshot in [message for message in received if isinstance(message, Snapshot)][-1:]:
                self.show(snapshot)
            if messages.closed or any(isinstance(message, Close) for message in received):
                self.leave()

        def leave(self) -> None:
            asyncio.get_running_loop().remove_reader(messages.fileno())
            super().leave()

    def interrupt() -> None:
        if os.getppid() == parent:
            os.kill(parent, signal.SIGINT)

    app = Connected(header, interrupt)
    for message in received:
        if isinstance(message, Snapshot):
            app.show(message)
    app.run(mouse=False)
    return app.return_code or 0


def _wait(messages: MessageSocket) -> list[object]:
    """Return the next messages; none if the run has ended."""
    received: list[object] = []
    while not received and not messages.closed:
        wait_for([messages])
        received = messages.receive()
    return received


if __name__ == "__main__":
    sys.exit(main())
