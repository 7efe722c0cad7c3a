"""The end of a run: exit statuses, Ctrl-C, kill -9, unreachable servers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import socketserver
import subprocess
import termios
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.run_report import print_errors, write_report
from penstock.records.log import LogWriter, RunLog
from penstock.records.record import Record
from penstock.records.section import Damage
from penstock.records.worker_report import WorkerReport
from support.ports import closed_port
from support.programs import BIN, Running, wait_for


def ended(server) -> int:
    """Return how many requests the mock has logged as ended."""
    return len(server.log.read_bytes().splitlines())


def in_flight(server) -> int:
    """Return how many requests the mock has received and not answered."""
    with urllib.request.urlopen(f"{server.url}/mock/stats") as reply:
        return int(json.load(reply)["active"])


def one_sentence(text: str) -> str:
    """Check that the text is one line and no traceback, and return it."""
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in lines[0]
    return lines[0]


def logged(folder: Path) -> list[Record]:
    log = RunLog(str(folder / "log"))
    return list(log.records())


# -- exit statuses ----------------------------------------------------------------------------------------------------


def test_successful_run_ends_with_status_0(mock, program):
    outcome = program.profile(mock().url, "--request-count", 3)
    assert outcome.status == 0
    assert outcome.err == ""
    assert outcome.summary["is_complete"]
    assert not outcome.summary["was_cancelled"]


def test_failed_start_keeps_the_previous_run(mock, program):
    before = program.profile(mock().url, "--request-count", 3, command="penstock")
    with closed_port() as port:
        outcome = program.profile(f"localhost:{port}", "--request-count", 5, into=before.folder)
    assert outcome.status == 2
    assert len(logged(outcome.folder)) == len(outcome.records) == 3
    assert program.run("verify", outcome.folder, command="penstock").status == 0
    assert [path.name for path in outcome.folder.iterdir() if path.name.startswith("log")] == ["log"]


def test_failed_start_leaves_no_empty_folder(program):
    with closed_port() as port:
        outcome = program.profile(f"localhost:{port}", "--request-count", 5)
    assert outcome.status == 2
    assert not outcome.folder.exists()


def test_later_report_of_an_interrupted_run_says_so(mock, program):
    server = mock(ttft=50)
    run = program.begin(server.url, "--request-count", 1000)
    wait_for(lambda: ended(server) > 3)
    run.interrupt()
    folder = run.wait().folder
    again = program.run("report", folder, command="penstock")
    assert "complete" not in again.out.splitlines()[0]
    assert "The run was interrupted before its end." in again.out


def test_second_run_into_the_same_folder_is_refused(mock, program):
    server = mock(ttft=100)
    first = program.begin(server.url, "--request-count", 1000)
    wait_for(lambda: ended(server) > 3)
    second = program.profile(server.url, "--request-count", 3, into=first.folder)
    assert second.status == 2
    sentence = one_sentence(second.err)
    assert "Another run is writing to" in sentence
    assert "--artifact-dir" in sentence
    first.interrupt()
    outcome = first.wait()
    assert outcome.status == 130
    assert len(logged(outcome.folder)) > 3


def test_ctrl_c_while_connecting_writes_nothing(program):
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # fill the backlog, so that the next connection waits
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        run = program.begin(f"localhost:{listener.getsockname()[1]}", "--request-count", 3)
        wait_for((run.folder / "log" / "run.json").exists)
        run.interrupt()
        outcome = run.wait()
    assert outcome.status == 130
    assert one_sentence(outcome.err) == "Interrupted before the first request: nothing was written."
    assert not outcome.folder.exists()


def test_tls_handshake_that_never_answers_times_out(program):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://localhost:{silent.getsockname()[1]}"
        outcome = program.profile(url, "--request-count", 3, "--request-timeout-seconds", 1)
    assert outcome.status == 2
    sentence = one_sentence(outcome.err)
    assert "accepted a connection but did not answer the TLS handshake within 1 s" in sentence
    assert "may speak http:// there" in sentence


def test_full_standard_output_is_not_taken_for_a_full_disk(mock, program):
    arguments = ["profile", "--model", "m", "--url", mock().url, "--request-count", "3", "--use-server-token-count"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [BIN / "aiperf", *arguments, "--input-file", program.prompts(3)],
            cwd=program.folder,
            env=program.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    sentence = "aiperf profile: Standard output cannot be written: there is no space for it."
    assert one_sentence(done.stderr) == sentence


def test_refused_connection_is_reported_in_one_sentence(program):
    with closed_port() as port:
        outcome = program.profile(f"localhost:{port}", "--request-count", 3)
    assert outcome.status == 2
    sentence = one_sentence(outcome.err)
    assert str(port) in sentence
    assert "refused" in sentence
    assert "--url" in sentence


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("strategy", ["pooled", "never"])
def test_one_unreachable_url_of_several_ends_the_run_before_its_first_request(mock, program, strategy, workers):
    """Even if fewer connections are opened before the run than there are URLs."""
    server = mock()
    with closed_port() as port:
        flags = ["--url", f"localhost:{port}", "--connection-reuse-strategy", strategy, "--workers-max", workers]
        outcome = program.profile(server.url, *flags, "--request-count", 4, "--concurrency", workers)
    assert outcome.status == 2
    assert f"Nothing listens on localhost:{port}" in one_sentence(outcome.err)
    assert server.logged_requests() == []


def test_connection_that_tests_the_url_is_not_counted(mock, program):
    outcome = program.profile(mock().url, "--connection-reuse-strategy", "never", "--request-count", 4)
    assert outcome.status == 0, outcome
    assert outcome.summary["certificate"]["figures"]["connections_opened"] == 4


def test_http_to_a_tls_port_is_reported_with_a_hint(program):
    class Alert(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(b"\x15\x03\x01\x00\x02\x02\x46")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Alert) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        outcome = program.profile(f"http://127.0.0.1:{server.server_address[1]}", "--request-count", 2)
        server.shutdown()
    assert outcome.status == 1
    assert [error["message"] for error in outcome.errors()] == [
        "The server replied with a TLS alert: it speaks https:// there."
    ]


def test_https_to_an_http_port_is_reported_in_one_sentence(mock, program):
    outcome = program.profile(mock().url.replace("http:", "https:"), "--request-count", 1)
    assert outcome.status == 2
    sentence = one_sentence(outcome.err)
    assert sentence.endswith("; the server may speak http:// there.")
    assert "Start the server" not in sentence


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_unreadable_certificate_file_is_reported_in_one_sentence(program, content):
    path = program.folder / "ca.pem"
    if content is not None:
        path.write_text(content)
    outcome = program.profile("https://localhost:1", SSL_CERT_FILE=str(path))
    assert outcome.status == 2
    assert f"SSL_CERT_FILE names {path}, which cannot be read: " in one_sentence(outcome.err)


def test_unknown_host_is_reported_in_one_sentence(program):
    outcome = program.profile("http://no-such-host.invalid:8000", "--request-count", 3)
    assert outcome.status == 2
    assert "no-such-host.invalid" in one_sentence(outcome.err)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--request-count", "many"], "--request-count"),
        (["--concurrency", "0"], "--concurrency"),
        (["--endpoint-type", "chatt"], "chat"),
        (["--input-file", "missing.jsonl"], "missing.jsonl"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--url", "ftp://x"], "ftp"),
    ],
)
def test_wrong_flag_is_reported_in_one_sentence(program, flags, text):
    outcome = program.run("profile", "--model", "m", *flags)
    assert outcome.status == 2
    assert text in one_sentence(outcome.err)
    assert outcome.out == ""


def test_server_that_stops_during_the_run_causes_connection_errors(mock, program):
    server = mock(ttft=30)
    running = program.begin(server.url, "--request-count", 200, "--concurrency", 2, command="penstock")
    wait_for(lambda: ended(server) >= 10, what="the first ten requests")
    server.stop()
    outcome = running.wait()
    assert outcome.status == 1
    kinds = {e["type"] for e in outcome.errors()}
    assert kinds <= {"ConnectionLost", "ConnectionRefused", "ConnectionFailed"}
    assert "ConnectionRefused" in kinds
    total = outcome.summary["request_count"]["avg"] + outcome.summary["error_request_count"]["avg"]
    assert total == 200
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("verdict", ["VALID", "DEGRADED"])
def test_exit_status_depends_on_the_certificate_with_require_valid(mock, program, capfd, verdict):
    """The worker's report is written here, so that the verdict does not depend on the machine."""
    outcome = program.profile(mock().url, "--request-count", 3)
    records = logged(outcome.folder)
    writer = LogWriter(str(outcome.folder / "log"), 0)
    for record in records:
        record.coalesced, record.earliest = [], []
        record.sent = record.issued = record.start
        writer.record(record)
    writer.report(WorkerReport(0, starved_ticks=0 if verdict == "VALID" else 1))
    writer.close()
    report = write_report(RunLog(str(outcome.folder / "log")), str(outcome.folder), None)
    status = print_errors(report.summary, 0.0, require_valid=True)
    printed = capfd.readouterr()
    assert f"Certificate: {verdict}" in printed.out
    if verdict == "VALID":
        assert (status, printed.err) == (0, "")
    else:
        assert status == 1
        assert printed.err.startswith("The certificate is DEGRADED, and --require-valid was given: Sending waited")


