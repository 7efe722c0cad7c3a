"""The dashboard, screen by screen: the Textual app in this process, fed with snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from penstock.cli.dashboard.app import Dashboard, _Panel
from penstock.cli.dashboard.snapshot import GpuView, Header, PhaseView, PointView, ServerView, Snapshot
from penstock.cli.dashboard.views import bar, number, sparkline
from penstock.workers.messages import ErrorCause
from support.snapshots import at_second, make_header

Steps = Callable[[Dashboard, Pilot[None]], Awaitable[None]]


def drive(steps: Steps, *, size: tuple[int, int] = (80, 24), header: Header | None = None) -> list[str]:
    """Run steps in the app, and return what its Ctrl-C did."""
    interrupts: list[str] = []

    async def run() -> None:
        app = Dashboard(header or make_header(), lambda: interrupts.append("interrupted"))
        async with app.run_test(size=size) as pilot:
            await steps(app, pilot)

    asyncio.run(asyncio.wait_for(run(), 60))
    return interrupts


def screen_of(*snapshots: Snapshot, size: tuple[int, int] = (80, 24), header: Header | None = None) -> list[str]:
    """Return the lines of the screen after these snapshots."""
    lines: list[str] = []

    async def steps(app: Dashboard, pilot: Pilot[None]) -> None:
        for snapshot in snapshots:
            app.show(snapshot)
        lines.extend(await settled_text(app, pilot))

    drive(steps, size=size, header=header)
    return lines


def text_of(app: Dashboard) -> list[str]:
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


async def settled_text(app: Dashboard, pilot: Pilot[None]) -> list[str]:
    """Wait until every panel is laid out and drawn for its width, and return the lines of the screen."""

    def settled() -> bool:
        panels = [panel for panel in app.query(_Panel) if panel.display and panel.parent.display]
        return all(
            panel.content_size.width and panel._shown == panel._view(app.state, panel.content_size.width)
            for panel in panels
        )

    await pilot.pause()
    while not settled():
        await pilot.pause(0.01)
    return text_of(app)


def line_with(lines: list[str], text: str) -> str:
    return next((line for line in lines if text in line), f"{text!r} is not in\n" + "\n".join(lines))


def test_screen_before_the_first_request():
    lines = screen_of(Snapshot(at=1, phase=-1, connected=7, phases=[PhaseView("Profiling", 10, None)]))
    assert "Penstock: m at http://host" in lines[0]
    assert "Opening connections: 7" in line_with(lines, "connections")
    assert "After the first requests" in line_with(lines, "After")


def test_screen_of_a_run_fits_80_by_24():
    lines = screen_of(*(at_second(n / 2) for n in range(1, 21)))
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert lines[0].endswith("00:10")
    progress = line_with(lines, "Profiling")
    assert "20%  200/1,000  00:10, 00:40 left" in progress
    assert "█" in progress
    assert "Requests/s     20.0  " in line_with(lines, "Requests/s")
    assert "Tokens/s      200.0  " in line_with(lines, "Tokens/s")
    assert "In flight         8" in line_with(lines, "In flight")
    assert "Waiting           0" in line_with(lines, "Waiting")
    for name, low, high in (("TTFT", 45, 55), ("Chunk gap", 4.5, 5.5), ("Latency", 360, 440)):
        row = line_with(lines, name).partition(name)[2].split()
        assert all(low < float(value) < high for value in row[:3]), row
        assert set(row[3]) == {"█"}
    assert "None so far" in line_with(lines, "None")
    assert "VALID (kernel timestamps" in line_with(lines, "VALID")
    assert "Ctrl-C stop sending" in lines[-1]


def test_phases_are_shown_together():
    phases = [
        PhaseView("Warmup", 50, None, began=True, over=True, seconds=2, ended=50),
        PhaseView("Profiling", None, 30.0, began=True, seconds=10, ended=200),
    ]
    lines = screen_of(at_second(10, phases=phases))
    assert "100%  50/50  00:02" in line_with(lines, "Warmup")
    assert "left" not in line_with(lines, "Warmup")
    assert "33%  200  00:10, 00:20 left" in line_with(lines, "Profiling")


def test_errors_are_shown_by_cause_and_degrade_the_certificate():
    phase = PhaseView("Profiling", 1000, None, began=True, seconds=10, ended=200, failed=30)
    refused, limited = (
        ErrorCause("ConnectionRefused", None, "network"),
        ErrorCause("Too Many Requests", 429, "server"),
    )
    errors = {refused: 10, limited: 20}
    lines = screen_of(at_second(10, phases=[phase], errors=errors), size=(120, 30))
    assert "Failed           30 (15.0%)" in line_with(lines, "Failed")
    assert "20  429 Too Many Requests (server)" in line_with(lines, "429")
    assert "10  ConnectionRefused (network)" in line_with(lines, "Refused")
    assert lines.index(line_with(lines, "429")) < lines.index(line_with(lines, "Refused"))
    assert "DEGRADED. 30 of 200 requests failed" in line_with(lines, "DEGRADED")


def test_telemetry_and_points_have_panels_when_there_are_any():
    assert not [line for line in screen_of(at_second(10)) if "Server" in line or "Point" in line]
    lines = screen_of(
        at_second(
            10,
            servers=[
                ServerView("host:8000", 3, 12, 45.2),
                ServerView("host:8001", error="It answered with status 404."),
            ],
            gpus=[GpuView("0 H200", 97.0, 120.4, 612.0, 61.0)],
            points=[PointView("concurrency_1", "4.2/s, VALID"), PointView("concurrency_8")],
        ),
        header=make_header(points=3),
    )
    assert len(lines) == 24
    assert "Point 2 of 3" in line_with(lines, "Point")
    assert "▶ concurrency_8" in line_with(lines, "▶")
    assert "✓ concurrency_1: 4.2/s, VALID" in line_with(lines, "✓")
    row = line_with(lines, "host:8000").split()
    assert row[row.index("host:8000") :][:5] == ["host:8000", "3", "12", "45", "%"]
    assert "It answered" in line_with(lines, "host:8001")
    assert "97 %    120 GB   612 W  61 °C" in line_with(lines, "H200")


@pytest.mark.parametrize("size", [(40, 12), (60, 20), (80, 24), (132, 43), (200, 60)])
def test_screen_fits_every_size(size):
    lines = screen_of(at_second(9.5), at_second(10), size=size)
    assert len(lines) == size[1]
    assert max(map(len, lines)) <= size[0]
    assert "Requests/s     20.0" in line_with(lines, "Requests/s")


def test_panels_are_drawn_again_after_a_resize():
    async def steps(app: Dashboard, pilot: Pilot[None]) -> None:
        app.show(at_second(10))
        for columns, lines in ((50, 30), (110, 30)):
            await pilot.resize_terminal(columns, lines)
            text = await settled_text(app, pilot)
            assert len(text) == lines
            assert max(map(len, text)) <= columns
            assert len(line_with(text, "╭─ Progress")) == columns
            assert "200/1,000  00:10, 00:40 left" in line_with(text, "Profiling")
            assert ("█" in line_with(text, "Profiling")) == (columns > 100)

    drive(steps)


def test_ctrl_c_interrupts_the_run_and_the_dashboard_stays():
    async def steps(app: Dashboard, pilot: Pilot[None]) -> None:
        app.show(at_second(10))
        await pilot.press("ctrl+c")
        assert "Stopping: waiting for 8 requests in flight; Ctrl-C again to stop at once." in text_of(app)[-1]
        app.show(at_second(10.5, in_flight=1, stopping=1))
        await pilot.pause()
        assert "Stopping: waiting for 1 request in flight" in text_of(app)[-1]
        assert "left" not in line_with(text_of(app), "Profiling")
        await pilot.press("ctrl+c")
        assert "Stopping at once." in text_of(app)[-1]
        assert app.is_running

    assert drive(steps) == ["interrupted", "interrupted"]


def test_q_leaves_the_dashboard_and_not_the_run():
    async def steps(app: Dashboard, pilot: Pilot[None]) -> None:
        await pilot.press("q")
        app.show(at_second(10))  # one that was under way
        assert app.return_code == 0

    assert drive(steps) == []


def test_without_colour_the_screen_has_the_same_text(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    colours: list[object] = []

    async def steps(app: Dashboard, pilot: Pilot[None]) -> None:
        app.show(at_second(10))
        await pilot.pause()
        assert "VALID" in line_with(text_of(app), "VALID")
        assert app.no_color
        colours.extend(type(filter_).__name__ for filter_ in app._filters if filter_.enabled)

    drive(steps)
    assert "NoColor" in colours


@pytest.mark.parametrize(
    ("values", "width", "text"),
    [
        ([], 5, ""),
        ([1, 2, 4, 8], 8, "▂▃▅█"),
        ([0, 0], 8, "▁▁"),
        ([4, None, 4], 8, "█ █"),
        ([1, 1, 2, 2, 4, 4, 8, 8], 4, "▂▃▅█"),
        ([1, 2], 0, ""),
    ],
)
def test_sparkline_fits_its_width_and_shows_gaps(values, width, text):
    assert sparkline(values, width) == text


def test_bar_is_exact_to_an_eighth_of_a_character():
    assert [bar(share, 4) for share in (0, 0.25, 0.28125, 1, 2)] == ["    ", "█   ", "█▏  ", "████", "████"]


def test_numbers_have_about_four_digits():
    assert [number(value) for value in (None, 0.123, 12.34, 123.4, 12345.6)] == ["–", "0.12", "12.3", "123.4", "12,346"]
