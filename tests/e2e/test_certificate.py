"""The certificate of real runs: stalls of the client, failed requests, phases and logs of other versions."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import numpy as np
import pytest

from support.programs import wait_for

MS = 1e6
CLOCK_MS = 1.0
"""How far the clocks of two processes of one machine may be apart."""


def true_ttft_ms(outcome, server):
    """Return the times from each request's start to the server's first two writes of content, by the server's log.

    The first content arrives between the two, even if the machine stops the server before or after a write.
    """
    log = {entry["request_id"]: entry for entry in server.logged_requests()}
    found = []
    for record in outcome.records:
        meta = record["metadata"]
        entry = log[meta["x_request_id"]]
        writes = [at for at, tokens in zip(entry["write_ns"], entry["write_tokens"], strict=True) if tokens]
        found.append([(at - meta["request_start_ns"]) / MS for at in writes[:2]])
    return np.array(found).T


@pytest.mark.slow
def test_a_stopped_client_is_not_certified_with_a_wrong_ttft(mock, program):
    """SIGSTOP for half a second while first tokens arrive: their stamps cover all segments that came meanwhile."""
    server = mock(ttft=200, itl=5, writes=True)
    running = program.begin(server.url, "--streaming", "--concurrency", 8, "--request-count", 60, "--osl", 40)
    log = running.folder / "log" / "worker-0.log"
    wait_for(lambda: log.exists() and log.stat().st_size > 0, what="the first records")
    os.kill(running.process.pid, signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(running.process.pid, signal.SIGCONT)
    outcome = running.wait()
    certificate = outcome.summary["certificate"]
    reported = outcome.summary["time_to_first_token"]
    earliest, latest = true_ttft_ms(outcome, server)
    if reported["p99"] > 1.1 * np.percentile(latest, 99):  # unless the machine delayed the server as much
        assert certificate["verdict"] != "VALID"
        assert certificate["metrics"]["time_to_first_token"]["verdict"] != "VALID"
        assert re.search("the true values are uncertain: .*Time to First Token", " ".join(certificate["reasons"]))
    bounds = certificate["bounds"]["time_to_first_token"]
    for name, (low, high) in bounds.items():
        least, most = (
            times.mean() if name == "avg" else np.percentile(times, int(name[1:])) for times in (earliest, latest)
        )
        assert low - CLOCK_MS <= most
        assert least <= high + CLOCK_MS
    assert f"[{bounds['p99'][0]:,.2f}–{bounds['p99'][1]:,.2f}]" in outcome.out


def test_failed_requests_and_an_unreached_concurrency_are_reasons(mock, program):
    server = mock(error=500, error_rate=0.7, seed=3)
    flags = ("--concurrency", 50, "--request-count", 30, "--max-error-rate", 1)
    outcome = program.profile(server.url, *flags)
    reasons = outcome.summary["certificate"]["reasons"]
    failed = outcome.summary["error_request_count"]["avg"]
    assert outcome.summary["certificate"]["verdict"] == "INVALID"
    assert reasons[0].startswith(f"{failed:.0f} of 30 requests failed")
    assert "The concurrency of 50 was never reached: the run had only 30 conversations." in reasons


def test_the_certificate_covers_the_profiling_phase_alone(mock, program):
    outcome = program.profile(mock().url, "--warmup-request-count", 40, "--request-count", 5)
    figures = outcome.summary["certificate"]["figures"]
    assert outcome.summary["request_count"]["avg"] == 5
    assert 5 <= figures["reads"] < 20


def test_log_of_another_version_is_refused_with_its_version(mock, program):
    run = program.profile(mock().url, "--request-count", 2).folder
    path = run / "log" / "run.json"
    header = json.loads(path.read_text())
    del header["log_format"]
    path.write_text(json.dumps(header))
    done = program.run("report", run, command="penstock")
    assert done.status == 2
    assert f"was written by Penstock {header['penstock_version']}, whose log format" in done.err
    assert "Traceback" not in done.err


def test_tokens_of_a_burst_are_left_out_although_the_run_has_them(mock, program):
    """The mock sends 60 tokens within about a millisecond, so reads cannot tell them apart."""
    flags = ("--streaming", "--concurrency", 2, "--request-count", 40, "--osl", 60)
    outcome = program.profile(mock(ttft=30, itl=0.02).url, *flags)
    assert outcome.status == 0, outcome
    judged = outcome.summary["certificate"]["metrics"]
    assert judged["inter_token_latency"]["verdict"] == "UNOBSERVABLE"
    assert judged["time_to_first_token"]["verdict"] != "UNOBSERVABLE"
    assert outcome.summary["inter_token_latency"]["count"] > 0
    screen = " ".join(outcome.out.split())
    assert "cannot be observed: in " in screen
    assert "Inter Token Latency (ms)" not in screen
    assert "Time to First Token (ms)" in screen
