from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path


class RedisServer:
    """A redis-server process that can be stopped and restarted at the same address."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "redis.sock"
        self.short_timeout_url = f"unix://{self.socket}?db=0"
        # long timeouts, so that a busy machine does not look like an unavailable Redis
        self.url = f"{self.short_timeout_url}&socket_timeout=30&socket_connect_timeout=30"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, "redis-server did not start"
            assert time.monotonic() < deadline, "redis-server did not answer"
            time.sleep(0.01)

    def _answers(self) -> bool:
        """Return True if the server replies. Its socket exists shortly before it listens."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(10)
            probe.connect(str(self.socket))
            probe.sendall(b"PING\r\n")
            return probe.recv(16).startswith(b"+PONG")
        return False

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.socket.unlink(missing_ok=True)
            self._process = None
