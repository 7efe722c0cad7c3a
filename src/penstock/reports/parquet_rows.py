"""Rows of a Parquet file, which are written in groups."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from penstock.scratch import Spool

if TYPE_CHECKING:
    import pyarrow


class ParquetRows:
    def __init__(self, file: IO[bytes], schema: pyarrow.Schema) -> None:
        import pyarrow.parquet

        self._schema = schema
        self._table = pyarrow.table
        self.columns: dict[str, list[Any]] = {name: [] for name in schema.names}
        """The rows of the next group. All columns have the same length."""
        self._writer = pyarrow.parquet.ParquetWriter(file, schema, compression="zstd")

    def __len__(self) -> int:
        """Return the number of rows of the next group."""
        return len(self.columns[self._schema.names[0]])

    def flush(self) -> None:
        """Write the rows as a group."""
        if len(self):
            self._writer.write_table(self._table(self.columns, schema=self._schema))
            self.columns = {name: [] for name in self._schema.names}

    def append(self, part: Spool) -> None:
        """Append the groups of rows of another file with the same schema."""
        import pyarrow.parquet

        self.flush()
        with pyarrow.parquet.ParquetFile(pyarrow.BufferReader(part.mapped())) as file:
            for group in range(file.num_row_groups):
                self._writer.write_table(file.read_row_group(group))

    def close(self) -> None:
        """Write the last group and the end of the file; without effect if it is closed."""
        if self._writer.is_open:
            self.flush()
            self._writer.close()
