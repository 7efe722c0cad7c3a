"""A terminal in tmux: starts a program, presses keys, and reads the screen."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

LIMIT_S = 60.0
"""No screen takes longer, unless the program hangs."""


class Tmux:
    """A program in a terminal of its own tmux server. The screen stays when the program has ended, with its exit status."""

    _SHELL = ("sh", "-c", 'trap : INT; "$@"; echo "Exit status: $?"; trap "" INT; exec sleep 1000', "-")

    def __init__(self, folder: Path, arguments: Sequence[object], size: tuple[int, int] = (80, 24), **env: str) -> None:
        self._socket = folder / "tmux"
        options = folder / "tmux.conf"
        options.write_text("set -g default-terminal screen-256color\n")
        columns, lines = map(str, size)
        variables = [f"-e{name}={value}" for name, value in env.items()]
        self._tmux(
            *("-f", options, "new-session", "-d", "-x", columns, "-y", lines, "-c", folder, *variables),
            *self._SHELL,
            *arguments,
            env=os.environ | env,
        )

    def _tmux(self, *arguments: object, env: dict[str, str] | None = None) -> str:
        command = ["tmux", "-u", "-S", str(self._socket), *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=env).stdout

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", columns, "-y", lines)

    def screen(self, *, history: bool = False, styles: bool = False) -> str:
        return self._tmux("capture-pane", "-p", "-J", *(["-S", "-"] if history else []), *(["-e"] if styles else []))

    def wait_for(self, *texts: str) -> str:
        """Wait until all texts are on the screen, and return the screen."""
        return self.wait_until(lambda screen: all(text in screen for text in texts), f"{texts} on the screen")

    def wait_until(self, condition: Callable[[str], bool], what: str) -> str:
        """Wait until the screen meets a condition, and return the screen."""
        deadline = time.monotonic() + LIMIT_S
        while not condition(screen := self.screen()):
            assert time.monotonic() < deadline, f"{what} did not happen within {LIMIT_S:g} s:\n{screen}"
            time.sleep(0.1)  # each look starts a process
        return screen

    def wait_for_end(self) -> int:
        """Wait for the end of the program, and return its exit status."""
        return int(self.wait_for("Exit status: ").rpartition("Exit status: ")[2])

    def close(self) -> None:
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, timeout=60)
