"""The names of a run's files, and writing them so that a reader sees the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO

import msgspec

from penstock.records.log import RunHeader

__all__ = ["Artifacts", "Identity", "remove", "replacing", "stale"]


class Artifacts(msgspec.Struct, frozen=True):
    summary_json: str
    summary_csv: str
    console: str
    records: str | None
    """None when the export level asks for the summary alone."""
    inputs: str | None
    """None when that is the very file that was replayed."""
    stale: tuple[str, ...]
    """Written by other settings of an earlier run: they would pass for this one's."""

    @classmethod
    def of(cls, folder: str, header: RunHeader) -> Artifacts:
        prefix = header.prefix
        summary = os.path.join(folder, prefix or "profile_export_aiperf")
        each = os.path.join(folder, prefix or "profile_export")
        records = each + ".jsonl"
        wanted = header.level != "summary"
        inputs = os.path.join(folder, "inputs.json")
        return cls(
            summary_json=summary + ".json",
            summary_csv=summary + ".csv",
            console=each + "_console.txt",
            records=records if wanted else None,
            inputs=None if os.path.realpath(inputs) in map(os.path.realpath, header.payload_files) else inputs,
            stale=() if wanted else (records,),
        )


class Identity(msgspec.Struct):
    """Which run a summary is of."""

    benchmark_id: str | None = None


def stale(folder: str, header: RunHeader) -> str | None:
    """A sentence when the files in a run's folder are those of the run before: this one was killed before its report."""
    try:
        with open(Artifacts.of(folder, header).summary_json, "rb") as file:
            found = msgspec.json.decode(file.read(), type=Identity).benchmark_id
    except (OSError, msgspec.MsgspecError):
        return None
    if found is None or found == header.benchmark_id:
        return None
    return (
        f"The summary in {folder} is that of an earlier run ({found}): the run in its log ({header.benchmark_id}) was cut off "
        f"before its report. `penstock report {folder}` writes it."
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
