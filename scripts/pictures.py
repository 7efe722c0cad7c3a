"""Write the pictures of the documentation: docs/dashboard.svg, the dashboard during a real sweep against a mock server.

python scripts/pictures.py
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path
from time import monotonic_ns

from msgspec.structs import replace

from penstock.cli.dashboard.app import Dashboard
from penstock.cli.dashboard.snapshot import Header, Snapshot
from penstock.cli.dashboard.snapshot_builder import SnapshotBuilder
from penstock.cli.profile import COMMAND_LINE
from penstock.records.log import Sample
from penstock.runs.observer import Observer
from penstock.runs.phase_runner import RunProgress
from penstock.runs.points import Point, PointOutcome
from penstock.runs.read_experiment import read_experiment
from penstock.runs.run_experiment import run_experiment
from penstock.runs.run_folder import RunFolder
from penstock.schedule.phase import Phase
from penstock.settings.parse import parse

_DOCS = Path(__file__).parents[1] / "docs"
_MODEL, _POINTS = "Qwen/Qwen3-0.6B", (4, 8, 16)
_COMMAND = (
    *("--model", _MODEL, "--tokenizer", "builtin", "--url", "mock://?ttft=60&jitter=0.2&itl=4&slots=12", "--streaming"),
    *("--isl", "200", "--osl", "64", "--concurrency", ",".join(map(str, _POINTS)), "--benchmark-duration", "8"),
    *("--warmup-request-count", "4", "--server-metrics", "--random-seed", "1"),
)
_INTERVAL_NS = 500_000_000
_SIZE = 100, 28


class _Recorder(Observer):
    """Keeps snapshots twice a second, up to the middle of the last point."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self._builder = SnapshotBuilder()
        self._point = self._due = 0

    def point_begins(self, point: Point, phases: list[Phase], expected: list[int | None]) -> None:
        self._point += 1
        self._builder.begin_point(point.label, phases, expected)

    def point_ended(self, result: PointOutcome) -> None:
        assert result.report is not None
        metrics = result.report.summary.metrics
        rate, ttft = metrics["request_throughput"].avg, metrics["time_to_first_token"]
        self._builder.end_point(f"{rate:,.1f}/s, TTFT {ttft.p50:,.0f} ms (p99 {ttft.p99:,.0f})", failed=False)

    def sample(self, sample: Sample) -> None:
        self._builder.add_sample(sample)

    def progress(self, progress: RunProgress) -> None:
        now = monotonic_ns()
        self._builder.phases.update(progress, now)
        phase = self._builder.phases.views[-1:]
        if now >= self._due and not (self._point == len(_POINTS) and phase and phase[0].seconds > 6):
            self._due = now + _INTERVAL_NS
            snapshot = self._builder.build(progress, now, ())
            servers = [replace(server, name="localhost:8000") for server in snapshot.servers]
            self.snapshots.append(replace(snapshot, servers=servers))


async def _draw(snapshots: list[Snapshot]) -> str:
    title = f"Penstock: {_MODEL} at http://localhost:8000, {len(_POINTS)} points of concurrency"
    app = Dashboard(Header(title, 1, open_loop=False, streaming=True, points=len(_POINTS)), lambda: None)
    async with app.run_test(size=_SIZE) as pilot:
        for snapshot in snapshots:
            app.show(snapshot)
        await pilot.pause(0.5)
        return app.export_screenshot(title="aiperf profile", simplify=True)


def main() -> int:
    recorder = _Recorder()
    with tempfile.TemporaryDirectory() as folder:
        words = [*_COMMAND, "--artifact-dir", str(Path(folder) / "run")]
        with RunFolder(words[-1]) as run:
            run_experiment(read_experiment(parse(COMMAND_LINE, words, "aiperf")), run, recorder)
    picture = asyncio.run(_draw(recorder.snapshots))
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # they load fonts from another server
    (_DOCS / "dashboard.svg").write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
