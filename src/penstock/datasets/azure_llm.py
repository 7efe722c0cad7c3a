"""The `azure_llm_trace` format: the CSV files of Azure's LLM inference traces, with dates and lengths in tokens.

TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
"""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.datasets.csv_file import CsvTrace, has_columns
from penstock.datasets.format import Format

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class AzureTrace(CsvTrace):
    """The requests of a trace of Azure."""

    columns = _COLUMNS

    def time_ms(self, text: str) -> float:
        time = datetime.fromisoformat(text)  # accepts seven decimal places of a second and drops the last
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000


FORMAT = Format(
    name="azure_llm_trace",
    needs="a CSV file with the columns 'TIMESTAMP' (a date), 'ContextTokens' and 'GeneratedTokens'",
    matches=lambda _: False,
    read=AzureTrace,
    matches_file=lambda path: has_columns(path, _COLUMNS),
    has_times=lambda _: True,
)
