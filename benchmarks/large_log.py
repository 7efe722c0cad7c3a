"""Write the log of a large run without sending its requests: those of a short run are repeated, later and with new numbers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from benchmarks.far_end import far_end, profile
from penstock import frames
from penstock.records.frame_kinds import RECORD, REPORT
from penstock.records.log import RunLog
from penstock.records.record import Record

_SMALL = 10_000
_TIMES = ("intended", "issued", "start", "end", "sent", "first_byte")


@contextmanager
def large_log(requests: int, *, chunks: int = 20, rows: bool = True, killed: bool = False) -> Iterator[str]:
    """Run a benchmark of 10,000 requests, and yield the folder of a run whose log has `requests` of them.

    `rows` says whether its report has files with a row for each request. `killed`: the run has half of its requests left, and
    the reports of the workers are missing."""
    flags = ["--streaming", "--isl", "50", "--osl", str(chunks), "--num-dataset-entries", "100", "--concurrency", "64"]
    flags += ["--workers-max", "2", "--request-count", str(_SMALL)]
    flags += [] if rows else ["--export-level", "summary", "--no-html"]
    with (
        far_end(chunks) as server,
        profile(server.url, *flags) as run,
        tempfile.TemporaryDirectory() as folder,
    ):
        shutil.copytree(run.folder, folder, dirs_exist_ok=True)
        log = os.path.join(folder, "log")
        header = RunLog.read_header(log)
        header.requests = requests * (2 if killed else 1)
        load = msgspec.structs.replace(header.settings.load, requests=header.requests)
        header.settings = msgspec.structs.replace(header.settings, load=load)
        RunLog.write_header(log, header)
        repeat_log(log, requests // _SMALL, killed=killed)
        yield folder


def repeat_log(folder: str, copies: int, *, killed: bool) -> None:
    """Repeat the records of a log `copies` times, one copy after the other. With `killed`, drop the workers' reports."""
    log = RunLog(folder)
    records = list(log.records())
    span = max(record.end for record in records) + 1_000_000
    sessions = max(record.number for record in records) + 1
    for path in log.worker_files().values():
        with open(path, "rb") as file:
            found = list(frames.Reader(file))
        own = [msgspec.msgpack.decode(data, type=Record) for kind, data in found if kind == RECORD]
        with open(path, "wb", buffering=1 << 20) as file:
            for copy in range(copies):
                for record in own:
                    if copy:
                        _move(record, span, sessions)
                    file.write(frames.pack(RECORD, msgspec.msgpack.encode(record)))
            for kind, data in found:
                if kind == REPORT and not killed:
                    file.write(frames.pack(kind, data))


def _move(record: Record, span: int, sessions: int) -> None:
    record.number += sessions
    for name in _TIMES:
        if getattr(record, name) is not None:
            setattr(record, name, getattr(record, name) + span)
