"""Hosts in network namespaces: each has its own addresses, host name, processes, /tmp/ray and monotonic clock.

The namespaces belong to a process of each host and end with it. Root is needed, and iproute2 and util-linux.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_NAMESPACES = ("--net", "--mount", "--uts", "--pid", "--time")
_BRIDGE = "hosts"


@cache
def why_no_hosts() -> str | None:
    """Return why no namespaces can be created here; None if they can."""
    try:
        with Host("trial", "10.77.0.1", bridge=True):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return f"network namespaces cannot be created here: {said.strip().splitlines()[-1]}"


class Host:
    """A host with one address. Leaving it kills its processes."""

    def __init__(self, name: str, address: str, *, clock_s: int = 0, bridge: bool = False) -> None:
        """`clock_s` is how far its monotonic clock is ahead of that of this process. A host with a `bridge` connects others."""
        self.name = name
        self.address = address
        setup = f"""
            set -e
            hostname {name}
            mkdir -p /tmp/ray
            mount -t tmpfs -o size=512m tmpfs /tmp/ray
            ip link set lo up
            {f"ip link add {_BRIDGE} type bridge" if bridge else ""}
            {f"ip addr add {address}/24 dev {_BRIDGE}" if bridge else ""}
            {f"ip link set {_BRIDGE} up" if bridge else ""}
            echo ready
            exec sleep infinity
        """
        flags = ("--fork", "--kill-child=KILL", "--mount-proc", "--monotonic", str(clock_s))
        self._holder = subprocess.Popen(
            ["unshare", *_NAMESPACES, *flags, "sh", "-c", setup],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise OSError(self._holder.communicate()[1] or "unshare failed")
        pid = self._holder.pid
        (self._init,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def connect(self, bridge: Host) -> None:
        """Connect this host to the bridge of another one."""
        there, here = f"netns {bridge._init}", f"netns {self._init}"
        pair = f"name to-{self.name} {there} type veth peer name eth0 {here}"
        subprocess.run(["ip", "link", "add", *pair.split()], check=True, capture_output=True, text=True)
        bridge.plug(self)
        self.run("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def cut_off(self) -> None:
        """Take the interface of this host down for good. Other hosts are not told."""
        self.run("ip", "link", "set", "eth0", "down")

    def unplug(self, host: Host) -> None:
        """Let the bridge drop the packets from and to a host, which neither side notices, until `plug`."""
        self.run("ip", "link", "set", f"to-{host.name}", "nomaster")

    def plug(self, host: Host) -> None:
        self.run("ip", "link", "set", f"to-{host.name}", "master", _BRIDGE, "up")

    def command(self, *words: Any) -> list[str]:
        """Return the command that runs `words` on this host."""
        return ["nsenter", "--target", self._init, *_NAMESPACES, *map(str, words)]

    def run(self, *words: Any, timeout: float = 60.0) -> str:
        done = subprocess.run(self.command(*words), check=True, capture_output=True, text=True, timeout=timeout)
        return done.stdout

    def start(self, *words: Any, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*words), text=True, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.kill()
        self._holder.communicate()
