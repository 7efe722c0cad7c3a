"""The points of an experiment: runs that share workers, connections and a log.

Everything that sends requests is an experiment of one or more points. An experiment is a generator that yields points and
receives the result of each, so that it can decide by the results what to measure next. `runs.run_experiment` runs it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from penstock.records.header import Variation
from penstock.records.log import variation_label
from penstock.runs.stop_rules import StopRule
from penstock.schedule.limits import SlotLimit
from penstock.settings.schema import Parameter, Settings

if TYPE_CHECKING:
    from penstock.runs.report_point import PointReport

__all__ = ["Experiment", "Point", "PointOutcome", "PointRuns", "SearchRule", "Single", "Variation"]


class SearchRule(StopRule, Protocol):
    def outcome(self) -> str:
        """Say what was found, after the end of the point."""
        ...


class Point(msgspec.Struct, frozen=True):
    settings: Settings
    """Complete, as those of a single run; `output.folder` is its own artifact folder."""
    label: str = ""
    parameters: dict[str, Parameter] = {}
    """The values of a sweep, by the names of the parameters."""
    variation: int = 0
    """Which combination of these values it is."""
    trial: int = 0
    """Which of the repeated runs it is."""
    alone: bool = False
    """The point is the whole run: the log has no frame for it, and its artifacts are in the folder of the run."""
    warmup: bool = True
    """False skips the warmup; profiling starts at the same prompt as after a warmup."""
    pause_s: float = 0.0
    """Time without requests before it."""
    goes_on: bool = False
    """Go on in the dataset where the point before ended, so that the server has not cached the prompts."""
    seed: int | None = None
    """Seed of the arrivals, if it is not that of the dataset."""
    phase_name: str | None = None
    """Name of its profiling phase."""
    rule: SearchRule | None = None
    """Decides when the next point may begin. Its artifacts are written after the last point."""
    most_requests: int | None = None
    """About how many requests it sends if its rule decides nothing, for the progress."""
    drain: bool = True
    """Wait until the requests of the point before have ended; without, that point sends until this one begins."""
    slots: SlotLimit | None = None
    """Replaces the limit of requests in flight that the settings describe."""

    @property
    def name(self) -> str:
        """The label, after the values of the sweep unless it begins with them."""
        values = variation_label(self.parameters)
        return self.label if not self.parameters or self.label.startswith(values) else f"{values} {self.label}"


class PointOutcome(NamedTuple):
    point: Point
    report: PointReport | None
    """None if nothing could be sent. That of a point with a rule is written after the last point."""
    error: str | None = None
    """Why its figures cannot be used; None if they can."""
    facts: dict[str, Any] | None = None
    """What the rule of the point has found, as in the log; None without a rule."""
    from_log: bool = False
    """True if an earlier process has run the point, so that nothing was sent between it and the next one."""

    @property
    def ended_by_overload(self) -> bool:
        return self.report is not None and self.report.summary.ended_by_overload

    def value(self, metric: str, statistic: str) -> float | None:
        """Return a figure; None if the point has none."""
        stats = None if self.report is None or self.error is not None else self.report.summary.metrics.get(metric)
        return None if stats is None else getattr(stats, statistic)


PointRuns = Generator[Point, PointOutcome, None]


class Experiment(Protocol):
    @property
    def settings(self) -> Settings:
        """Settings of its first point, with the artifact folder of the experiment."""
        ...

    @property
    def largest(self) -> Sequence[Settings]:
        """The points with the largest loads, for which workers are sized; empty for a single run."""
        ...

    @property
    def variations(self) -> Sequence[Variation]:
        """What its points are made from, for the log; empty for a single run."""
        ...

    @property
    def servers(self) -> int:
        """Number of servers to which each conversation is sent."""
        ...

    def points(self) -> PointRuns: ...


class Single:
    """A run of its own, or a comparison of servers, which sends each conversation to several of them."""

    largest = ()
    variations = ()

    def __init__(self, settings: Settings, servers: int = 1) -> None:
        self.settings = settings
        self.servers = servers

    def points(self) -> PointRuns:
        yield Point(self.settings, alone=True)
