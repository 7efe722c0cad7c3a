"""The `burst_gpt_trace` format: the CSV files of BurstGPT, with times in seconds and lengths in tokens.

Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
"""

from __future__ import annotations

from penstock.datasets.csv_file import CsvTrace, has_columns
from penstock.datasets.format import Format

_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


class BurstTrace(CsvTrace):
    """The requests of a trace of BurstGPT."""

    columns = _COLUMNS

    def time_ms(self, text: str) -> float:
        seconds = float(text)
        if seconds < 0:
            raise ValueError
        return seconds * 1000


FORMAT = Format(
    name="burst_gpt_trace",
    needs="a CSV file with the columns 'Timestamp' (s), 'Request tokens' and 'Response tokens'",
    matches=lambda _: False,
    read=BurstTrace,
    matches_file=lambda path: has_columns(path, _COLUMNS),
    has_times=lambda _: True,
)
