"""Memory of the report of a large run, measured in a separate process."""

import subprocess
import sys

import pytest

from support import TESTS

REQUESTS = 200_000
BYTES_PER_REQUEST = 350
PROGRAM = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
from support.records import MS, make_record
from support.runs import PROFILING, WordTokenizer, make_header, write_artifacts
from penstock.records.log import LogWriter, RunLog, RunnerLog
from penstock.records.payloads import PayloadWriter
from penstock.reports import console, report_html
import orjson, rich.console, rich.table  # import before measuring

folder, requests = sys.argv[2], int(sys.argv[3])
RunLog.write_header(folder, make_header(requests=requests))
RunnerLog(folder).phase(PROFILING)
payloads = PayloadWriter(folder)
writer = LogWriter(folder, 0)
template = make_record()
for i in range(requests):
    payloads.add_body(b'{"messages":[{"content":"prompt %d"}]}' % i)
    payloads.end_conversation(f"session-{i}")
    at = i * MS
    template.number = template.conversation = template.payload = i
    template.intended, template.issued, template.start, template.sent = at, at, at, at + 1
    template.first_byte, template.end = at + 40 * MS, at + 110 * MS
    template.outputs = [f"one two three four {i}"]
    writer.record(template)
payloads.close()
writer.close()

def anonymous():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon")) * 1024

peak = before = anonymous()
stopped = threading.Event()

def watch():
    global peak
    while not stopped.wait(0.02):
        peak = max(peak, anonymous())

thread = threading.Thread(target=watch, daemon=True)
thread.start()
log = RunLog(folder)
started = time.perf_counter()
summary = write_artifacts(
    log, os.path.join(folder, "out"), lambda: (WordTokenizer(), None), lambda body: [body.decode()]
)
seconds = time.perf_counter() - started
stopped.set()
thread.join()
assert summary.succeeded == requests
assert summary.metrics["inter_chunk_latency"].count == 4 * requests
print(peak - before, seconds)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_report_memory_is_bounded_per_request(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TESTS), str(tmp_path), str(REQUESTS)],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    grown, seconds = process.stdout.split()
    assert int(grown) < BYTES_PER_REQUEST * REQUESTS, f"{int(grown) / REQUESTS:.0f} bytes per request"
    print(f"{int(grown) / REQUESTS:.0f} bytes per request, {float(seconds):.1f} s")
