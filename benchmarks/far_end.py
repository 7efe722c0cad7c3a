"""Start the benchmark server, the small C program `mockd`, and run `aiperf profile` against it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
AIPERF = str(Path(sys.executable).parent / "aiperf")


class FarEnd:
    """A running `mockd`."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.pid = process.pid
        self._process = process

    def stop_and_read_stats(self) -> dict[str, Any]:
        """Stop the server and return the statistics that it measured itself, in microseconds."""
        self._process.send_signal(signal.SIGTERM)
        output, _ = self._process.communicate(timeout=30)
        stats: dict[str, Any] = json.loads(output)
        return stats


@contextmanager
def far_end(tokens: int, ttft_us: int = 0, itl_us: int = 0) -> Iterator[FarEnd]:
    binary = HERE / "mockd"
    if not binary.exists() or binary.stat().st_mtime < (HERE / "mockd.c").stat().st_mtime:
        subprocess.run(["cc", "-O2", "-o", binary, HERE / "mockd.c"], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(binary), str(port), str(tokens), str(ttft_us), str(itl_us)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield FarEnd(port, process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


class Run:
    """A finished run of `aiperf profile`."""

    def __init__(self, folder: str, seconds: float, output: str, status: int) -> None:
        self.folder = folder
        self.seconds = seconds
        self.output = output
        self.status = status

    @cached_property
    def json(self) -> dict[str, Any]:
        """The summary; a sweep has one for each point instead."""
        with open(os.path.join(self.folder, "profile_export_aiperf.json"), "rb") as f:
            summary: dict[str, Any] = json.load(f)
        return summary

    def value(self, tag: str, stat: str = "avg") -> float:
        if tag not in self.json:
            raise SystemExit(f"The run measured no {tag}:\n{self.output}")
        return float(self.json[tag][stat])

    @property
    def certificate(self) -> dict[str, Any]:
        certificate: dict[str, Any] = self.json["certificate"]
        return certificate


def profile_command(url: str, *flags: str) -> list[str]:
    """Return the command of a run against a URL, with the builtin tokenizer."""
    return [AIPERF, "profile", "--model", "m", "--tokenizer", "builtin", "--url", url, *flags]


@contextmanager
def profile(url: str, *flags: str) -> Iterator[Run]:
    """Run `aiperf profile` against a URL; the artifacts exist until the `with` block ends."""
    with tempfile.TemporaryDirectory() as folder:
        command = profile_command(url, "--artifact-dir", folder, *flags)
        began = time.monotonic()
        process = subprocess.run(command, capture_output=True, text=True, timeout=600)
        seconds = time.monotonic() - began
        if process.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)}\n{process.stdout}{process.stderr}")
        yield Run(folder, seconds, process.stdout, process.returncode)


def line(name: str, figure: str, reference: str, ratio: str, passed: bool) -> None:
    print(f"{'ok  ' if passed else 'MISS'}  {name:<58} {figure:>18}  {reference:>34}  {ratio}", flush=True)


def memory_of(pid: int | str) -> dict[str, int]:
    """Return the sizes in the status of a process, such as `VmRSS` and `RssAnon`, in bytes; none if it has ended."""
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = (row.split() for row in file)
            return {name.rstrip(":"): int(value[0]) * 1024 for name, *value in fields if value[-1:] == ["kB"]}
    except OSError:
        return {}


def anonymous_memory(pid: int) -> int:
    """Return the anonymous memory of a process in bytes; 0 if it has ended."""
    return memory_of(pid).get("RssAnon", 0)
