"""What an actor does on the node of a cluster, without Ray."""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.workers.ray_cluster import NodeAgent, connect


def test_folder_of_a_killed_run_is_removed_and_that_of_a_running_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, running = NodeAgent(), NodeAgent()
    killed.write("payloads.bin", b"0123")
    folder, _ = killed.describe()
    killed._lock.close()  # as at the end of a process
    last = NodeAgent()
    assert not os.path.exists(folder)
    assert sorted(os.listdir(tmp_path)) == sorted(os.path.basename(each.describe()[0]) for each in (running, last))
    for each in (running, last):
        each.remove()
    assert os.listdir(tmp_path) == []


def test_address_of_a_ray_client_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(
        UserError, match=r"--cluster ray:// needs the module grpc, which is not installed; run `pip install "
    ):
        connect("ray://127.0.0.1:1")
