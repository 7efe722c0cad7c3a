"""Standard streams that the caller has closed, and the output of --verbose."""

from __future__ import annotations

import subprocess

import pytest

from support.programs import BIN, Program


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_run_succeeds_with_closed_standard_streams(program: Program, closed: str) -> None:
    folder = program.folder / "run"
    arguments = [BIN / "aiperf", "profile", "-m", "m", "--url", "mock://", "--request-count", 4, "--workers-max", 2]
    arguments += ["--input-file", program.prompts(3), "--use-server-token-count", "--artifact-dir", folder]
    command = f"{' '.join(map(str, arguments))} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=150, cwd=program.folder)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert (folder / "profile_export_aiperf.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--verbose"], ["-vv"], ["--log-level", "debug"]])
def test_verbose_prints_addresses_processes_and_seed(program: Program, flags: list[str]) -> None:
    done = program.profile("mock://", "--request-count", 4, "--warmup-request-count", 2, "--random-seed", 7, *flags)
    assert done.status == 0, done
    lines = done.out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("Address of http://127.0.0.1:"))
    port = lines[first].split(":")[2].split(":")[0]
    assert lines[first : first + 6] == [
        f"Address of http://127.0.0.1:{port}: 127.0.0.1, port {port}",
        "Worker processes: 1",
        "Connections opened before the first request: 1",
        "Requests of the warmup phase: 2",
        "Requests of the profiling phase: 4",
        "Seed of the schedule: 7",
    ]
    plain = program.profile("mock://", "--request-count", 4)
    assert "Address of" not in plain.out
