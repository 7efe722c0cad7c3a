"""Ctrl-C at each step of a command: status 130, one sentence, no traceback, and nothing or a complete report."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.programs import Outcome

SEND_SIGNAL = '''
import os, signal, sys
from importlib import import_module

sys.argv[0] = "/penstock"
{setup}

def press_ctrl_c():
    """The terminal sends SIGINT to the whole process group."""
    os.killpg(os.getpgrp(), signal.SIGINT)

def patch(target, when):
    """Send SIGINT once, right before or after the function `module:Class.name`."""
    module, _, path = target.partition(":")
    *parents, name = path.split(".")
    owner = import_module(module)
    for parent in parents:
        owner = getattr(owner, parent)
    original = getattr(owner, name)
    sent = []

    def patched(*args, **options):
        if when == "before" and not sent:
            sent.append(press_ctrl_c())
        result = original(*args, **options)
        if when == "after" and not sent:
            sent.append(press_ctrl_c())
        return result

    setattr(owner, name, patched)

{body}
'''

RUN = """
patch({target!r}, {when!r})
from penstock.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

BEFORE_THE_FIRST_REQUEST = [
    "penstock.cli.main:_main",
    "penstock.cli.main:_run",
    "penstock.cli.read_settings:settle",
    "penstock.cli.run:profile",
    "os:makedirs",
    "os:mkdir",
    "penstock.workers.run_folder:RunFolder.__enter__",
    "penstock.mock.mock_process:parse_mock_url",
    "penstock.mock.mock_process:spawn",
    "penstock.mock.mock_process:MockProcess.start",
    "penstock.cli.run:resolve_targets",
    "penstock.cli.run:LazyTokenizer.check",
    "penstock.datasets.load:load",
    "penstock.cli.run:prepare",
    "penstock.records.log:RunLog.write_header",
    "penstock.cli.run:_announce",
    "penstock.cli.run:_outdated_artifacts",
    "penstock.workers.local_processes:SharedState",
    "penstock.workers.local_processes:PhaseController",
    "penstock.workers.local_processes:_run_in_process",
    "penstock.workers.local_processes:Worker",
    "penstock.workers.worker:Preconnect",
    "penstock.workers.worker:Preconnect.run",
    "penstock.wire.pool:Pool.open_ahead",
]


def run_script(program, body: str, *flags: Any, setup: str = "") -> Outcome:
    script = program.folder / "interrupted.py"
    script.write_text(SEND_SIGNAL.format(setup=setup, body=body))
    folder = program.folder / "run"
    words = ["profile", "--model", "m", "--tokenizer", "builtin", "--artifact-dir", str(folder), *map(str, flags)]
    done = subprocess.run(
        [sys.executable, script, *words],
        cwd=program.folder,
        env=program.env,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=60,
    )
    return Outcome(done.returncode, done.stdout, done.stderr, folder)


def run_interrupted(program, target: str, when: str, *flags: Any) -> Outcome:
    return run_script(program, RUN.format(target=target, when=when), *flags)


def check_nothing_written(outcome: Outcome) -> None:
    assert outcome.status == 130, outcome
    assert "Traceback" not in outcome.err + outcome.out
    (line,) = outcome.err.strip().splitlines()
    assert line in ("Interrupted.", "Interrupted before the first request: nothing was written.")
    assert not outcome.folder.exists()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("target", BEFORE_THE_FIRST_REQUEST)
def test_ctrl_c_before_the_first_request_writes_nothing(program, target, when):
    if (target, when) in [("penstock.cli.main:_main", "after"), ("penstock.cli.main:_run", "after")]:
        pytest.skip("the run has ended")
    if target in ("penstock.cli.run:profile", "penstock.workers.local_processes:_run_in_process") and when == "after":
        pytest.skip("the run has ended")
    check_nothing_written(run_interrupted(program, target, when, "--url", "mock://?ttft=1", "--request-count", 3))
