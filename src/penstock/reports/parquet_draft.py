"""A Parquet file that is written in groups of rows, and replaces the file at its path when it is complete."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ParquetDraft"]


class ParquetDraft:
    def __init__(self, path: str, schema: pyarrow.Schema) -> None:
        import pyarrow.parquet

        self._path = path
        self._draft = f"{path}.new"
        self._schema = schema
        self._table = pyarrow.table
        self.columns: dict[str, list[Any]] = {}
        """The rows of the next group. All columns have the same length."""
        self._clear()
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._writer = pyarrow.parquet.ParquetWriter(self._draft, schema, compression="zstd")

    def _clear(self) -> None:
        self.columns = {name: [] for name in self._schema.names}

    def __len__(self) -> int:
        """Return the number of rows of the next group."""
        return len(self.columns[self._schema.names[0]])

    def flush(self) -> None:
        """Write the rows as a group."""
        if len(self):
            self._writer.write_table(self._table(self.columns, schema=self._schema))
            self._clear()

    def append(self, part: str) -> None:
        """Append the groups of rows of another file with the same schema, and delete it."""
        import pyarrow.parquet

        self.flush()
        with pyarrow.parquet.ParquetFile(part) as file:
            for group in range(file.num_row_groups):
                self._writer.write_table(file.read_row_group(group))
        os.remove(part)

    def commit(self) -> None:
        self.flush()
        self._writer.close()
        os.replace(self._draft, self._path)

    def discard(self) -> None:
        """Delete the file unless it is complete."""
        self._writer.close()
        if os.path.exists(self._draft):
            os.remove(self._draft)
