"""Artifacts of a log that is read in sections, in a program without threads."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.records.record import Failure, Record, Usage
from penstock.reports.report_html import read_page
from support import TESTS
from support.records import make_record
from support.runs import PROFILING, WARMUP, write_log

TURNS = 3
PROGRAM = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from support.runs import input_texts, load_word_tokenizer, write_artifacts
from penstock.records.log import RunLog
from penstock.reports.artifact_writer import ArtifactWriter

PARENT = os.getpid()
add_records = ArtifactWriter._add_records

def killed(*arguments):
    add_records(*arguments)
    if os.getpid() != PARENT:
        os.kill(os.getpid(), signal.SIGKILL)

def write(name, *, section_bytes=50_000, processes=3, add=add_records):
    ArtifactWriter._add_records = add
    log = RunLog(sys.argv[2], section_bytes=section_bytes)
    done = []
    summary = write_artifacts(
        log,
        os.path.join(sys.argv[3], name),
        load_word_tokenizer,
        input_texts,
        progress=lambda *at: done.append(at),
        processes=processes,
    )
    sections = len(log.sections())
    assert add is killed or done[-1] == (1199, 0), done[-1]  # one record is damaged
    summary.compared_values = summary.compared_values.tolist()  # arrays have no equality
    return summary, sections

_, sections = write("whole", section_bytes=1 << 30)
assert sections == 1
summary, sections = write("processes")
assert sections > 3
assert summary.damage.torn_bytes == 7 and summary.damage.skipped_places == 1, summary.damage
assert write("killed", add=killed) == (summary, sections)
"""


def _record(number: int) -> Record:
    """Return a turn of one of 400 conversations of 2 workers; those of a conversation are far apart in the log."""
    session, turn = number % 400, number // 400
    failure = Failure("ConnectionLost", f"lost {number}", "network") if number % 50 == 7 else None
    return make_record(
        at=3.7 * number,
        phase=int(number >= 30),
        number=session,
        conversation=session,
        payload=TURNS * session + turn,
        turn=turn,
        worker=session % 2,
        request_id=f"request {number}",
        failure=failure,
        outputs=[f"reply {number} of a server"],
        usage=Usage(10 + session % 7, 5, 15),
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("run")
    bodies = [(f"session-{n}", [_body(n, turn) for turn in range(TURNS)]) for n in range(400)]
    log = Path(
        write_log(
            folder,
            [_record(number) for number in range(1200)],
            conversations=bodies,
            phases=(WARMUP, PROFILING),
            slice_s=2.0,
            outputs_json=True,
            goodput="request_latency:99",
            requests=1170,
            workers=2,
        )
    )
    damaged = bytearray((log / "worker-0.log").read_bytes())
    middle = damaged.index(b"request 600")
    damaged[middle] ^= 1
    (log / "worker-0.log").write_bytes(damaged + b"\x01torn..")
    out = folder / "out"
    subprocess.run([sys.executable, "-c", PROGRAM, str(TESTS), str(log), str(out)], check=True)
    return {path.name: path for path in out.iterdir()}


def _body(session: int, turn: int) -> bytes:
    # Every second session sends the bodies of the one before it.
    return json.dumps({"messages": [{"role": "user", "content": f"prompt {session // 2} {turn}"}]}).encode()


def test_sections_give_the_files_of_the_whole_log(folders: dict[str, Path]) -> None:
    whole = _files(folders["whole"])
    assert whole == _files(folders["processes"])
    assert {"profile_export.jsonl", "inputs.json", "outputs.json", "report.html"} < set(whole)
    for name in whole:
        expected, found = ((folders[kind] / name) for kind in ("whole", "processes"))
        if name.endswith(".json") and name not in ("inputs.json", "outputs.json"):
            _assert_close(json.loads(expected.read_bytes()), json.loads(found.read_bytes()))
        elif name == "report.html":
            _assert_close(read_page(str(expected)), read_page(str(found)))
        else:
            assert found.read_bytes() == expected.read_bytes(), name


def test_sections_of_killed_processes_are_read_again(folders: dict[str, Path]) -> None:
    for file in _files(folders["processes"]):
        assert (folders["killed"] / file).read_bytes() == (folders["processes"] / file).read_bytes(), file


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _assert_close(expected: Any, found: Any, path: str = "") -> None:
    """Sums of the same numbers in another order differ in their last digits."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), path
    elif isinstance(expected, dict):
        assert expected.keys() == found.keys(), path
        for name, value in expected.items():
            _assert_close(value, found[name], f"{path}/{name}")
    elif isinstance(expected, list):
        assert len(expected) == len(found), path
        for number, (a, b) in enumerate(zip(expected, found, strict=True)):
            _assert_close(a, b, f"{path}/{number}")
    else:
        assert expected == found, path
