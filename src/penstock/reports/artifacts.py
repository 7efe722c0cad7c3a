"""The names of a run's files, and writing them so that a reader sees the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO

import msgspec

from penstock.records.log import RunHeader

__all__ = ["Artifacts", "remove", "replacing"]


class Artifacts(msgspec.Struct, frozen=True):
    summary_json: str
    summary_csv: str
    console: str
    records: str | None
    """None when the export level asks for the summary alone."""
    inputs: str | None
    """None when that is the very file that was replayed."""
    every: tuple[str, ...]
    """All that a run of this name may write: what a folder has of them before it begins would pass for its own."""

    @classmethod
    def of(cls, folder: str, header: RunHeader) -> Artifacts:
        prefix = header.prefix
        summary = os.path.join(folder, prefix or "profile_export_aiperf")
        each = os.path.join(folder, prefix or "profile_export")
        records = each + ".jsonl"
        inputs = os.path.join(folder, "inputs.json")
        replayed = os.path.realpath(inputs) in map(os.path.realpath, header.payload_files)
        always = (summary + ".json", summary + ".csv", each + "_console.txt")
        return cls(
            *always,
            records=None if header.level == "summary" else records,
            inputs=None if replayed else inputs,
            every=(*always, records) if replayed else (*always, records, inputs),
        )


def remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """A file that takes its name when all of it is written."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    draft = path + ".new"
    try:
        with open(draft, "wb", buffering=1 << 20) as f:
            yield f
        os.replace(draft, path)
    except BaseException:
        remove(draft)
        raise
