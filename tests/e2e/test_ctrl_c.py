"""Ctrl-C at each step of a command: status 130, one sentence, no traceback, and nothing or a complete report."""

from __future__ import annotations

from typing import Any

import pytest

from support.programs import Outcome

SCRIPT = '''
import os, signal, sys
from importlib import import_module, reload

sys.argv[0] = "/penstock"
import penstock.cli
reload(penstock.cli)  # its import handles Ctrl-C if `sys.argv` names a command

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

    replace(owner, name, patched)

def replace(owner, name, function):
    """Replace a function of `owner`, and also where a module has imported it by name."""
    original = getattr(owner, name)
    for place in (owner, *sys.modules.values()):
        if getattr(place, name, None) is original:
            setattr(place, name, function)
'''

RUN = """
patch({!r}, {!r})
from penstock.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

SEND = "penstock.workers.worker:Worker._send"
STEPS_BEFORE_THE_FIRST_REQUEST = [
    ("penstock.cli.main:_main", "before"),
    ("penstock.cli.main:_run", "before"),
    ("penstock.runs.read_settings:read_settings", "before"),
    ("penstock.cli.run:profile", "before"),
    ("os:makedirs", "before"),
    ("os:makedirs", "after"),
    ("os:mkdir", "after"),
    ("penstock.mock_server.mock_process:spawn", "before"),
    ("penstock.mock_server.mock_process:spawn", "after"),
    ("penstock.mock_server.mock_process:MockProcess.start", "after"),
    ("penstock.datasets.load:load", "before"),
    ("penstock.runs.start_run:prepare", "before"),
    ("penstock.records.log:RunLog.write_header", "after"),
    ("penstock.cli.terminal_observer:_announce", "before"),
    ("penstock.runs.start_run:PhaseRunner", "before"),
    ("penstock.workers.in_process:InProcess.start", "before"),
    ("penstock.workers.in_process:Worker", "after"),
    ("penstock.workers.worker:Preconnect.run", "before"),
    ("penstock.wire.pool:Pool.open_ahead", "before"),
    ("penstock.wire.pool:Pool.open_ahead", "after"),
]
STEPS_OF_WORKER_PROCESSES = [
    ("penstock.workers.local_processes:fork", "before"),
    ("penstock.workers.local_processes:fork", "after"),
    ("penstock.workers.local_processes:run_child", "before"),
]
STEPS_OF_THE_INDEXER = [
    ("penstock.runs.input_files:fork", "before"),
    ("penstock.runs.input_files:fork", "after"),
    ("penstock.runs.input_files:_read_rest", "before"),
]
STEPS_OF_THE_REPORT = [
    ("penstock.runs.run_experiment:FinishedRun", "after"),
    ("penstock.cli.run_report:write_report", "before"),
    ("penstock.runs.report_point:report_point", "before"),
    ("penstock.runs.report_point:report_point", "after"),
    ("penstock.cli.screen:show", "before"),
    ("penstock.runs.run_folder:RunFolder.__exit__", "before"),
    ("penstock.runs.run_folder:RunFolder.__exit__", "after"),
]
STEPS_OF_THE_FOLDER = [
    ("os:rename", "before"),
    ("os:rename", "after"),
    ("os:mkdir", "before"),
    ("penstock.runs.start_run:prepare", "before"),
    ("penstock.workers.in_process:Worker", "before"),
]
URL = ("--url", "mock://?ttft=1", "--request-count", 3)


def run_script(program, body: str, *flags: Any, **env: str) -> Outcome:
    script = program.folder / "interrupted.py"
    script.write_text(SCRIPT + body)
    folder = program.folder / "run"
    arguments = ["profile", "--model", "m", "--tokenizer", "builtin", "--artifact-dir", str(folder), *map(str, flags)]
    return program.start(script, *arguments, command="python", folder=folder, **env).wait(60)


def run_interrupted(program, step: tuple[str, str], *flags: Any, **env: str) -> Outcome:
    return run_script(program, RUN.format(*step), *flags, **env)


def check_interrupted_before_the_first_request(outcome: Outcome) -> None:
    assert outcome.status == 130, outcome
    assert "Traceback" not in outcome.err + outcome.out
    (line,) = outcome.err.strip().splitlines()
    assert line in ("Interrupted.", "Interrupted before the first request: nothing was written.")


@pytest.mark.parametrize("step", STEPS_BEFORE_THE_FIRST_REQUEST, ids=" ".join)
def test_ctrl_c_before_the_first_request_writes_nothing(program, step):
    outcome = run_interrupted(program, step, *URL)
    check_interrupted_before_the_first_request(outcome)
    assert not outcome.folder.exists()


@pytest.mark.parametrize("step", STEPS_OF_WORKER_PROCESSES, ids=" ".join)
def test_ctrl_c_while_workers_start_writes_nothing(program, step):
    outcome = run_interrupted(program, step, *URL, "--concurrency", 2, "--workers-max", 2)
    check_interrupted_before_the_first_request(outcome)
    assert not outcome.folder.exists()


@pytest.mark.parametrize("step", STEPS_OF_THE_INDEXER, ids=" ".join)
def test_ctrl_c_while_the_indexer_starts_writes_nothing(program, step):
    path = program.folder / "payloads.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "Hello."}]}\n' * 5000)
    flags = ["--input-file", path, "--custom-dataset-type", "raw_payload", "--concurrency", 1]
    outcome = run_interrupted(program, step, *URL[:2], *flags, PENSTOCK_FIRST_BYTES="1000")
    check_interrupted_before_the_first_request(outcome)
    assert not outcome.folder.exists()


def test_ctrl_c_where_python_ignores_exceptions_is_not_lost(program):
    """A KeyboardInterrupt in a weakref callback is printed and ignored, and the run would go on."""
    body = """
