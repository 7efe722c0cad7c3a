"""`compare`: two runs that were made, or two servers in one run whose requests take turns."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.terminal import fit
from penstock.errors import UserError

if TYPE_CHECKING:
    from penstock.compare.comparison import Comparison
    from penstock.settings.schema import Settings

__all__ = ["run"]

_HELP = """\
Usage: {program} compare RUN_A RUN_B [--json]
       {program} compare --url A --url B [--json] [options of profile]

Say by how much B differs from A in each metric, with a 95 % interval, and whether that is more than noise. An interval is
that of its row alone; verdicts are corrected for the number of rows (Holm), because one in twenty looks special by chance. A
row whose interval leaves out 0 and that is within noise all the same has a *. The certificates of the runs are shown, and
with an INVALID one there is no conclusion.

Two runs: give their artifact folders. Requests with the same body (by its SHA-256) are compared in pairs, so both should
have sent the same payloads: replay the inputs.json of one against the other server. What changed on the machines between
the two runs is in the difference, too.

Two servers: give --url twice (or more often; each is compared with the first) and what `profile` takes. Every conversation
goes to each server, in an order drawn anew for each, within one run, so that a drifting machine favours neither. Concurrency
and rate are those of all servers together; --request-count, if given, is that of each. The files of each server are in the
subfolders a, b, ... of the artifact folder, and the comparison in compare.json.

Options
  --json      print the comparison as JSON instead of a table
  --help, -h  this text

Examples
  {program} compare artifacts/server-1 artifacts/server-2
  {program} compare --url http://one:8000 --url http://two:8000 --model m --input-file payloads.jsonl --concurrency 8
  {program} compare --url 'mock://?ttft=20' --url 'mock://?ttft=22' --model test --tokenizer builtin --request-count 100
"""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_APART = (
    "The runs were made one after the other: what else changed between them is in the difference. "
    "`compare --url A --url B` sends to both in turn."
)
_TOGETHER = "Both servers were under load at the same time, each with its share of the concurrency or rate."


def run(words: list[str], program: str) -> int:
    if not words or "--help" in words or "-h" in words:
        sys.stdout.write(fit(_HELP.format(program=program)) + "\n")
        return 0
    as_json = "--json" in words
    rest = [word for word in words if word != "--json"]
    if rest and rest[0].startswith("-"):
        return _servers(rest, program, as_json)
    if len(rest) != 2:
        raise UserError(f"Name two artifact folders, or give --url twice; see `{program} compare --help`.")
    return _runs(os.path.expanduser(rest[0]), os.path.expanduser(rest[1]), as_json)


def _runs(first: str, second: str, as_json: bool) -> int:
    from penstock.compare.comparison import compare
    from penstock.compare.read_runs import pair, read_requests

    for path in (first, second):
        if not os.path.exists(path):
            raise UserError(f"There is no run at '{path}'.")
    pairs = pair(read_requests(first, first), read_requests(second, second))
    _show([compare(pairs, throughput=True, notes=(_APART,))], as_json)
    return 0


def _servers(words: list[str], program: str, as_json: bool) -> int:
    from penstock.cli.read_settings import settle

    settings = settle(words, program, "compare")
    servers = len(settings.endpoint.urls)
    if not 2 <= servers <= len(_LETTERS):
        raise UserError("Give --url at least twice: once for each server to compare.")
    output = settings.output
    if output.level == "summary":
        raise UserError("--export-level summary keeps no requests, and it is requests that are compared; leave it out.")
    if as_json:
        output = msgspec.structs.replace(output, ui="none")
    return _interleaved(msgspec.structs.replace(settings, output=output), as_json)


def _interleaved(settings: Settings, as_json: bool) -> int:
    from penstock.cli.run import execute, open_folder, report_server
    from penstock.compare.comparison import compare
    from penstock.compare.read_runs import pair, read_requests
    from penstock.secrets import redact_url

    servers = len(settings.endpoint.urls)
    folder = settings.output.folder
    status = 0
    sides = []
    with open_folder(folder) as running:
        done = execute(settings, running, servers=servers)
        for number, url in enumerate(settings.endpoint.urls):
            place = os.path.join(folder, _LETTERS[number])
            status = max(status, report_server(done, number, place))
            sides.append((place, redact_url(url)))
    try:
        first, *others = [read_requests(place, url) for place, url in sides]
    except UserError:
        if not done.outcome.interrupts:
            raise
        print(
            "The run was interrupted before every server had completed a request: nothing to compare.", file=sys.stderr
        )
        return status
    found = [
        compare(pair(first, other, blocks=servers), throughput=False, notes=(_TOGETHER,), seed=number)
        for number, other in enumerate(others)
    ]
    with open(os.path.join(folder, "compare.json"), "wb") as file:
        file.write(_json(found))
    _show(found, as_json)
    if not as_json:
        print(f"Files of each server: {', '.join(os.path.join(place, '') for place, _ in sides)}")
    return status


def _json(found: list[Comparison]) -> bytes:
    document = found[0] if len(found) == 1 else found
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _show(found: list[Comparison], as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(_json(found))
        return
    from penstock.cli.screen import columns
    from penstock.compare.text_table import comparison_text

    width = columns(sys.stdout)
    sys.stdout.write("\n".join(comparison_text(each, width) for each in found))
