"""Child processes and the limits of this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.processes import fork, spawn


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no CPU affinity")
def test_cores_are_those_that_the_process_may_use() -> None:
    code = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}}); "
    code += "from penstock.processes import cores; print(cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1\n"


def test_child_imports_this_package_and_nothing_from_its_working_directory(tmp_path: Path) -> None:
    decoy = tmp_path / "penstock"
    decoy.mkdir()
    (decoy / "__init__.py").write_text("raise SystemExit('the decoy')")
    (decoy / "__main__.py").write_text("")
    child = spawn("penstock", "--version", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (0, b"")
    assert out.strip()


def test_end_with_parent_returns_false_if_the_parent_has_ended() -> None:
    """Run in a child, because the function arranges the end of its process."""
    code = (
        "import os, signal; from penstock.processes import end_with_parent as e; s = signal.SIGTERM; "
        "print(e(os.getppid(), s), e(os.getpid(), s))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True False\n"


def test_descriptor_limit_is_raised_to_the_hard_limit() -> None:
    code = (
        "import resource as r; hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (64, hard)); "
        "from penstock.processes import raise_descriptor_limit; raise_descriptor_limit(); "
        "print(r.getrlimit(r.RLIMIT_NOFILE) == (hard, hard))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"


def test_forked_child_ignores_interrupts_from_its_first_instruction() -> None:
    """Each child sends itself the signals at once. The handler of the parent must not run in it."""
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(3))
    try:
        for _ in range(20):
            pid = fork()
            if pid == 0:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.signal(signal.SIGINT, before)
