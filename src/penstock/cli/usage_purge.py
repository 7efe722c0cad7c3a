"""`usage purge`: delete old entries from the gateway's usage ledger."""

from __future__ import annotations

from penstock.cli.usage import LEDGER, ledger_url, parse_time
from penstock.errors import UserError
from penstock.gateway.ledger.ledger import open_ledger, purge_all
from penstock.plural import counted
from penstock.settings.command_line import CommandLine, options
from penstock.settings.flag_values import ParsedArguments

COMMAND_LINE = CommandLine(
    "usage purge",
    "Delete the entries of requests that arrived before a time from the gateway's usage ledger.",
    groups=options(f"""
--before WHEN | str before
    Delete what is older: a date (2026-06-01), a time (2026-06-01T12:00) or an age (90d).
{LEDGER}"""),
    details="""\
A running gateway may use the ledger meanwhile. SQLite reuses the freed space, but does not shrink the file. The setting
ledger.retention_days in gateway.yaml deletes old entries regularly.
""",
    examples=(("Keep ninety days", "usage purge --before 90d --ledger sqlite:///usage.db"),),
)


def run(parsed: ParsedArguments) -> int:
    before = parsed.values.get("before")
    if before is None:
        raise UserError(f"Say what to delete: `{parsed.program} usage purge --before 90d`.")
    moment = parse_time(before, "--before")
    url = ledger_url(parsed.values)
    open_ledger(url, read_only=True).close()  # fails if there is none, instead of creating one
    ledger = open_ledger(url)
    try:
        deleted = purge_all(ledger, moment)
    finally:
        ledger.close()
    print(f"Deleted {counted(deleted, 'entry', 'entries')}.")
    return 0
