"""The sentence on standard output and the log file that scripts for AIPerf wait for. The sentence is printed once the load has
begun; each artifact folder has a log file."""

from __future__ import annotations

import os
from datetime import datetime

from penstock.reports.sink_table import AIPERF_LOG

PROFILING = "AIPerf System is PROFILING"


class AiperfLog:
    """Writes the lines about a run to the log files of the run and of the point that is running, in AIPerf's format."""

    def __init__(self, folder: str, title: str) -> None:
        """`folder` is the artifact folder of the run."""
        self.next_folder: str | None = None
        """Artifact folder of a point that is about to begin."""
        self._folder = folder
        self._paths: set[str] = set()
        self._early = [_line(title)]
        """Lines from before the first request, when the folder must stay as it was."""

    def begin_point(self) -> bool:
        """Begin the file of the next point; return whether there was one."""
        folder, self.next_folder = self.next_folder, None
        if folder is None:
            return False
        paths = {os.path.join(each, AIPERF_LOG) for each in (self._folder, folder)}
        for path in paths - self._paths:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8", errors="replace") as file:
                file.writelines(self._early)
        self._paths = paths
        return True

    def add(self, text: str) -> None:
        if not self._paths:
            self._early.append(_line(text))
        for path in self._paths:
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                file.write(_line(text))


def _line(text: str) -> str:
    return f"{datetime.now().isoformat(sep=' ', timespec='milliseconds')} - penstock - INFO - {text}\n"
