"""A process that has imported Penstock, and forks a child for each command that a test starts.

A short `aiperf profile` takes 1.0 s of CPU time, of which its imports take 0.75 s. A forked child needs no imports. It runs
the `main` of the command with its own arguments, environment, folder, session and standard streams.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from importlib import import_module, reload
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

_SIZE = struct.Struct("I")
_STATUS = struct.Struct("i")
_STREAMS = 3


class ForkedProcess(subprocess.Popen[Any]):
    """A child of the fork server with the interface of `Popen`. `args` are those of aiperf, of penstock,
    of `python -m penstock.mock_server`, or of `python FILE.py`.

    The methods below replace those of `Popen` that fork and that wait for a child.
    """

    def _execute_child(self, args: Any, *options: Any) -> None:
        cwd, env = options[4:6]
        pipes = options[9:15]
        stdin, _, _, stdout, _, stderr = pipes
        self._status_pipe, status = os.pipe()
        streams = [number if stream == -1 else stream for number, stream in enumerate((stdin, stdout, stderr))]
        request = {"args": list(map(str, args)), "cwd": str(cwd or os.getcwd()), "env": dict(env or os.environ)}
        running_server().send(request, [*streams, status])
        os.close(status)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = _STATUS.unpack(os.read(self._status_pipe, _STATUS.size))[0]

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        return super()._internal_poll(_deadstate, self._waitpid)  # type: ignore[misc, no-any-return]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        return self._waitpid(self.pid, wait_flags)

    def _waitpid(self, pid: int, flags: int) -> tuple[int, int]:
        """Return the process id and the status like `os.waitpid`. The fork server sends the status when the child ends."""
        if flags & os.WNOHANG and not select.select([self._status_pipe], [], [], 0)[0]:
            return 0, 0
        data = os.read(self._status_pipe, _STATUS.size)
        os.close(self._status_pipe)
        return pid, _STATUS.unpack(data)[0]


class _Server:
    """The test's side of the fork server."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONUTF8": "1"},
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._owner = os.getpid()
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def send(self, request: dict[str, Any], descriptors: list[int]) -> None:
        data = json.dumps(request).encode()
        with self._lock:
            socket.send_fds(self._socket, [_SIZE.pack(len(data))], descriptors)
            self._socket.sendall(data)

    def stop(self) -> None:
        if os.getpid() == self._owner:
            self._socket.close()
            self._process.wait()


_server: _Server | None = None
_start = threading.Lock()


def running_server() -> _Server:
    """Return the fork server of this process; start it on the first call."""
    global _server  # noqa: PLW0603
    with _start:
        if _server is None:
            _server = _Server()
        return _server


# -- the fork server's process ----------------------------------------------------------------------------------------


def _import_all() -> None:
    """Import all of Penstock."""
    import penstock

    for module in walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith(".__main__"):
            import_module(module.name)


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork a child for each request. Return its request in the child, and None when the tests have ended."""
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}
    while True:
        ready = select.select([control, wake], [], [])[0]
        if wake in ready:
            wake.recv(4096)
            _report_ended(children)
        if control in ready:
            head, descriptors, _, _ = socket.recv_fds(control, _SIZE.size, _STREAMS + 1)
            if not head:
                return None
            request = json.loads(_receive(control, _SIZE.unpack(head)[0]))
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number, descriptor in enumerate(descriptors[:_STREAMS]):
                    os.dup2(descriptor, number)
                for end in (control, wake, waker):
                    end.detach()
                return dict(request)
            *streams, status = descriptors
            for descriptor in streams:
                os.close(descriptor)
            children[pid] = status
            os.write(status, _STATUS.pack(pid))


def _receive(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += control.recv(size - len(data))
    return data


def _report_ended(children: dict[int, int]) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            descriptor = children.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # the test did not wait for its child
                os.write(descriptor, _STATUS.pack(status))
            os.close(descriptor)


def _open_streams() -> None:
    """Open the standard streams as Python does, because they are of another kind than those of the fork server."""
    sys.stdin = open(0, errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115


def _run(request: dict[str, Any]) -> int:
    """Run the command like its installed program."""
    os.closerange(_STREAMS, os.sysconf("SC_OPEN_MAX"))
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    _open_streams()
    sys.argv = request["args"]
    if sys.argv[1:3] == ["-m", "penstock.mock_server"]:
        del sys.argv[:2]
        from penstock.mock_server.__main__ import main as mock

        return mock()
    if sys.argv[1:] and sys.argv[1].endswith(".py"):
        from runpy import run_path

        del sys.argv[0]
        run_path(sys.argv[0], run_name="__main__")
    import penstock.cli
    from penstock.cli.main import main

    reload(penstock.cli)  # its import handles Ctrl-C if `sys.argv` names a command
    return main()


if __name__ == "__main__":
    sys.path[0] = str(Path(sys.executable).parent)  # the folder of the installed programs
    _import_all()
    if (accepted := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        sys.exit(_run(accepted))
