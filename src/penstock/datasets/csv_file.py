"""Reads traces in CSV files."""

from __future__ import annotations

import csv
import math
from abc import abstractmethod
from collections.abc import Sequence

from penstock.datasets.conversation import PromptShape, Turn
from penstock.datasets.dataset import ReadOptions
from penstock.datasets.jsonl import BOM, FileErrors, open_failure
from penstock.datasets.row_file import Row, RowFile
from penstock.datasets.schedule_part import check_milliseconds
from penstock.errors import UserError
from penstock.plural import counted
from penstock.settings.schema import InputSettings


def has_columns(path: str, columns: Sequence[str]) -> bool:
    """Return whether the first line of a file is a CSV header with these columns."""
    try:
        return set(columns) <= set(_header(path))
    except UserError:
        return False


class CsvTrace(RowFile):
    """The requests of a CSV trace, one in each line. Requests without input or output tokens have failed and are left out."""

    columns: tuple[str, str, str]
    """Those of the time, the input length and the output length."""

    def __init__(self, path: str, settings: InputSettings) -> None:
        super().__init__(path, settings.seed)
        self._width = 0
        """The number of columns."""
        self._positions: list[int] = []
        """Positions of `columns` in a row."""

    @abstractmethod
    def time_ms(self, text: str) -> float:
        """Convert a time, or raise ValueError."""

    def prepare(self, options: ReadOptions) -> None:
        header = _header(self._path)
        missing = [name for name in self.columns if name not in header]
        if missing:
            errors = FileErrors(self._path)
            errors.add(1, f"the header has no column '{missing[0]}'; the format needs {', '.join(self.columns)}")
            errors.raise_any()
        self._width = len(header)
        self._positions = [header.index(name) for name in self.columns]
        super().prepare(options)

    def parse(self, line: bytes, offset: int) -> Row:
        if offset <= len(BOM):
            return Row(())  # the header
        values = _values(line.decode())
        if len(values) <= max(self._positions):
            raise ValueError(f"it has {counted(len(values), 'value')}, but the header has {self._width}")
        time, *lengths = [values[position] for position in self._positions]
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

    def empty(self) -> UserError:
        return UserError(f"The input file '{self._path}' has no requests; give a trace with rows after its header.")

    def notes(self) -> list[str]:
        failed = self.without_turns - 1  # the header
        note = f"Left out: {counted(failed, 'row')} without input or output tokens, which stand for failed requests."
        return [*([note] if failed > 0 else []), *super().notes()]


def _header(path: str) -> list[str]:
    """Return the names in the first line of a file; none if it is no text."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return _values(file.readline(1 << 16))
    except OSError as error:
        raise open_failure(path, error) from None
    except ValueError:
        return []


def _values(line: str) -> list[str]:
    """Return the values of a line, or raise ValueError."""
    try:
        return [value.strip() for value in next(csv.reader([line]), [])]
    except csv.Error as error:
        raise ValueError(f"not valid CSV ({error})") from None


def _tokens(name: str, text: str) -> int:
    """Return a number of tokens. Files that another program has rewritten may have `12.0` for 12."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e9 or value != int(value):
        raise ValueError(f"'{name}' should be a whole number of tokens, not {text!r}")
    return int(value)
