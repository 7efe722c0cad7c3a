"""Read traces in CSV files."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence

from penstock.datasets.conversation import PromptShape, Turn
from penstock.datasets.format import Contents
from penstock.datasets.jsonl import FileErrors, open_failure
from penstock.datasets.trace_rows import TraceRow, conversations
from penstock.errors import UserError
from penstock.plural import counted
from penstock.settings.schema import InputSettings

__all__ = ["has_columns", "read_csv_trace"]


def has_columns(path: str, columns: Sequence[str]) -> bool:
    """Return whether the first line of a file is a CSV header with these columns."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header = file.readline(1 << 16)
    except (OSError, UnicodeDecodeError):
        return False
    return set(columns) <= {name.strip() for name in header.split(",")}


def read_csv_trace(
    path: str, settings: InputSettings, columns: tuple[str, str, str], time_ms: Callable[[str], float]
) -> Contents:
    """Read a trace. `columns` are those of the time, the input length and the output length.

    `time_ms` converts a time, or raises ValueError. Requests without input or output tokens have failed and are left out.
    """
    errors = FileErrors(path)
    rows: list[TraceRow] = []
    failed = 0
    for number, (time, *lengths) in _rows(path, columns, errors):
        try:
            timestamp = time_ms(time)
            if not math.isfinite(timestamp):
                raise ValueError
        except (ValueError, OverflowError):
            errors.add(number, f"'{columns[0]}' should be a time, not {time!r}")
            continue
        try:
            input_length, output_length = [_tokens(name, text) for name, text in zip(columns[1:], lengths, strict=True)]
        except ValueError as error:
            errors.add(number, str(error))
            continue
        if not input_length or not output_length:
            failed += 1
            continue
        rows.append(
            TraceRow(Turn(prompt=PromptShape(input_length), output_tokens=output_length, timestamp_ms=timestamp))
        )
    errors.raise_any()
    if not rows:
        raise UserError(
            f"The input file '{path}' has no requests; give --input-file a trace with rows after its header."
        )
    note = f"Left out: {counted(failed, 'row')} without input or output tokens, which stand for failed requests."
    return Contents(conversations(rows, settings.seed), note if failed else None)


def _rows(path: str, columns: Sequence[str], errors: FileErrors) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line and its values in these columns."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            missing = [name for name in columns if name not in header]
            if missing:
                errors.add(1, f"the header has no column '{missing[0]}'; the format needs {', '.join(columns)}")
                return
            positions = [header.index(name) for name in columns]
            for row in reader:
                if not row:
                    continue
                if len(row) <= max(positions):
                    errors.add(
                        reader.line_num, f"it has {counted(len(row), 'value')}, but the header has {len(header)}"
                    )
                    continue
                yield reader.line_num, [row[position].strip() for position in positions]
    except OSError as error:
        raise open_failure(path, error) from None
    except UnicodeDecodeError:
        errors.add(reader.line_num + 1, "not valid UTF-8")
    except csv.Error as error:
        errors.add(reader.line_num, f"not valid CSV ({error})")


def _tokens(name: str, text: str) -> int:
    """Return a number of tokens. Tables that a program has written again may have `12.0` for 12."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e9 or value != int(value):
        raise ValueError(f"'{name}' should be a whole number of tokens, not {text!r}")
    return int(value)