@pytest.mark.slow
def test_certificate_of_a_stopped_client_is_not_valid(mock, program):
    """A process that is stopped for 1 s during the run sends and reads late."""
    server = mock(ttft=20)
    flags = ["--request-rate", 50, "--arrival-pattern", "constant", "--request-count", 250, "--require-valid"]
    running = program.begin(server.url, *flags)
    wait_for(lambda: ended(server) >= 5, what="the first requests")
    running.interrupt(signal.SIGSTOP)
    time.sleep(1.0)
    running.interrupt(signal.SIGCONT)
    outcome = running.wait()
    assert outcome.status == 1, outcome
    certificate = outcome.summary["certificate"]
    assert certificate["verdict"] in ("DEGRADED", "INVALID")
    assert certificate["reasons"]
    assert "--require-valid" in outcome.err
    # No request was dropped, and all keep their scheduled times.
    assert outcome.summary["request_count"]["avg"] == 250
    assert max(outcome.values("credit_to_start_latency")) > 500
    # The delay is not part of the request latency.
    assert outcome.summary["effective_latency"]["max"] > 500 + outcome.summary["request_latency"]["p50"]


def test_closed_standard_output_ends_the_run_silently(mock, program):
    running = program.begin(mock(ttft=5).url, "--request-count", 20)
    assert running.process.stdout is not None
    running.process.stdout.close()
    running.process.stdout = None
    outcome = running.wait()
    assert outcome.status == 141
    assert outcome.err == ""