import weakref
from penstock.cli import main
from penstock.runs import start_run

original = start_run.prepare

def prepare(*args, **options):
    referent = set()
    reference = weakref.ref(referent, lambda _: press_ctrl_c())
    del referent
    return original(*args, **options)

start_run.prepare = prepare
sys.exit(main.main(sys.argv[1:]))
"""
    outcome = run_script(program, body, *URL)
    check_interrupted_before_the_first_request(outcome)
    assert not outcome.folder.exists()


@pytest.mark.parametrize("step", STEPS_OF_THE_FOLDER, ids=" ".join)
def test_ctrl_c_before_the_first_request_keeps_the_previous_run(program, step):
    log = program.folder / "run" / "log"
    log.mkdir(parents=True)
    (log / "payloads.bin").write_bytes(b"")
    (log / "run.json").write_text("previous")
    check_interrupted_before_the_first_request(run_interrupted(program, step, *URL))
    assert [path.name for path in log.parent.iterdir()] == ["log"]
    assert (log / "run.json").read_text() == "previous"


@pytest.mark.parametrize("step", STEPS_OF_THE_REPORT, ids=" ".join)
def test_ctrl_c_during_the_report_lets_it_finish(program, step):
    outcome = run_interrupted(program, step, *URL)
    assert outcome.status == 130, outcome
    sentence = "Interrupted: finishing the report; press Ctrl-C again to leave it unfinished."
    assert outcome.err.strip() == sentence
    assert outcome.summary["is_complete"]
    assert outcome.summary["request_count"]["avg"] == len(outcome.records) == 3
    assert "Benchmark complete." in outcome.out


def test_second_ctrl_c_during_the_report_ends_the_command(program):
    body = """
import time
from penstock.cli import main
from penstock.runs import report_point

def finish(*args, **options):
    press_ctrl_c()
    time.sleep(0.2)
    press_ctrl_c()
    time.sleep(60)

replace(report_point, "report_point", finish)
sys.exit(main.main(sys.argv[1:]))
"""
    outcome = run_script(program, body, *URL)
    assert outcome.status == 130, outcome
    folder = outcome.folder
    last = outcome.err.splitlines()[-1]
    assert last == f"Interrupted: the report is unfinished; `penstock report {folder}` writes it."
    report = program.run("report", folder, command="penstock")
    assert report.status == 0, report


@pytest.mark.parametrize("step", [("penstock.runs.run_folder:RunFolder.begin", "after"), (SEND, "after")], ids=" ".join)
def test_ctrl_c_with_the_first_request_writes_a_complete_report(program, step):
    outcome = run_interrupted(program, step, "--url", "mock://?ttft=50", "--request-count", 100)
    assert outcome.status == 130, outcome
    assert "Traceback" not in outcome.err + outcome.out
    assert outcome.summary["was_cancelled"]
    assert outcome.summary["request_count"]["avg"] == len(outcome.records) <= 2
