"""The paths of a run's artifacts, and atomic writing of files."""

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
    """None if the export level is `summary`."""
    inputs: str | None
    """None if this is the file that was replayed."""
    every: tuple[str, ...]
    """All files that a run may write. Those of an earlier run must be deleted, or they look like this run's."""

    @classmethod
    def of(cls, folder: str, header: RunHeader) -> Artifacts:
        prefix = header.prefix
        summary = os.path.join(folder, prefix or "profile_export_aiperf")
        base = os.path.join(folder, prefix or "profile_export")
        records = base + ".jsonl"
        inputs = os.path.join(folder, "inputs.json")
        replayed = os.path.realpath(inputs) in map(os.path.realpath, header.payload_files)
        always = (summary + ".json", summary + ".csv", base + "_console.txt")
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
    """Open a file that replaces `path` when the block ends without an error."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    draft = path + ".new"
    try:
        with open(draft, "wb", buffering=1 << 20) as f:
            yield f
        os.replace(draft, path)
    except BaseException:
        remove(draft)
        raise
