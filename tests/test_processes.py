from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.processes import spawn


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no process to cores")
def test_cores_are_those_that_may_be_used() -> None:
    code = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}}); "
    code += "from penstock.processes import cores; print(cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1\n"


def test_a_child_finds_this_package_and_nothing_where_it_is_started(tmp_path: Path) -> None:
    decoy = tmp_path / "penstock"
    decoy.mkdir()
    (decoy / "__init__.py").write_text("raise SystemExit('the decoy')")
    (decoy / "__main__.py").write_text("")
    child = spawn("penstock", "--version", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (0, b"")
    assert out.strip()


def test_whether_the_parent_is_there() -> None:
    """Asked in a child, because it is the child whose end is arranged."""
    code = (
        "import os, signal; from penstock.processes import end_with_parent as e; s = signal.SIGTERM; "
        "print(e(os.getppid(), s), e(os.getpid(), s))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True False\n"


def test_the_limit_of_descriptors_is_what_the_system_allows() -> None:
    code = (
        "import resource as r; hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (64, hard)); "
        "from penstock.processes import raise_descriptor_limit; raise_descriptor_limit(); "
        "print(r.getrlimit(r.RLIMIT_NOFILE) == (hard, hard))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"
