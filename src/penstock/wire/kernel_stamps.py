"""Socket reads with the kernel's receive stamps and TCP state (Linux).

A stamp (SO_TIMESTAMPNS) is the time at which the kernel received the newest segment of a read, however late the process
reads it. TCP_INFO tells how many segments a read covered and whether the connection was reset. On other systems a read
is dated when it happens, its data may have arrived at any time since the socket was last known to be empty, and the TCP
state is unknown.
"""

from __future__ import annotations

import socket
import struct
import sys
from time import monotonic_ns

from penstock.wire.arrival_bounds import ArrivalBounds
from penstock.wire.clock import Clock
from penstock.wire.loop_marks import LoopMarks
from penstock.wire.stats import WireStats

AVAILABLE = sys.platform == "linux"
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("qq")
"""A stamp in the control message: seconds and nanoseconds."""
CONTROL_SPACE = socket.CMSG_SPACE(TIMESPEC.size) if AVAILABLE else 0

_TCP_INFO = 11
_TOTALS = struct.Struct("=Q16xI")
"""Fields of tcp_info: tcpi_bytes_received and tcpi_data_segs_in."""
_TOTALS_OFFSET = 128
_TCP_INFO_SIZE = _TOTALS_OFFSET + _TOTALS.size
_U32 = struct.Struct("I")
_U64 = struct.Struct("Q")
_ACKNOWLEDGED_OFFSET = 120  # tcp_info.tcpi_bytes_acked
_RTT_AND_RETRANSMITS = struct.Struct("=I28xI")
"""Fields of tcp_info: tcpi_rtt, in µs, and tcpi_total_retrans."""
_RTT_OFFSET = 68
_MIN_RTT_OFFSET = 148  # tcp_info.tcpi_min_rtt, in µs
TCP_ESTABLISHED = 1
TCP_CLOSE = 7
"""The TCP state of a socket that was reset, or closed by both sides."""

# All connections share one buffer: an allocation for each read halves the throughput.
_BUFFER = bytearray(1 << 18)
_BUFFERS = [_BUFFER]
_BUFFER_SIZE = len(_BUFFER)
READ_BUFFER = memoryview(_BUFFER)

Received = tuple[int, int, int | None, int]
"""Bytes read, arrival of the newest in monotonic ns, the earliest arrival if that can be another one, TCP state (0 if
unknown)."""


def tcp_state(sock: socket.socket) -> int:
    """Return the TCP state of a socket, or 0 where the system does not provide it."""
    return sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] if AVAILABLE else 0


def tcp_info(sock: socket.socket) -> bytes:
    """Return the TCP_INFO of a socket, or nothing where the system does not provide it. The call takes about 1 µs."""
    return sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TCP_INFO_SIZE) if AVAILABLE else b""


def acknowledged(info: bytes) -> int:
    """Return how many bytes the peer has acknowledged since the connection was opened."""
    acknowledged: int = _U64.unpack_from(info, _ACKNOWLEDGED_OFFSET)[0]
    return acknowledged


def round_trip_ns(info: bytes) -> int:
    """Return the shortest round trip that was measured. The mean includes delayed acknowledgements of up to 40 ms."""
    microseconds: int = _U32.unpack_from(info, _MIN_RTT_OFFSET)[0]
    return 1000 * microseconds


def round_trip_and_retransmits(info: bytes) -> tuple[int, int]:
    """Return the smoothed round trip in µs, and the segments that were sent again since the connection was opened."""
    rtt, retransmits = _RTT_AND_RETRANSMITS.unpack_from(info, _RTT_OFFSET)
    return rtt, retransmits


def is_open(sock: socket.socket) -> bool:
    """Return whether the peer has not closed or reset the connection of an idle socket, on a system without TCP_INFO."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return True
    except OSError:
        pass
    return False


class PlainReceiver:
    """Reads without stamps."""

    def __init__(
        self, sock: socket.socket, stats: WireStats, marks: LoopMarks | None, buffer: memoryview = READ_BUFFER
    ) -> None:
        self._sock = sock
        self._buffer = buffer
        self._stats = stats
        self._marks = marks
        self.bounds = ArrivalBounds()

    def receive(self) -> Received:
        """Read once into the buffer."""
        before = monotonic_ns()
        n = self._sock.recv_into(self._buffer)
        self._stats.reads += 1
        earliest = self.bounds.read_without_stamp(
            n < len(self._buffer), before, self._marks.known_empty if self._marks else 0
        )
        return n, monotonic_ns(), earliest, tcp_state(self._sock)


class UntimedReceiver:
    """Reads for a relay, which needs neither bounds of the arrival nor, after a complete reply, the TCP state."""

    def __init__(self, sock: socket.socket, stats: WireStats, buffer: memoryview) -> None:
        self._sock = sock
        self._buffer = buffer
        self._stats = stats

    def receive(self) -> Received:
        """Read once into the buffer."""
        n = self._sock.recv_into(self._buffer)
        self._stats.reads += 1
        return n, monotonic_ns(), None, 0


_SOONEST_NS, _LATEST_NS = -1_000_000, 50_000_000
"""Beyond these delays between a stamp and its reading, the offset of the clocks is measured again."""


class StampedReceiver:
    """Reads with stamps. Use it only where they are AVAILABLE."""

    def __init__(self, sock: socket.socket, clock: Clock, stats: WireStats, marks: LoopMarks | None) -> None:
        self._sock = sock
        self._clock = clock
        self._stats = stats
        self._marks = marks
        self.bounds = ArrivalBounds()
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def receive(self) -> Received:
        """Read once into READ_BUFFER."""
        before = monotonic_ns()
        n, ancillary, _, _ = self._sock.recvmsg_into(_BUFFERS, CONTROL_SPACE)
        now = monotonic_ns()
        if n == 0:
            return 0, now, None, 0
        stats = self._stats
        stats.reads += 1
        # Read after the data: a segment that arrives in between makes the totals too high, never too low.
        info = self._sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TCP_INFO_SIZE)
        received, segments = _TOTALS.unpack_from(info, _TOTALS_OFFSET)
        known_empty = self._marks.known_empty if self._marks is not None else 0
        earliest = self.bounds.read(n, n < _BUFFER_SIZE, before, known_empty, segments, received)
        if not ancillary:
            return n, now, 0 if earliest is None else earliest, info[0]
        seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
        stamp = seconds * 1_000_000_000 + nanoseconds
        arrived = stamp - self._clock.offset
        if not _SOONEST_NS <= now - arrived <= _LATEST_NS:  # perhaps the wall clock was set
            self._clock.refresh()
            arrived = stamp - self._clock.offset
        stats.stamped += 1
        stats.delay.add(now - arrived)
        return n, arrived if arrived < now else now, earliest, info[0]
