"""The Textual app of the dashboard. It repaints when a snapshot arrives or the size changes, and at no other time."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from penstock.cli.dashboard import views
from penstock.cli.dashboard.snapshot import Header, Snapshot
from penstock.cli.dashboard.state import DashboardState
from penstock.cli.phase_progress import clock

_View = Callable[[DashboardState, int], list[views.Line]]


def _content(lines: list[views.Line]) -> Content:
    """Return the text of a panel in the terminal's own colours, so that it is readable on light backgrounds, too."""
    return Content("\n").join(Content.assemble(*line) for line in lines)


class _Panel(Static):
    """A panel whose text fits its width. It is drawn again when its lines or its width change."""

    def __init__(self, view: _View, title: str, id: str) -> None:  # noqa: A002 - the name of Textual
        super().__init__(id=id)
        self._view = view
        self._shown: list[views.Line] = []
        self.border_title = title

    def draw(self, state: DashboardState) -> None:
        lines = self._view(state, self.content_size.width or 76)
        if lines != self._shown:
            self._shown = lines
            self.update(_content(lines), layout=False)

    def on_resize(self) -> None:
        app = self.app
        assert isinstance(app, Dashboard)
        self.call_after_refresh(self.draw, app.state)


class Dashboard(App[None]):
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #header, #bottom { height: 1; width: 1fr; background: ansi_default; color: ansi_default; }
    #header { text-style: bold; }
    #body { height: 1fr; background: ansi_default; scrollbar-size-vertical: 1; }
    Horizontal { height: auto; background: ansi_default; }
    .panel { border: round ansi_bright_black; border-title-color: ansi_default; padding: 0 1; width: 1fr; text-wrap: nowrap;
             background: ansi_default; color: ansi_default; }
    #progress { height: 4; }
    #rates, #latencies { height: 7; }
    #latencies { width: 1.3fr; }
    #checks { height: 2fr; min-height: 5; }
    #errors, #certificate { height: 1fr; min-height: 5; }
    #certificate { width: 1.3fr; text-wrap: wrap; }
    #more { height: 3fr; min-height: 6; }
    #telemetry, #points { height: 1fr; min-height: 6; }
    .-narrow Horizontal { layout: vertical; }
    .-narrow #checks, .-narrow #more { height: auto; }
    .-narrow #latencies, .-narrow #certificate { width: 1fr; }
    .-narrow #latencies { height: 6; }
    .-narrow #errors { height: 5; }
    .-narrow #certificate, .-narrow #telemetry, .-narrow #points { height: 7; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (76, "-wide")]  # noqa: RUF012 - as Textual declares it
    BINDINGS = [  # noqa: RUF012
        Binding("ctrl+c", "interrupt", priority=True),
        Binding("q,ctrl+q", "leave", priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, header: Header, on_interrupt: Callable[[], None]) -> None:
        super().__init__(ansi_color=True)
        self.state = DashboardState(header)
        self._on_interrupt = on_interrupt
        self._interrupts = 0
        self._has_panels = False
        self.animation_level = "none"

    def compose(self) -> ComposeResult:
        yield Static(id="header", markup=False)
        with VerticalScroll(id="body"):
            yield _panel(views.progress, "Progress", "progress")
            with Horizontal(id="figures"):
                yield _panel(views.rates, "Load", "rates")
                yield _panel(views.latencies, "Times", "latencies")
            with Horizontal(id="checks"):
                yield _panel(views.errors, "Errors", "errors")
                yield _panel(views.certificate, "Certificate so far", "certificate")
            with Horizontal(id="more"):
                yield _panel(views.telemetry, "Server and GPUs", "telemetry")
                yield _panel(views.points, "Points", "points")
        yield Static(id="bottom", markup=False)

    def on_mount(self) -> None:
        self._has_panels = True
        self._draw()

    def show(self, snapshot: Snapshot) -> None:
        """Draw a snapshot."""
        self.state.add(snapshot)
        if self._has_panels:
            self._draw()

    def _draw(self) -> None:
        state, snapshot = self.state, self.state.snapshot
        self._fit(snapshot)
        for panel in self.query(_Panel):
            panel.draw(state)
        self._draw_edges()

    def _draw_edges(self) -> None:
        snapshot = self.state.snapshot
        seconds = sum(phase.seconds for phase in snapshot.phases)
        time = f"  {clock(seconds)}" if seconds else ""
        width = self.size.width
        title = self.state.header.title[: max(0, width - len(time) - 1)]
        self.query_one("#header", Static).update(
            Content.assemble(f" {title}".ljust(width - len(time) - 1), time), layout=False
        )
        line = Content.assemble(" ", *views.bottom_line(snapshot, self._interrupts))
        self.query_one("#bottom", Static).update(line, layout=False)

    def _fit(self, snapshot: Snapshot) -> None:
        """Give room to the panels that have something to show."""
        has_telemetry, has_points = bool(snapshot.servers or snapshot.gpus), bool(snapshot.points)
        self.query_one("#progress").styles.height = max(1, len(snapshot.phases)) + 2
        more = self.query_one("#more")
        more.display = has_telemetry or has_points
        more.styles.min_height = max(6, sum(len(rows) + 1 for rows in (snapshot.servers, snapshot.gpus) if rows) + 2)
        self.query_one("#telemetry").display = has_telemetry
        points = self.query_one("#points")
        points.display = has_points
        if has_points:
            total = "" if self.state.header.points is None else f" of {self.state.header.points}"
            points.border_title = f"Point {len(snapshot.points)}{total}"

    def on_resize(self) -> None:
        if self._has_panels:
            self._draw_edges()

    def action_interrupt(self) -> None:
        """Do what Ctrl-C does without a dashboard: interrupt the run."""
        self._interrupts += 1
        self._on_interrupt()
        self._draw_edges()

    def action_leave(self) -> None:
        self.leave()

    def leave(self) -> None:
        """Close the dashboard. The run goes on, with its progress bar."""
        self._has_panels = False
        self.exit()


def _panel(view: _View, title: str, id: str) -> _Panel:  # noqa: A002
    panel = _Panel(view, title, id)
    panel.add_class("panel")
    return panel