# -- timeouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_requests_that_time_out_fail(mock, program):
    server = mock(ttft=10, stall="inf", stall_after=0, stall_rate=0.3, seed=6)
    flags = ["--request-count", 12, "--concurrency", 12, "--request-timeout-seconds", 3]
    outcome = program.profile(server.url, *flags, command="penstock")
    stalled = sum(1 for t in server.logged_requests() if t["fault"])
    assert stalled > 0
    assert outcome.status == 1
    assert [(e["type"], e["count"]) for e in outcome.errors()] == [("Timeout", stalled)]
    failed = [r["metadata"] for r in outcome.records if "error" in r]
    for meta in failed:
        assert (meta["request_end_ns"] - meta["request_start_ns"]) / 1e9 > 2.9


@pytest.mark.parametrize("strategy", ["pooled", "never"])
def test_connection_timeout_ends_the_run_before_its_first_request(program, strategy):
    held, port = unresponsive_port()
    flags = ["--connection-reuse-strategy", strategy, "--request-timeout-seconds", 0.5, "--request-count", 3]
    outcome = program.profile(f"http://127.0.0.1:{port}", *flags)
    for sock in held:
        sock.close()
    assert outcome.status == 2, outcome
    assert "The server did not open a connection within 0.5 s." in one_sentence(outcome.err)


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


