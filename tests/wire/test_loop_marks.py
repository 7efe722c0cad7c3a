"""The bound on the arrival of the first segment of a read, against a sender that logs its sends."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from time import monotonic_ns

import pytest
import uvloop

from penstock.wire.loop_marks import LoopMarks

_SENT = struct.Struct("qqq")  # connection, time before the send, time after it
SIZE = 50


def send_bursts(senders: list[socket.socket], log: int, seconds: float) -> None:
    """Send single segments and bursts at random times; log each send."""
    rng = random.Random(1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number = rng.randrange(len(senders))
        for _ in range(rng.choice([1, 1, 2, 3])):
            before = monotonic_ns()
            senders[number].send(b"x" * SIZE)
            os.write(log, _SENT.pack(number, before, monotonic_ns()))
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.002)
        time.sleep(rng.random() * 0.003)


@pytest.mark.slow
def test_first_segment_never_arrives_before_the_bound():
    """The loop stalls for up to 50 ms at random, so that many reads cover segments of several sends."""
    listener = socket.create_server(("127.0.0.1", 0))
    pairs = []
    for _ in range(20):
        client = socket.create_connection(listener.getsockname())
        sender, _ = listener.accept()
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setblocking(False)
        pairs.append((client, sender))
    listener.close()
    loop = uvloop.new_event_loop()
    marks = LoopMarks(loop)
    rng = random.Random(2)
    reads: list[tuple[int, int, int]] = []
    emptied = [0] * len(pairs)
    buffer = bytearray(1 << 16)

    def readable(number: int) -> None:
        before = monotonic_ns()
        size = pairs[number][0].recv_into(buffer)
        reads.append((number, size // SIZE, max(emptied[number], marks.known_empty)))
        emptied[number] = before
        if rng.random() < 0.01:
            time.sleep(rng.random() * 0.05)

    log_read, log_write = os.pipe()
    for number, (client, _) in enumerate(pairs):
        loop.add_reader(client.fileno(), readable, number)
    marks.start()
    senders = [sender for _, sender in pairs]
    thread = threading.Thread(target=send_bursts, args=(senders, log_write, 1.5))
    loop.call_later(0.05, thread.start)
    loop.call_later(2.0, loop.stop)
    loop.run_forever()
    thread.join()
    marks.stop()
    loop.close()
    os.close(log_write)
    with os.fdopen(log_read, "rb") as file:
        log = file.read()
    for client, sender in pairs:
        client.close()
        sender.close()

    sends: dict[int, list[int]] = {number: [] for number in range(len(pairs))}
    for number, _, after in _SENT.iter_unpack(log):
        sends[number].append(after)
    coalesced = 0
    for number, count, bound in reads:
        covered, sends[number] = sends[number][:count], sends[number][count:]
        coalesced += count > 1
        assert bound <= covered[0]
    assert coalesced > 20
