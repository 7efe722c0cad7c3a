"""`verify`: check the request bodies of a run by hashing them again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.exit_status import EXIT_FAILED
from penstock.cli.terminal import print_json
from penstock.errors import UserError
from penstock.settings.command_line import CommandLine, options
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Positional

if TYPE_CHECKING:
    from penstock.records.verify import Verdict

_OPTIONS = """
--against FILE | path against
    Compare the bodies with this file or folder.
--custom-dataset-type FORMAT | str format
    Format of FILE, if it is not detected.
--json | bool json
    Print the result as JSON.
"""
COMMAND_LINE = CommandLine(
    "verify",
    "Check that a run sent exactly the request bodies that it recorded.",
    groups=options(_OPTIONS),
    positionals=(Positional("RUN", "the run's artifact folder", "folder"),),
    details="""\
The record of each request contains the SHA-256 of the body that was written to the socket. This command reads the bodies
again (from the replayed file, or from the run's folder), hashes them, and lists the requests that differ. It also checks the
per-request file, the run's own inputs.json, and the root, which is one SHA-256 over all digests in the order of the schedule.

With --against, it compares the bodies with another file: payloads (raw_payload, inputs_json, mooncake_trace), or the log
that `{program} mock --log FILE --log-hash` wrote, which has the digests of the bodies that arrived.
""",
    exit_statuses=(
        ("0", "all requests match"),
        ("1", "requests, the per-request file, inputs.json or the root differ"),
        ("2", "the run or the file cannot be read"),
    ),
    examples=(
        ("Check against the replayed file, or the run's folder", "verify artifacts/replay"),
        ("Check against another file", "verify artifacts/replay --against payloads.jsonl"),
        ("Check against the log of a mock server", "verify artifacts/replay --against mock-log.jsonl --json"),
    ),
)


class _Proof(msgspec.Struct):
    root: str


class _Summary(msgspec.Struct):
    proof: _Proof | None = None


def run(parsed: ParsedArguments) -> int:
    values = parsed.values
    folder, against, format_ = values["folder"], values.get("against"), values.get("format")
    if format_ and not against:
        raise UserError("--custom-dataset-type names the format of --against, but --against is missing.")

    from penstock.cli.open_log import open_log
    from penstock.records.bodies import BodyReader
    from penstock.records.verify import verify
    from penstock.reports.artifacts import Artifacts
    from penstock.reports.check_inputs_json import check_inputs_json

    log = open_log(folder)
    artifacts = Artifacts.of(folder, log.header)
    export = artifacts.records
    verdict = verify(
        log,
        against=against,
        format_=format_,
        reported_root=_reported_root(artifacts.summary_json),
        export=export if export is not None and os.path.exists(export) else None,
    )
    if artifacts.inputs is not None and os.path.exists(artifacts.inputs):
        with BodyReader(log) as bodies:
            verdict.inputs = check_inputs_json(artifacts.inputs, log, bodies.payloads)
    if values.get("json"):
        document = msgspec.to_builtins(verdict) | {"holds": verdict.holds}
        print_json(document)
    else:
        source = against or ", ".join(os.path.basename(path) for path in log.header.payload_files[:3])
        _show(verdict, source or "the run's folder")
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
        for difference in verdict.differences:
            where = f"request {difference.session_num} ({difference.conversation_id}, turn {difference.turn_index})"
            print(f"  {where}: {difference.reason}")
        if verdict.differing > len(verdict.differences):
            print(f"  and {verdict.differing - len(verdict.differences):,} more")
    elif verdict.received:
        print(f"{verdict.matched:,} requests arrived at the server exactly as they were sent ({source}).")
    else:
        print(f"{verdict.matched:,} requests sent exactly the bytes of {source}.")
    if verdict.elsewhere:
        print(f"{verdict.elsewhere:,} of the bodies are at another position in {source} than in the run.")
    if verdict.unsent:
        print(
            f"{verdict.unsent:,} requests were not completely written to a connection, so they have no body to compare."
        )
    if verdict.damaged_bytes:
        print(f"{verdict.damaged_bytes:,} bytes of the log cannot be read, so the requests in them were not checked.")
    for error in (verdict.export, verdict.inputs):
        if error is not None:
            print(error)
    if verdict.reported_root is None:
        print(f"Root: {verdict.root} (this run has no summary with a root to compare it with)")
    elif verdict.reported_root == verdict.root:
        print(f"Root: {verdict.root}, as in the run's summary")
    else:
        print(f"Root: {verdict.root}, but the run's summary says {verdict.reported_root}")