def interrupted(mock, program, *flags: Any, number: int = signal.SIGINT, ttft: int = 400) -> tuple[Running, Any]:
    server = mock(ttft=ttft)
    running = program.begin(server.url, "--request-count", 500, "--concurrency", 3, *flags)
    wait_for(lambda: ttft > 1000 or ended(server) >= 3, what="the first requests")
    wait_for(lambda: in_flight(server) == 3, what="requests in flight")
    running.interrupt(number)
    return running, server


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGHUP, 2)]
)
def test_first_ctrl_c_finishes_requests_in_flight(mock, program, workers, number):
    running, server = interrupted(mock, program, "--workers-max", workers, number=number)
    outcome = running.wait()
    assert outcome.status == 130, outcome
    server_log = server.logged_requests()
    assert {t["end"] for t in server_log} == {"complete"}
    assert outcome.summary["was_cancelled"] is True
    assert outcome.summary["is_complete"] is False
    assert outcome.summary["incomplete_reason"]
    assert outcome.summary["request_count"]["avg"] == len(server_log) == len(outcome.records) < 100
    assert outcome.summary["request_latency"]["count"] == len(server_log)
    assert (outcome.folder / "profile_export_aiperf.csv").exists()
    assert (outcome.folder / "inputs.json").exists()
    assert "Stopping" in outcome.out
    assert "interrupted" in outcome.out
    assert "Traceback" not in outcome.out + outcome.err


def test_run_whose_terminal_is_lost_writes_its_report(mock, program):
    """The kernel sends SIGHUP to all processes of the terminal, and writing to it fails from then on."""
    server = mock(ttft=100)
    folder = program.folder / "run"
    command = ["profile", "--model", "m", "--url", server.url, "--artifact-dir", folder, "--use-server-token-count"]
    command += ["--input-file", program.prompts(3), "--request-count", 500, "--concurrency", 2, "--workers-max", 2]
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [BIN / "aiperf", *map(str, command)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=program.env | {"TERM": "dumb"},
        preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),  # noqa: PLW1509 - no threads
    )
    os.close(terminal)
    wait_for(lambda: ended(server) >= 3, what="the first requests")
    os.close(master)
    assert process.wait(60) == 130
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    assert summary["was_cancelled"] is True
    assert summary["request_count"]["avg"] >= 3


def test_sighup_does_not_end_a_run_that_ignores_it(mock, program):
    script = program.folder / "nohup.sh"
    script.write_text('trap "" HUP\nexec "$@"\n')
    command = ["--model", "m", "--use-server-token-count", "--input-file", program.prompts(3), "--request-count", 20]
    server, folder = mock(ttft=50), program.folder / "run"
    arguments = [BIN / "aiperf", "profile", "--url", server.url, "--artifact-dir", folder, *command]
    process = subprocess.Popen(["sh", script, *map(str, arguments)], env=program.env, stdout=subprocess.DEVNULL)
    wait_for(lambda: ended(server) >= 3, what="the first requests")
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0
    assert json.loads((folder / "profile_export_aiperf.json").read_text())["request_count"]["avg"] == 20


@pytest.mark.parametrize("workers", [1, 2])
def test_second_ctrl_c_cancels_requests_in_flight(mock, program, workers):
    running, server = interrupted(mock, program, "--workers-max", workers, ttft=600_000)
    time.sleep(1.0)  # a second signal within 100 ms would count as the same Ctrl-C
    running.interrupt()
    outcome = running.wait()
    assert outcome.status == 130, outcome
    assert outcome.summary["was_cancelled"] is True
    cut = [r for r in outcome.records if r["metadata"]["was_cancelled"]]
    assert len(cut) == 3
    assert outcome.summary["cancelled_request_count"]["avg"] == 3
    assert "error_request_count" not in outcome.summary
    assert sum(1 for t in server.logged_requests() if t["end"] == "aborted") == 3
    assert "Traceback" not in outcome.out + outcome.err


