"""Reads traces in CSV files."""

from __future__ import annotations

import csv
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from penstock.datasets.conversation import PromptShape, Turn
from penstock.datasets.jsonl import FileErrors, open_failure
from penstock.datasets.row_file import Row, RowAt, RowFile
from penstock.datasets.schedule_part import check_milliseconds
from penstock.errors import UserError
from penstock.plural import counted
from penstock.settings.schema import InputSettings

__all__ = ["CsvTrace", "has_columns"]


def has_columns(path: str, columns: Sequence[str]) -> bool:
    """Return whether the first line of a file is a CSV header with these columns."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader([file.readline(1 << 16)]), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return set(columns) <= {name.strip() for name in header}


class CsvTrace(RowFile):
    """The requests of a CSV trace. Requests without input or output tokens have failed and are left out."""

    columns: tuple[str, str, str]
    """Those of the time, the input length and the output length."""

    def __init__(self, path: str, settings: InputSettings) -> None:
        super().__init__(path, settings.seed)
        self._positions: list[int] = []
        """Positions of the columns in a row."""
        self._failed = 0

    @abstractmethod
    def time_ms(self, text: str) -> float:
        """Convert a time, or raise ValueError."""

    def parse(self, line: bytes, offset: int) -> Row:
        del offset
        values = next(csv.reader([line.decode()]))
        return self._row([values[position].strip() for position in self._positions])

    def rows(self, errors: FileErrors) -> Iterator[RowAt]:
        self._failed = 0
        for number, offset, values in self._rows(errors):
            try:
                row = self._row(values)
            except ValueError as error:
                errors.add(number, str(error))
                continue
            if row.turns:
                yield RowAt(number, offset, row)
            else:
                self._failed += 1

    def empty(self) -> UserError:
        return UserError(f"The input file '{self._path}' has no requests; give a trace with rows after its header.")

    def notes(self) -> list[str]:
        failed = (
            f"Left out: {counted(self._failed, 'row')} without input or output tokens, which stand for failed requests."
        )
        return [*([failed] if self._failed else []), *super().notes()]

    def _row(self, values: Sequence[str]) -> Row:
        """Return the row with these values, without a turn for a failed request. Raise ValueError with the reason."""
        time, *lengths = values
        try:
            timestamp = self.time_ms(time)
        except (ValueError, OverflowError):
            timestamp = math.nan
        if not math.isfinite(timestamp):
            raise ValueError(f"'{self.columns[0]}' should be a time, not {time!r}")
        check_milliseconds(**{self.columns[0]: max(0.0, timestamp)})
        input_length, output_length = [_tokens(*pair) for pair in zip(self.columns[1:], lengths, strict=True)]
        if not input_length or not output_length:
            return Row(())
        return Row((Turn(prompt=PromptShape(input_length), output_tokens=output_length, timestamp_ms=timestamp),))

    def _rows(self, errors: FileErrors) -> Iterator[tuple[int, int, list[str]]]:
        """Yield the number of each line, its offset, and its values in the columns."""
        columns = self.columns
        try:
            with open(self._path, "rb") as file:
                lines = _Lines(file)
                reader = csv.reader(lines)
                header = [name.strip() for name in next(reader, [])]
                missing = [name for name in columns if name not in header]
                if missing:
                    errors.add(1, f"the header has no column '{missing[0]}'; the format needs {', '.join(columns)}")
                    return
                self._positions = positions = [header.index(name) for name in columns]
                offset = lines.offset
                for row in reader:
                    begin, offset = offset, lines.offset
                    if not row:
                        continue
                    if len(row) <= max(positions):
                        values = counted(len(row), "value")
                        errors.add(reader.line_num, f"it has {values}, but the header has {len(header)}")
                        continue
                    yield reader.line_num, begin, [row[position].strip() for position in positions]
        except OSError as error:
            raise open_failure(self._path, error) from None
        except UnicodeDecodeError:
            errors.add(reader.line_num + 1, "not valid UTF-8")
        except csv.Error as error:
            errors.add(reader.line_num, f"not valid CSV ({error})")


class _Lines:
    """The lines of a file as text, with the offset after the last one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.offset = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._file)
        first = self.offset == 0
        self.offset += len(line)
        return line.decode("utf-8-sig" if first else "utf-8")


def _tokens(name: str, text: str) -> int:
    """Return a number of tokens. Files that another program has rewritten may have `12.0` for 12."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e9 or value != int(value):
        raise ValueError(f"'{name}' should be a whole number of tokens, not {text!r}")
    return int(value)
