"""`verify`: whether a run sent exactly the bytes that it says, by hashing them again."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.arguments import Arguments
from penstock.cli.exit_status import EXIT_FAILED
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.records.verify import Verdict

__all__ = ["run"]

_DETAILS = """\
Each request's record holds the SHA-256 of the body that was handed to the socket. This command reads the bodies once
more from where they lie (the replayed file, or the run's own folder), hashes them, and says which requests differ. It
also checks the per-request file and the root: one SHA-256 over all digests in the order of the plan.

With --against, the bodies are compared with another file: payloads (raw_payload, inputs_json, mooncake_trace), or what
a mock server logged with --log-hash, which is what arrived.

Exit status: 0 when everything matches, 1 when something differs, 2 when the run or the file cannot be read

Examples
  {program} verify artifacts/replay
  {program} verify artifacts/replay --against payloads.jsonl
  {program} verify artifacts/replay --against mock-truth.jsonl --json
"""


class _Proof(msgspec.Struct):
    root: str


class _Summary(msgspec.Struct):
    proof: _Proof | None = None


def arguments(program: str) -> Arguments:
    parser = Arguments(program, "verify", "Check that a run sent exactly the bytes that it says.", _DETAILS)
    parser.add_argument("folder", metavar="RUN", type=os.path.expanduser, help="the run's artifact folder")
    parser.add_argument(
        "--against", metavar="FILE", type=os.path.expanduser, help="compare with this file or folder instead"
    )
    parser.add_argument("--custom-dataset-type", metavar="FORMAT", help="the format of FILE, when it is not recognised")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def run(words: list[str], program: str) -> int:
    given = arguments(program).read(words)
    if given.custom_dataset_type and not given.against:
        raise UserError("--custom-dataset-type names the format of --against, which is missing.")

    from penstock.cli.open_run import open_run
    from penstock.records.verify import verify
    from penstock.reports.artifacts import Artifacts

    log = open_run(given.folder)
    artifacts = Artifacts.of(given.folder, log.header)
    export = artifacts.records
    verdict = verify(
        log,
        against=given.against,
        format_=given.custom_dataset_type,
        reported_root=_reported_root(artifacts.summary_json),
        export=export if export is not None and os.path.exists(export) else None,
    )
    log.close()
    if given.json:
        document = msgspec.to_builtins(verdict) | {"holds": verdict.holds}
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    else:
        source = given.against or ", ".join(os.path.basename(path) for path in log.header.payload_files[:3])
        _show(verdict, source or "the run's own folder")
    return 0 if verdict.holds else EXIT_FAILED


def _reported_root(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            proof = msgspec.json.decode(file.read(), type=_Summary).proof
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise UserError(f"{path} is not the summary of a run: {error}.") from None
    return None if proof is None else proof.root


def _show(verdict: Verdict, source: str) -> None:
    if verdict.differing:
        print(f"{verdict.differing:,} of {verdict.requests:,} requests differ from {source}:")
        for each in verdict.differences:
            where = f"request {each.session_num} ({each.conversation_id}, turn {each.turn_index})"
            print(f"  {where}: {each.reason}")
        if verdict.differing > len(verdict.differences):
            print(f"  and {verdict.differing - len(verdict.differences):,} more")
    elif verdict.received:
        print(f"{verdict.matched:,} requests arrived at the server exactly as they were sent ({source}).")
    else:
        print(f"{verdict.matched:,} requests sent exactly the bytes of {source}.")
    if verdict.elsewhere:
        print(f"{verdict.elsewhere:,} of the bodies stand at another place of {source} than in the run.")
    if verdict.unsent:
        print(
            f"{verdict.unsent:,} requests were not handed whole to a connection, so that there is no body to compare."
        )
    if verdict.export is not None:
        print(verdict.export)
    if verdict.reported_root is None:
        print(f"Root: {verdict.root} (there is none in a summary of this run to compare it with)")
    elif verdict.reported_root == verdict.root:
        print(f"Root: {verdict.root}, as in the run's summary")
    else:
        print(f"Root: {verdict.root}, but the run's summary says {verdict.reported_root}")