def test_ctrl_c_during_the_warmup_reports_the_warmup_only(mock, program):
    server = mock(ttft=100)
    running = program.begin(server.url, "--request-count", 50, "--warmup-request-count", 400)
    wait_for(lambda: ended(server) >= 2, what="the first requests")
    running.interrupt()
    outcome = running.wait()
    assert outcome.status == 130, outcome
    assert outcome.summary["was_cancelled"] is True
    assert outcome.summary["request_count"]["avg"] == 0
    assert outcome.summary["warmup_metrics"]["request_count"]["avg"] == len(server.logged_requests())


def test_ctrl_c_does_not_end_the_mock_server_of_the_run(program):
    running = program.begin("mock://?ttft=200", "--request-count", 500, "--concurrency", 2)
    log = running.folder / "log" / "worker-0.log"
    wait_for(lambda: log.exists() and log.stat().st_size > 0, what="the first records")
    running.interrupt()
    outcome = running.wait()
    assert outcome.status == 130, outcome
    assert outcome.summary["request_count"]["avg"] >= 2
    assert outcome.errors() == []


def unresponsive_port() -> tuple[list[socket.socket], int]:
    """Return a port with a full backlog: connections to it neither succeed nor fail."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    port = listener.getsockname()[1]
    held = [listener]
    for _ in range(4):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", port))
        held.append(client)
    return held, port


def test_two_ctrl_c_while_connecting_end_the_run(program):
    held, port = unresponsive_port()
    running = program.begin(f"http://127.0.0.1:{port}", "--request-count", 5)
    wait_for((running.folder / "log" / "run.json").exists)
    assert running.process.poll() is None
    running.interrupt()
    time.sleep(1.0)
    running.interrupt()
    outcome = running.wait()
    for sock in held:
        sock.close()
    assert outcome.status == 130, outcome
    assert "Traceback" not in outcome.out + outcome.err


# -- kill -9 ----------------------------------------------------------------------------------------------------------


def killed(mock, program, *flags: Any) -> tuple[Running, list[dict[str, Any]]]:
    """Kill a run under load; return it and the requests that the server had completed 1 s before."""
    server = mock(ttft=10, itl=1, tokens=5)

    def completed(until: int) -> list[dict[str, Any]]:
        lines = server.log.read_text().rpartition("\n")[0].splitlines()
        return [t for t in map(json.loads, lines) if t["end"] == "complete" and t["ended_ns"] < until]

    running = program.begin(server.url, "--streaming", "--concurrency", 4, "--request-count", 100_000, *flags)
    wait_for(lambda: len(completed(time.time_ns() - 1_000_000_000)) > 50, what="a second under load")
    at = time.time_ns()
    os.killpg(os.getpgid(running.process.pid), signal.SIGKILL)
    running.process.wait()
    server.stop()
    return running, completed(at - 1_000_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_run_loses_at_most_one_second(mock, program, workers):
    running, done = killed(mock, program, "--workers-max", workers)
    assert len(done) > 50
    records = logged(running.folder)
    known = {record.request_id for record in records}
    assert {t["request_id"] for t in done} <= known
    assert all(record.failure is None for record in records)
    outcome = program.run("report", running.folder, command="penstock")
    outcome.folder = running.folder
    assert "Traceback" not in outcome.err
    assert outcome.summary["request_count"]["avg"] == len(records)
    assert outcome.summary["is_complete"] is False
    assert outcome.summary["incomplete_reason"]
    assert outcome.summary["certificate"]["verdict"] == "INVALID"


@pytest.mark.slow
def test_workers_end_when_the_parent_is_killed(mock, program):
    server = mock(ttft=50)
    flags = ["--workers-max", 2, "--concurrency", 4, "--request-count", 100_000, "--warmup-request-count", 100_000]
    running = program.begin(server.url, *flags)
    wait_for(lambda: ended(server) >= 8, what="some load")
    group = os.getpgid(running.process.pid)
    running.process.kill()
    running.process.wait()

    def all_ended() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    try:
        wait_for(all_ended, what="the end of the workers")
    finally:
        if not all_ended():
            os.killpg(group, signal.SIGKILL)


@pytest.mark.slow
def test_killed_worker_is_reported_and_its_records_are_kept(mock, program):
    server = mock(ttft=20)
    running = program.begin(server.url, "--workers-max", 2, "--concurrency", 4, "--request-count", 800)
    wait_for(lambda: ended(server) >= 40, what="some load")
    children = [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/stat") if parent_of(p) == running.process.pid]
    os.kill(children[0], signal.SIGKILL)
    outcome = running.wait()
    assert outcome.status == 1
    assert "killed" in outcome.err
    assert "Traceback" not in outcome.err
    assert len(logged(running.folder)) > 10


def parent_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


# -- the log ----------------------------------------------------------------------------------------------------------


def test_log_truncated_at_any_byte_loses_only_its_last_frame(mock, program, tmp_path):
    outcome = program.profile(mock(tokens=3).url, "--streaming", "--request-count", 4)
    folder = tmp_path / "torn"
    shutil.copytree(outcome.folder / "log", folder / "log")
    whole = logged(folder)
    assert len(whole) == 4
    file = folder / "log" / "worker-0.log"
    data = file.read_bytes()
    ends = frame_ends(data)
    assert len(ends) == 5  # four records and the worker's report
    for cut in range(ends[2], ends[3] + 1):
        file.write_bytes(data[:cut])
        log = RunLog(str(folder / "log"))
        damage = Damage()
        records = list(log.records(damage))
        assert records == whole[: 4 if cut == ends[3] else 3]
        assert damage.torn_bytes == (0 if cut in (ends[2], ends[3]) else cut - ends[2])


def test_flipped_bit_in_the_log_loses_one_request(mock, program):
    outcome = program.profile(mock(tokens=3).url, "--request-count", 3)
    file = outcome.folder / "log" / "worker-0.log"
    data = bytearray(file.read_bytes())
    second, third = frame_ends(bytes(data))[:2]
    data[second + 30] ^= 0x10
    file.write_bytes(data)
    log = RunLog(str(outcome.folder / "log"))
    damage = Damage()
    assert len(list(log.records(damage))) == 2
    assert damage == Damage(skipped_bytes=third - second, skipped_places=1)
    assert len(log.reports()) == 1


def frame_ends(data: bytes) -> list[int]:
    """Return the end of each frame. A frame is one byte, its length and a checksum of four bytes each, and the data."""
    ends, at = [], 0
    while at < len(data):
        at += 9 + int.from_bytes(data[at + 1 : at + 5], "little")
        ends.append(at)
    return ends


def test_folder_without_a_run_is_reported_in_one_sentence(program):
    outcome = program.run("report", program.folder, command="penstock")
    assert outcome.status == 2
    assert "no run" in one_sentence(outcome.err)


def test_second_run_replaces_the_first(mock, program):
    server = mock()
    folder = program.folder / "same"
    flags = ["profile", "--model", "m", "--url", server.url, "--input-file", program.prompts(3)]
    flags += ["--use-server-token-count", "--artifact-dir", folder]
    for count in (8, 3):
        outcome = program.run(*flags, "--request-count", count)
        outcome.folder = folder
        assert outcome.status == 0, outcome
        assert outcome.summary["request_count"]["avg"] == count
        assert len(outcome.records) == count


def test_unwritable_folder_is_reported_in_one_sentence(mock, program):
    outcome = program.run("profile", "--model", "m", "--url", mock().url, "--artifact-dir", "/proc/nothing/here")
    assert outcome.status == 2
    assert "/proc/nothing/here" in one_sentence(outcome.err)


def test_run_with_too_many_failures_is_ended(mock, program):
    server = mock(ttft=5, error=500, error_rate=0.5)
    flags = ["--concurrency", 4, "--request-count", 5000, "--max-error-rate", 1]
    outcome = program.profile(server.url, *flags, "--failed-request-threshold", 0.2)
    assert outcome.status == 1
    assert "requests failed, more than --failed-request-threshold 0.2 allows." in outcome.err
    assert 10 <= len(outcome.records) < 4000
