"""The run's side of the dashboard: starts its process, and sends it a snapshot twice a second.

A snapshot takes the process of the run 0.6 ms on a machine with full load. It is skipped while the dashboard has not read
the one before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Sequence
from time import monotonic, monotonic_ns

from penstock.cli.dashboard.snapshot import Close, Header, Ready
from penstock.cli.dashboard.snapshot_builder import SnapshotBuilder
from penstock.processes import spawn
from penstock.records.log import LostWorker
from penstock.runs.phase_runner import RunProgress
from penstock.workers.message_socket import MessageSocket, wait_for

_INTERVAL_NS = 500_000_000
_CLOSE_S = 5.0
_RESET = "\x1b[?1049l\x1b[?25h\x1b[?1004l\x1b[?2004l\x1b[?2048l\x1b[<u\x1b[0m"
"""Leaves the alternate screen, shows the cursor, and ends reports of focus, pastes, sizes and keys."""


class DashboardFeed:
    def __init__(self, header: Header) -> None:
        """Start the process of the dashboard. It imports Textual while the run begins."""
        self.builder = SnapshotBuilder()
        self._due = 0
        self._stopping = 0
        self.shown = False
        """True while the dashboard has the terminal, and nothing else may write to it."""
        self._terminal = sys.stdout.fileno()
        self._attributes = termios.tcgetattr(self._terminal)
        self._messages, self._process = self._start()
        self._messages.send(header)

    def _start(self) -> tuple[MessageSocket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        # Its standard streams are the terminal, whatever those of the run are.
        terminal = os.open(os.ttyname(self._terminal), os.O_RDWR | os.O_NOCTTY)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            process = spawn(
                "penstock.cli.dashboard.process",
                str(theirs.fileno()),
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                pass_fds=[theirs.fileno()],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(terminal)
            theirs.close()
        return MessageSocket(ours), process

    def is_ready(self) -> bool:
        """Return whether the dashboard can take the terminal. It does so with the next snapshot."""
        return any(isinstance(message, Ready) for message in self._messages.receive())

    @property
    def ended(self) -> bool:
        """True if the process has ended by itself: the user has left the dashboard, or it failed."""
        return self._messages.closed or self._process.poll() is not None

    def update(self, progress: RunProgress, lost: Sequence[LostWorker]) -> None:
        """Take the progress of the run, and send a snapshot if one is due."""
        now = monotonic_ns()
        self.builder.phases.update(progress, now)
        if not self.shown or (now < self._due and progress.stopping == self._stopping):
            return
        self._stopping = progress.stopping
        self._due = now + _INTERVAL_NS
        self._messages.receive()  # notices that the process has closed its socket
        if self._messages.unsent:
            self._messages.flush()
            return
        self._messages.send(self.builder.build(progress, now, lost))

    def close(self) -> bool:
        """Let the dashboard restore the terminal and end, and return whether it did. Otherwise restore the terminal here."""
        if not self.shown:  # it has not touched the terminal
            self._end_process()
            return True
        self._messages.send(Close())
        deadline = monotonic() + _CLOSE_S
        while self._process.poll() is None and monotonic() < deadline:
            if self._messages.closed:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(max(0.0, deadline - monotonic()))
                break
            self._messages.flush()
            wait_for([self._messages], timeout=0.05)
            self._messages.receive()
        self._end_process()
        if self._process.returncode == 0:
            return True
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._attributes)
            os.write(self._terminal, _RESET.encode())
        return False

    def _end_process(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._messages.close()
