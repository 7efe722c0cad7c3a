"""The `burst_gpt_trace` format: the CSV files of BurstGPT, with times in seconds and lengths in tokens.

Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
"""

from __future__ import annotations

from penstock.datasets.csv_file import has_columns, read_csv_trace
from penstock.datasets.format import Contents, Format
from penstock.settings.schema import InputSettings

__all__ = ["FORMAT"]

_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def _time_ms(text: str) -> float:
    seconds = float(text)
    if seconds < 0:
        raise ValueError
    return seconds * 1000


def _read(path: str, settings: InputSettings) -> Contents:
    return read_csv_trace(path, settings, _COLUMNS, _time_ms)


FORMAT = Format(
    name="burst_gpt_trace",
    needs="a CSV file with the columns 'Timestamp' (s), 'Request tokens' and 'Response tokens'",
    matches=lambda _: False,
    read=_read,
    matches_file=lambda path: has_columns(path, _COLUMNS),
    has_times=lambda _: True,
)
