"""The table `penstock_usage` and the SQL that SQLite and PostgreSQL share.

Columns are only ever added. Opening a ledger of an older version adds the missing columns. In a ledger of a newer version
the unknown columns get their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from penstock.gateway.ledger.entry import Entry

TABLE = "penstock_usage"

Dimension = Literal["key", "team", "model", "day"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
DEFAULT_DIMENSIONS: tuple[Dimension, ...] = ("key", "model", "day")

Kind = Literal["text", "integer", "real", "boolean", "json"]


class Column(NamedTuple):
    name: str
    kind: Kind
    null: bool = False


def _columns() -> Iterator[Column]:
    """Yield a column for each field of an entry, and one for the day, the UTC date of `at`."""
    kinds: dict[Any, Kind] = {int: "integer", float: "real", bool: "boolean", dict: "json", list: "json"}
    for field in msgspec.structs.fields(Entry):
        null = NoneType in get_args(field.type)
        base = get_args(field.type)[0] if null else get_origin(field.type) or field.type
        yield Column(field.name, kinds.get(base, "text"), null)
        if field.name == "at":
            yield Column("day", "text")


COLUMNS = tuple(_columns())
NAMES = tuple(column.name for column in COLUMNS)
INDEXES = {"penstock_usage_at": "at"}


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests to sum, and by which dimensions to group them."""

    by: tuple[Dimension, ...] = DEFAULT_DIMENSIONS
    since: float | None = None
    """Unix time, inclusive."""
    until: float | None = None
    """Unix time, exclusive."""
    keys: tuple[str, ...] = ()
    """Names or ids; empty selects all keys."""
    models: tuple[str, ...] = ()


class UsageRow(msgspec.Struct, kw_only=True):
    """Sums of one group. `key`, `team`, `model` and `day` are None if the query does not group by them, and empty if the
    requests have none."""

    key: str | None = None
    team: str | None = None
    model: str | None = None
    day: str | None = None
    """In UTC."""
    requests: int = 0
    errors: int = 0
    """Requests neither successful nor blocked: refusals, failures and disconnected callers."""
    blocked: int = 0
    """Requests blocked by a guardrail."""
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Part of the output tokens."""
    cached_tokens: int = 0
    """Part of the input tokens."""
    estimated_tokens: int = 0
    """Input and output tokens that were estimated because no upstream reported them."""

    @property
    def estimated_share(self) -> float:
        tokens = self.input_tokens + self.output_tokens
        return self.estimated_tokens / tokens if tokens else 0.0


_GROUPS = {
    "key": "CASE WHEN api_key_name = '' THEN api_key_id ELSE api_key_name END",
    "team": "COALESCE(team_id, '')",
    "model": "model",
    "day": "day",
}
_ORDER = ("day", "team", "key", "model")
_FAILED = "(error IS NOT NULL OR status >= 400)"
_SUMS = {
    "requests": "1",
    "errors": f"CASE WHEN {_FAILED} AND NOT blocked THEN 1 ELSE 0 END",
    "blocked": "CASE WHEN blocked THEN 1 ELSE 0 END",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "cached_tokens": "cached_tokens",
    "estimated_tokens": (
        "CASE WHEN usage_source IN ('estimated', 'reserved') THEN 1.0 * input_tokens + output_tokens ELSE 0 END"
    ),
}


def usage_sql(query: UsageQuery, placeholder: str, sum_function: str) -> tuple[str, list[Any]]:
    """Return the statement, with `placeholder` for each value, and the values. `sum_function` must not overflow: the
    numbers come from upstreams."""
    conditions: list[str] = []
    values: list[Any] = []

    def where(condition: str, *parameters: Any) -> None:
        conditions.append(condition)
        values.extend(parameters)

    if query.since is not None:
        where(f"at >= {placeholder}", query.since)
    if query.until is not None:
        where(f"at < {placeholder}", query.until)
    if query.keys:
        placeholders = _placeholders(query.keys, placeholder)
        where(f"(api_key_name IN ({placeholders}) OR api_key_id IN ({placeholders}))", *query.keys, *query.keys)
    if query.models:
        where(f"model IN ({_placeholders(query.models, placeholder)})", *query.models)
    groups = [name for name in _ORDER if name in query.by]
    fields = [f"{_GROUPS[name]} AS by_{name}" for name in groups] + [
        f"{sum_function}({value})" for value in _SUMS.values()
    ]
    sql = f"SELECT {', '.join(fields)} FROM {TABLE}"  # noqa: S608 - constant names
    if conditions:
        sql += " WHERE " + " AND ".join(conditions)
    if groups:
        positions = ", ".join(str(position) for position in range(1, len(groups) + 1))
        sql += f" GROUP BY {positions} ORDER BY {positions}"
    return sql, values


def purge_sql(placeholder: str) -> str:
    """Return the statement that deletes entries before a time; its values are the time and the maximum number."""
    selected = f"SELECT request_id FROM {TABLE} WHERE at < {placeholder} ORDER BY at LIMIT {placeholder}"  # noqa: S608
    return f"DELETE FROM {TABLE} WHERE request_id IN ({selected})"  # noqa: S608 - constant names


def usage_row(query: UsageQuery, values: Sequence[Any]) -> UsageRow:
    groups = [name for name in _ORDER if name in query.by]
    fields: dict[str, Any] = dict(zip(groups, values, strict=False))
    fields |= {name: int(value or 0) for name, value in zip(_SUMS, values[len(groups) :], strict=True)}
    return UsageRow(**fields)


def _placeholders(values: Iterable[str], placeholder: str) -> str:
    return ", ".join(placeholder for _ in values)
