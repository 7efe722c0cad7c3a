"""CPU time that the dashboard takes in the process of the run and in its own, at 10,000 requests per second if the machine
reaches them; the line of the result has the rate that it reached.

Runs with the dashboard and with the progress bar alternate, in a pseudo-terminal of 120×40 characters. The measurement begins
when the dashboard has been shown for a second, so the import of Textual (0.4 s) is left out:

    python -m benchmarks.dashboard
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import statistics
import struct
import subprocess
import tempfile
import termios
import threading
import time
from pathlib import Path

from benchmarks.cpu_time import cpu_s
from benchmarks.far_end import far_end, line, profile_command

_RATE = 10_000
_SETTLE_S, _MEASURED_S = 1.0, 5.0
_TURNS = 2
_LIMIT = 0.05


def _children(pid: int) -> dict[int, str]:
    """Return the child processes of a process, with their command lines."""
    found = {}
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        with contextlib.suppress(OSError):
            found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


class _Terminal:
    """A pseudo-terminal, and the last of what was written to it."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.output = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 1 << 16):
                self.output = (self.output + data)[-20_000:]

    def wait_for(self, mark: bytes) -> None:
        deadline = time.monotonic() + 60
        while mark not in self.output:
            if time.monotonic() > deadline:
                raise SystemExit(f"{mark!r} did not appear in {self.output!r}")
            time.sleep(0.05)

    def take(self) -> None:
        """Make it the controlling terminal of a new process."""
        os.setsid()
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)


def measure(url: str, ui: str) -> tuple[float, float, float]:
    """Return the shares of a core that the process of the run and the dashboard take, and the rate that the bar shows."""
    terminal = _Terminal()
    with tempfile.TemporaryDirectory() as folder:
        command = profile_command(url, "--ui", ui)
        command += ["--isl", "50", "--num-dataset-entries", "100", "--osl", "10", "--request-rate", str(_RATE)]
        command += ["--benchmark-duration", "60", "--workers-max", "2", "--artifact-dir", folder]
        process = subprocess.Popen(
            command,
            stdin=terminal.slave,
            stdout=terminal.slave,
            stderr=terminal.slave,
            env=os.environ | {"TERM": "xterm-256color"},
            preexec_fn=terminal.take,  # noqa: PLW1509 - it takes no locks
        )
        try:
            terminal.wait_for(b"Certificate so far" if ui == "dashboard" else b"requests/s")
            time.sleep(_SETTLE_S)
            dashboards = [pid for pid, text in _children(process.pid).items() if "cli.dashboard" in text]
            if (ui == "dashboard") != bool(dashboards):
                raise SystemExit(f"--ui {ui} has started {len(dashboards)} dashboards")
            before = [cpu_s(pid) for pid in (process.pid, *dashboards)]
            began = time.monotonic()
            time.sleep(_MEASURED_S)
            seconds = time.monotonic() - began
            used = [cpu_s(pid) - then for pid, then in zip((process.pid, *dashboards), before, strict=True)]
            rates = re.findall(rb"([0-9.]+) requests/s", terminal.output)
        finally:
            process.kill()
            process.wait()
    return used[0] / seconds, sum(used[1:]) / seconds, float(rates[-1]) if rates else 0.0


def main() -> bool:
    bar, rates, parent, own = [], [], [], []
    with far_end(1) as server:
        for _ in range(_TURNS):
            share, _, rate = measure(server.url, "simple")
            bar.append(share)
            rates.append(rate)
            with_dashboard = measure(server.url, "dashboard")
            parent.append(with_dashboard[0])
            own.append(with_dashboard[1])
    more = max(0.0, statistics.mean(parent) - statistics.mean(bar))
    total = statistics.mean(own) + more
    line(
        f"dashboard at {statistics.mean(rates):,.0f} requests/s",
        f"{total:.1%} of a core",
        f"at most {_LIMIT:.0%}",
        f"own process {statistics.mean(own):.1%}, run {statistics.mean(parent):.1%} (bar: {statistics.mean(bar):.1%})",
        total <= _LIMIT,
    )
    return total <= _LIMIT


if __name__ == "__main__":
    raise SystemExit(not main())
