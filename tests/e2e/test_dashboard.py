"""The dashboard of the real program, in a terminal in tmux."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from support.programs import BIN, MockServer, Program
from support.tmux import Tmux

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

Start = Callable[..., Tmux]


@pytest.fixture
def start(program: Program) -> Iterator[Start]:
    """A function that starts a benchmark in a terminal."""
    terminals: list[Tmux] = []

    def begin(url: str, *flags: object) -> Tmux:
        command = [BIN / "aiperf", "profile", "--model", "m", "--url", url, "--artifact-dir", "run", "--streaming"]
        command += ["--input-file", program.prompts(3), "--use-server-token-count", "--concurrency", 4, *flags]
        # Shells that export the size must not keep the dashboard from following changes of it.
        terminals.append(Tmux(program.folder, command, **program.env, COLUMNS="80", LINES="24"))
        return terminals[-1]

    yield begin
    for terminal in terminals:
        terminal.close()


@pytest.mark.slow
def test_run_on_a_terminal(start: Start, mock: Callable[..., MockServer]):
    """The dashboard shows the run, follows the size of the terminal, and gives way to the report after Ctrl-C."""
    server = mock(ttft=20, itl=2, tokens=10, error=503, error_rate=0.25)
    terminal = start(server.url, "--request-count", 1_000_000, "--warmup-request-count", 4, "--max-error-rate", 1)
    screen = terminal.wait_for("503 Service", "Warmup", "/1,000,000", "Certificate so far", "Ctrl-C stop sending")
    assert "Benchmark" not in screen
    lines = screen.splitlines()
    assert [line for line in lines if "100%  4/4" in line]
    assert [line for line in lines if "TTFT  " in line and "█" in line]
    terminal.resize(120, 30)
    terminal.wait_until(lambda screen: any(line.count("─") > 110 for line in screen.splitlines()), "a wider panel")
    terminal.press("C-c")
    assert terminal.wait_for_end() == 130
    text = terminal.screen(history=True)
    assert "Stopping: waiting for " in text
    assert "Warmup: 4/4 |████████████████████████| 100%" in text
    assert "Benchmark interrupted. Results saved to: run/" in text
    assert "JSON Export: run/profile_export_aiperf.json" in text
    assert "Certificate so far" not in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_dashboard_can_be_left_and_the_second_ctrl_c_stops_at_once(start: Start, mock: Callable[..., MockServer]):
    terminal = start(mock(ttft=600_000).url, "--request-count", 100, "--ui", "dashboard")
    terminal.wait_for("In flight         4", "Certificate so far")
    terminal.press("q")
    terminal.wait_for("Profiling: 0/100 ")
    terminal.press("C-c")
    terminal.wait_for("Stopping: waiting for 4 requests in flight; Ctrl-C again to stop at once.")

    def press_again(_screen: str) -> bool:
        if "Stopping at once." in terminal.screen(history=True):  # the report may follow at once
            return True
        terminal.press("C-c")  # a second one within 0.1 s does not count
        return False

    terminal.wait_until(press_again, "the stop")
    assert terminal.wait_for_end() == 130
