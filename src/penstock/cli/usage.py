"""`usage`: print totals from the gateway's usage ledger."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from penstock.cli.terminal import Paint, aligned, print_json
from penstock.errors import UserError
from penstock.gateway.ledger.ledger import DEFAULT_URL, open_ledger
from penstock.gateway.ledger.usage_table import DEFAULT_DIMENSIONS, DIMENSIONS, Dimension, UsageQuery, UsageRow
from penstock.gateway.observe.printable import escape_nonprintable
from penstock.secrets import redact_url
from penstock.settings.command_line import CommandLine, examples, options
from penstock.settings.flag_values import ParsedArguments

LEDGER = f"""
--ledger URL | str ledger url
    The gateway's ledger: sqlite:///FILE, sqlite:////ABSOLUTE/FILE or postgresql://...
    [default: PENSTOCK_LEDGER, else {DEFAULT_URL}]
"""
_OPTIONS = f"""{LEDGER}
--by DIMENSIONS | str by
    Group by any of key, team, model and day, separated by commas, or by none. [default: {",".join(DEFAULT_DIMENSIONS)}]
--since WHEN | str since
    Count from this time on: a date (2026-06-01), a time (2026-06-01T12:00), or an age (30m, 24h, 7d, 4w).
--until WHEN | str until
    Count up to this time, in the same formats; a date includes the whole day.
--key NAME | list keys
    Count only this caller key, by its name or id; repeatable.
--model ALIAS | list models
    Count only this alias; repeatable.
--json | bool json
    Print one JSON object instead of a table.
"""
COMMAND_LINE = CommandLine(
    "usage",
    """\
Print totals from the gateway's usage ledger by caller key, model alias and day (UTC). Every request counts once. The errors
are refused requests, failed requests and callers that disconnected; requests blocked by a guardrail are counted separately.
Reasoning tokens are part of the output, cached tokens are part of the input. "estimated" is the share of tokens that no
upstream reported. A request appears about a second after it has ended.
""",
    groups=options(_OPTIONS),
    usage=("[OPTIONS]", "purge --before WHEN [--ledger URL]"),
    details="""\
`purge --before WHEN` deletes the older entries from the ledger.
""",
    examples=examples("""\
All usage, by day, key and model
    usage
The last thirty days, one line per key
    usage --by key --since 30d
One key in June, the 30th included
    usage --by model,day --since 2026-06-01 --until 2026-06-30 --key team-a
As JSON from PostgreSQL, with the password in PGPASSWORD or ~/.pgpass
    usage --ledger postgresql://reader@db.example/penstock --json
"""),
)

_AGE = re.compile(r"([0-9]{1,6})([smhdw])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_DAY_S = 86400.0

_COUNTS = ("requests", "errors", "blocked", "input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens")
_SUMMED = tuple(name for name in UsageRow.__struct_fields__ if name not in DIMENSIONS)
_EMPTY_NAMES = {"key": "(no key)", "team": "(no team)", "model": "(no model)"}


def run(parsed: ParsedArguments) -> int:
    values = parsed.values
    since, until = values.get("since"), values.get("until")
    url = ledger_url(values)
    query = UsageQuery(
        by=_dimensions(values["by"]) if "by" in values else DEFAULT_DIMENSIONS,
        since=None if since is None else parse_time(since, "--since"),
        until=None if until is None else parse_time(until, "--until", end=True),
        keys=tuple(values.get("keys", ())),
        models=tuple(values.get("models", ())),
    )
    if query.since is not None and query.until is not None and query.since >= query.until:
        raise UserError(f"--since {since} is not before --until {until}.")
    ledger = open_ledger(url, read_only=True)
    try:
        rows = ledger.usage(query)
    finally:
        ledger.close()
    total = _total(rows)
    if values.get("json"):
        print_json(_document(url, query, rows, total))
    else:
        sys.stdout.write(_table(query, rows, total))
    sys.stdout.flush()
    return 0


def ledger_url(values: Mapping[str, Any]) -> str:
    return values.get("ledger") or os.environ.get("PENSTOCK_LEDGER") or DEFAULT_URL


def _total(rows: list[UsageRow]) -> UsageRow:
    return UsageRow(**{name: sum(getattr(row, name) for row in rows) for name in _SUMMED})


def _dimensions(text: str) -> tuple[Dimension, ...]:
    if text.strip() == "none":
        return ()
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in DIMENSIONS:
            raise UserError(f"--by takes key, team, model and day, separated by commas, or none; not {name!r}.")
    return cast(tuple[Dimension, ...], tuple(dict.fromkeys(names)))


def parse_time(text: str, flag: str, *, end: bool = False) -> float:
    if age := _AGE.match(text):
        return time.time() - int(age[1]) * _SECONDS[age[2]]
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp() + (_DAY_S if end and _DATE.match(text) else 0)
    except (ValueError, OverflowError):
        raise UserError(
            f"{flag} takes a date (2026-06-01), a time (2026-06-01T12:00Z) or an age (7d); not {text!r}."
        ) from None


def _document(url: str, query: UsageQuery, rows: list[UsageRow], total: UsageRow) -> dict[str, Any]:
    return {
        "ledger": redact_url(url),
        "by": list(query.by),
        "since": _iso_time(query.since),
        "until": _iso_time(query.until),
        "rows": [_fields(row, query) for row in rows],
        "total": _fields(total, msgspec.structs.replace(query, by=())),
    }


def _iso_time(timestamp: float | None) -> str | None:
    return None if timestamp is None else datetime.fromtimestamp(timestamp, UTC).isoformat().replace("+00:00", "Z")


def _fields(row: UsageRow, query: UsageQuery) -> dict[str, Any]:
    fields = {
        name: value for name, value in msgspec.structs.asdict(row).items() if name not in DIMENSIONS or name in query.by
    }
    return {**fields, "estimated_share": round(row.estimated_share, 4)}


def _table(query: UsageQuery, rows: list[UsageRow], total: UsageRow) -> str:
    if not total.requests:
        return "No requests.\n"
    groups = [name for name in ("day", "team", "key", "model") if name in query.by]
    header = [*groups, *(name.removesuffix("_tokens") for name in _COUNTS), "estimated"]
    body = [[*(_name(row, group) for group in groups), *_counts(row)] for row in rows if groups]
    footer = [*(["total", *[""] * len(groups)][: len(groups)]), *_counts(total)]
    first, *lines, last = aligned([header, *body, footer], left=range(len(groups)))
    paint = Paint()
    if groups:
        lines.append(paint.dim("-" * len(last)))
    return "\n".join([paint.bold(first), *lines, paint.bold(last)]) + "\n"


def _name(row: UsageRow, group: str) -> str:
    return escape_nonprintable(getattr(row, group) or _EMPTY_NAMES.get(group, ""))


def _counts(row: UsageRow) -> list[str]:
    share = row.estimated_share
    shown = "<1%" if 0 < share < 0.01 else f"{share:.0%}" if share else "-"
    return [*(f"{getattr(row, name):,}" for name in _COUNTS), shown]
