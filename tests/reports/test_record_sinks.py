"""Artifacts that are written by a second process, in a program without threads."""

import subprocess
import sys
from pathlib import Path

from penstock.records.record import Failure
from support import TESTS
from support.records import make_record
from support.runs import write_log

PROGRAM = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from support.runs import load_word_tokenizer
from penstock.records.log import RunLog
from penstock.reports import write_artifacts
from penstock.reports.record_sinks import SinkProcess

PARENT = os.getpid()

class Killed(SinkProcess):
    def _write(self, receive):
        if os.getpid() != PARENT:
            receive = lambda: os.kill(os.getpid(), signal.SIGKILL)
        return super()._write(receive)

def write(name, apart, process=SinkProcess):
    write_artifacts.is_worth_a_process = lambda log: apart
    write_artifacts.SinkProcess = process
    log = RunLog(sys.argv[2])
    summary = write_artifacts.write_artifacts(
        log, os.path.join(sys.argv[3], name), load_word_tokenizer, lambda body: [body.decode()]
    )
    log.close()
    return summary

assert write("apart", True) == write("here", False) == write("killed", True, Killed)
"""


def test_second_process_writes_the_same_artifacts_even_if_it_is_killed(tmp_path: Path) -> None:
    failure = Failure("ServerError", "out of memory", "server")
    records = [make_record(at=i, number=i, failure=failure if i % 50 == 7 else None) for i in range(700)]
    log = write_log(tmp_path, records)
    out = tmp_path / "out"
    subprocess.run([sys.executable, "-c", PROGRAM, str(TESTS), str(log), str(out)], check=True)
    written = {folder.name: _contents(folder) for folder in out.iterdir()}
    assert "profile_export.jsonl" in written["here"]
    assert "report.html" in written["here"]
    assert written["apart"] == written["here"]
    assert written["killed"] == written["here"]


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
