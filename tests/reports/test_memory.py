"""What a large run costs. In a process of its own, so that the figure is this code's."""

import subprocess
import sys

import pytest

from support import TESTS

REQUESTS = 200_000
BYTES_A_REQUEST = 300
PROGRAM = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
from support.runs import MS, Words, header, record
from penstock.records.log import LogWriter, RunLog
from penstock.records.payloads import PayloadWriter
from penstock.reports import console, write_artifacts as module
import orjson, rich.console, rich.table  # what is imported is not what grows

folder, requests = sys.argv[2], int(sys.argv[3])
RunLog.write_header(folder, header(requests=requests))
payloads = PayloadWriter(folder)
writer = LogWriter(folder, 0)
template = record()
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
over = threading.Event()

def watch():
    global peak
    while not over.wait(0.02):
        peak = max(peak, anonymous())

thread = threading.Thread(target=watch)
thread.start()
log = RunLog(folder)
begun = time.perf_counter()
summary = module.finish(log, os.path.join(folder, "out"), lambda: (Words(), None), lambda body: [body.decode()])
seconds = time.perf_counter() - begun
over.set()
thread.join()
assert summary.succeeded == requests
assert summary.metrics["inter_chunk_latency"].count == 4 * requests
print(peak - before, seconds)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_a_request(tmp_path):
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TESTS), str(tmp_path), str(REQUESTS)],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    grown, seconds = made.stdout.split()
    assert int(grown) < BYTES_A_REQUEST * REQUESTS, f"{int(grown) / REQUESTS:.0f} bytes a request"
    print(f"{int(grown) / REQUESTS:.0f} bytes a request, {float(seconds):.1f} s")
