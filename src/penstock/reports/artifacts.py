"""The paths of a run's artifacts, and atomic writing of files."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import IO, Any

import msgspec

from penstock.records.header import RunHeader
from penstock.reports import sink_table
from penstock.scratch import Scratch, Spool, SpoolWriter


class Artifacts(msgspec.Struct, frozen=True):
    paths: dict[str, str]
    """The file of each sink, by the sink's name. `records` is missing if the export level is `summary`, `inputs` if it is
    the file that was replayed, and those of raw replies, outputs, slices and telemetry if they were not asked for."""
    every: tuple[str, ...]
    """All files that a run may write. Those of an earlier run must be deleted, or they look like this run's."""

    @classmethod
    def of(cls, folder: str, header: RunHeader) -> Artifacts:
        output = header.settings.output
        prefix = output.prefix
        names = {
            "folder": "",
            "summary": prefix or "profile_export_aiperf",
            "export": prefix or "profile_export",
            "server_metrics": f"{prefix}_server_metrics" if prefix else "server_metrics_export",
            "gpu_telemetry": f"{prefix}_gpu_telemetry" if prefix else "gpu_telemetry_export",
        }
        paths = {entry.name: os.path.join(folder, entry.path.format_map(names)) for entry in sink_table.SINKS}
        if os.path.realpath(paths["inputs"]) in map(os.path.realpath, header.payload_files):
            del paths["inputs"]
        others = (*sink_table.PHASE_FILES, sink_table.AIPERF_LOG, sink_table.MLFLOW_FILE)
        every = (*paths.values(), *(os.path.join(folder, name) for name in others))
        telemetry = header.settings.telemetry
        scraped = () if telemetry.no_server_metrics else telemetry.server_metrics_formats
        wanted = {
            "records": output.export_level != "summary",
            "raw": output.keeps_replies,
            "outputs": output.outputs_json,
            "parquet": "parquet" in output.exports,
            "html": output.html,
            "slices_csv": output.slice_s is not None,
            "slices_json": output.slice_s is not None,
            "gpu_telemetry": telemetry.gpu is not None,
            "network_latency": telemetry.probe_network,
            **{f"server_metrics_{name}": name in scraped for name in ("json", "csv", "jsonl", "parquet")},
        }
        return cls({name: path for name, path in paths.items() if wanted.get(name, True)}, every)

    @property
    def summary_json(self) -> str:
        return self.paths["summary_json"]

    @property
    def summary_csv(self) -> str:
        return self.paths["summary_csv"]

    @property
    def records(self) -> str | None:
        return self.paths.get("records")

    @property
    def inputs(self) -> str | None:
        return self.paths.get("inputs")


DRAFT_SUFFIX = ".new"
"""Ends the names of drafts. One that a killed process has left is replaced by the next one."""


class Draft:
    """A new version of a file, which replaces the file when it is committed."""

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._path = path
        self._draft = path + DRAFT_SUFFIX
        self.file: IO[bytes] = open(self._draft, "wb", buffering=1 << 20)  # noqa: SIM115

    def commit(self) -> None:
        self.file.close()
        os.replace(self._draft, self._path)

    def discard(self) -> None:
        """Delete the draft; without effect after a commit."""
        with contextlib.suppress(OSError):
            self.file.close()
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._draft)


class SectionDraft:
    """The part of a file that is made from a section of a log, in a scratch file."""

    def __init__(self, scratch: Scratch) -> None:
        self._spool = Spool(scratch)
        self.file: IO[bytes] = io.BufferedWriter(SpoolWriter(self._spool), 1 << 20)

    def finish(self) -> Spool:
        self.file.flush()
        return self._spool


def write_json(path: str, document: Any) -> None:
    """Replace a file by an indented document."""
    with replacing(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=2))


@contextlib.contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` when the block ends without an error."""
    draft = Draft(path)
    try:
        yield draft.file
        draft.commit()
    finally:
        draft.discard()
