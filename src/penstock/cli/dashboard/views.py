"""The texts of the panels. Each function returns the lines of a panel for its width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.cli.dashboard.snapshot import GpuView, PhaseView, PointView, ServerView, Snapshot
from penstock.cli.dashboard.state import DashboardState, History, Percentiles
from penstock.cli.phase_progress import clock, remaining_s, share_done, stop_text

_BARS = "▁▂▃▄▅▆▇█"
_PARTIAL = " ▏▎▍▌▋▊▉"
_NONE = "–"
_COLOUR = {"VALID": "ansi_green", "DEGRADED": "ansi_yellow", "INVALID": "ansi_red"}


class Part(NamedTuple):
    text: str
    style: str = ""


Line = Sequence[Part]


def _dim(text: str) -> Part:
    return Part(text, "dim")


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the values as bars from 0 to the largest one. More values than `width` are replaced by means of neighbours; a
    missing value is a space."""
    shown = _thinned(list(values), width)
    top = max((value for value in shown if value is not None), default=0.0)
    return "".join(
        " " if value is None else _BARS[min(7, int(8 * value / top))] if top > 0 else _BARS[0] for value in shown
    )


def _thinned(values: list[float | None], width: int) -> list[float | None]:
    if len(values) <= width or width <= 0:
        return values[: max(0, width)]
    groups = [values[n * len(values) // width : (n + 1) * len(values) // width] for n in range(width)]
    known = [[value for value in group if value is not None] for group in groups]
    return [sum(group) / len(group) if group else None for group in known]


def bar(share: float, width: int) -> str:
    """Return a bar whose filled part is exact to an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return f"{'█' * full}{_PARTIAL[rest] if rest else ''}".ljust(width)


def number(value: float | None) -> str:
    """Return the number with about four digits."""
    if value is None:
        return _NONE
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# -- progress ---------------------------------------------------------------------------------------------------------


def progress(state: DashboardState, width: int) -> list[Line]:
    snapshot = state.snapshot
    if not any(phase.began for phase in snapshot.phases):
        connections = f"Opening connections: {snapshot.connected:,}" if snapshot.connected else "Starting"
        return [[_dim(connections)]]
    names = max((len(phase.name) for phase in snapshot.phases), default=0)
    return [_phase(phase, snapshot, min(names, 24), width) for phase in snapshot.phases]


def _phase(phase: PhaseView, snapshot: Snapshot, names: int, width: int) -> Line:
    name = Part(f"{phase.name[:names]:<{names}}  ", "" if phase.began and not phase.over else "dim")
    if not phase.began:
        return [name, _dim("not started")]
    share = share_done(phase.ended, phase.expected, phase.seconds, phase.duration_s)
    counts = f"{phase.ended:,}" if phase.expected is None else f"{phase.ended:,}/{phase.expected:,}"
    times = clock(phase.seconds)
    left = None if phase.over or snapshot.stopping else remaining_s(share, phase.seconds)
    if left is not None:
        times += f", {clock(left)} left"
    end = f"  {'' if share is None else f'{share:4.0%}  '}{counts}  {times}"
    room = width - len(name.text) - len(end)
    if share is None or room < 4:
        return [name, Part(end.strip())]
    return [name, Part(bar(share, room), "dim" if phase.over else "ansi_cyan"), Part(end)]


# -- figures ----------------------------------------------------------------------------------------------------------


def rates(state: DashboardState, width: int) -> list[Line]:
    snapshot = state.snapshot
    running = next((phase for phase in reversed(snapshot.phases) if phase.began), None)
    failed = 0 if running is None else running.failed
    share = f" ({failed / running.ended:.1%})" if running is not None and running.ended and failed else ""
    return [
        _history_line("Requests/s", number(state.request_rate.last), state.request_rate, width),
        _history_line("Tokens/s", number(state.token_rate.last), state.token_rate, width),
        _history_line("In flight", f"{snapshot.in_flight:,}", state.in_flight, width),
        _history_line("Waiting", f"{snapshot.waiting:,}", state.waiting, width),
        [_dim("Failed    "), Part(f"{failed:>9,}{share}", "bold ansi_red" if failed else "")],
    ]


def _history_line(name: str, value: str, history: History, width: int) -> Line:
    start = f"{name:<10}"
    return [
        _dim(start),
        Part(f"{value:>9}", "bold"),
        Part("  " + sparkline(history.values, width - len(start) - 11), "ansi_cyan"),
    ]


def latencies(state: DashboardState, width: int) -> list[Line]:
    rows: list[Line] = [[_dim(f"{'ms':<10}{'p50':>8}{'p90':>8}{'p99':>8}  {'recent p50'[: max(0, width - 36)]}")]]
    for name, history, percentiles in (
        ("TTFT", state.first_content, state.percentiles(lambda snapshot: snapshot.first_content)),
        ("Chunk gap", state.chunk_gap, state.percentiles(lambda snapshot: snapshot.chunk_gap)),
        ("Latency", state.latency, state.percentiles(lambda snapshot: snapshot.latency)),
    ):
        values: Percentiles | tuple[None, None, None] = percentiles or (None, None, None)
        cells = "".join(f"{number(value):>8}" for value in values)
        spark = sparkline(history.values, width - 36)
        rows.append([_dim(f"{name:<10}"), Part(cells, "bold"), Part("  " + spark, "ansi_cyan")])
    return rows


# -- checks -----------------------------------------------------------------------------------------------------------


def errors(state: DashboardState, width: int) -> list[Line]:
    found = sorted(state.snapshot.errors.items(), key=lambda error: -error[1])
    if not found:
        return [[_dim("None so far")]]
    counts = max(len(f"{count:,}") for _, count in found)
    room = max(0, width - counts - 2)
    lines: list[Line] = []
    for cause, count in found:
        text = cause.type if cause.status is None else f"{cause.status} {cause.type}"
        if cause.owner and len(text) + len(cause.owner) + 3 <= room:
            text = f"{text} ({cause.owner})"
        lines.append([Part(f"{count:>{counts},}  ", "bold ansi_red"), Part(text[:room])])
    return lines


def certificate(state: DashboardState, width: int) -> list[Line]:
    del width
    judged = state.certificate
    if judged is None:
        return [[_dim("After the first requests")]]
    verdict = Part(judged.verdict, f"bold {_COLOUR[judged.verdict]}")
    if judged.reasons:
        return [[verdict, Part(". " + " ".join(judged.reasons))]]
    return [[verdict, _dim(f" ({judged.summary}); the report also judges the figures")]]


# -- telemetry and points ---------------------------------------------------------------------------------------------


def telemetry(state: DashboardState, width: int) -> list[Line]:
    snapshot = state.snapshot
    return [*_servers(snapshot.servers, width), *_gpus(snapshot.gpus, width)]


def _servers(servers: Sequence[ServerView], width: int) -> Iterator[Line]:
    if not servers:
        return
    name = max(8, min(max(len(server.name) for server in servers), width - 21))
    yield [_dim(f"{'Server':<{name}}{'queued':>7}{'running':>8}{'cache':>6}")]
    for server in servers:
        if server.error is not None:
            yield [
                Part(f"{server.name[:name]:<{name}}  "),
                Part(server.error[: max(0, width - name - 2)], "ansi_yellow"),
            ]
            continue
        cache = _NONE if server.cache is None else f"{server.cache:.0f} %"
        yield [
            Part(f"{server.name[:name]:<{name}}"),
            Part(f"{_count(server.queued):>7}{_count(server.running):>8}{cache:>6}", "bold"),
        ]


def _gpus(gpus: Sequence[GpuView], width: int) -> Iterator[Line]:
    if not gpus:
        return
    name = max(4, min(max(len(gpu.name) for gpu in gpus), width - 33))
    yield [_dim(f"{'GPU':<{name}}{'load':>7}{'memory':>10}{'power':>8}{'temp':>7}")]
    for gpu in gpus:
        cells = (
            f"{_unit(gpu.utilization, '%'):>7}{_unit(gpu.memory_gb, 'GB'):>10}"
            f"{_unit(gpu.power_w, 'W'):>8}{_unit(gpu.temperature, '°C'):>7}"
        )
        yield [Part(f"{gpu.name[:name]:<{name}}"), Part(cells, "bold")]


def _count(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.0f}"


def _unit(value: float | None, unit: str) -> str:
    return _NONE if value is None else f"{value:,.0f} {unit}"


def points(state: DashboardState, width: int) -> list[Line]:
    """Return the points, the newest first."""
    return [_point(point, width) for point in reversed(state.snapshot.points)]


def _point(point: PointView, width: int) -> Line:
    if point.result is None:
        return [Part(f"▶ {point.name}"[:width], "bold ansi_cyan")]
    mark, style = ("✗ ", "ansi_red") if point.failed else ("✓ ", "ansi_green")
    return [Part(mark, style), Part(f"{point.name}: {point.result}"[: max(0, width - 2)])]


# -- bottom line ------------------------------------------------------------------------------------------------------


def bottom_line(snapshot: Snapshot, interrupts: int) -> Line:
    """Return the line about keys, or what the run waits for while it is stopping. `interrupts` counts presses of Ctrl-C."""
    if level := max(snapshot.stopping, interrupts):
        return [Part(stop_text(level, snapshot.in_flight), "bold ansi_yellow")]
    if snapshot.note is not None:
        return [Part(snapshot.note, "bold")]
    return _keys((("Ctrl-C", "stop sending, twice: stop at once"), ("q", "progress bar instead")))


def _keys(keys: Iterable[tuple[str, str]]) -> Line:
    return [part for key, effect in keys for part in (Part(key, "bold"), _dim(f" {effect}   "))]
