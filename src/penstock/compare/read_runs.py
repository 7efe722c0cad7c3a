"""Two runs side by side: their per-request files, read back, and the requests of one that belong to requests of the other."""

from __future__ import annotations

import os
from array import array
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.compare.bootstrap import Values
from penstock.errors import UserError
from penstock.metrics.certificate import Certificate

__all__ = ["Pairs", "Requests", "Trust", "pair", "read_requests"]

METRICS = (
    "time_to_first_token",
    "request_latency",
    "effective_latency",
    "inter_token_latency",
    "time_per_output_token",
    "output_token_throughput_per_user",
    "e2e_output_token_throughput",
    "output_sequence_length",
)
"""Those that say something about one request."""

FAILED = "request_error_rate"


class _Metadata(msgspec.Struct):
    session_num: int
    turn_index: int
    benchmark_phase: str
    request_start_ns: int
    request_end_ns: int
    phase_index: int = 0
    was_cancelled: bool = False
    body_sha256: str | None = None
    url: str = ""


class _Value(msgspec.Struct):
    value: Any


class _Line(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Value]
    error: Any = None


class Trust(msgspec.Struct):
    """What a run's summary says of the run itself."""

    certificate: Certificate | None = None
    """None where another program wrote the summary, or where there is none."""
    incomplete_reason: str | None = None


class Requests:
    """The profiling requests of a run, in the order of its plan. A figure that a request has not is NaN."""

    def __init__(self, name: str, trust: Trust) -> None:
        self.name = name
        self.trust = trust
        self.urls: dict[str, None] = {}
        self.bodies: list[bytes] = []
        self._keys = array("q")
        self._columns: dict[str, array[float]] = {
            tag: array("d") for tag in (*METRICS, FAILED, "start", "end", "tokens")
        }

    def add(self, line: _Line) -> None:
        about = line.metadata
        self.urls[about.url] = None
        self.bodies.append(bytes.fromhex(about.body_sha256 or ""))
        self._keys.append(about.session_num << 20 | about.turn_index)
        good = line.error is None
        for tag in METRICS:
            found = line.metrics.get(tag) if good else None
            number = found.value if found is not None else None
            self._columns[tag].append(float(number) if isinstance(number, int | float) else np.nan)
        self._columns[FAILED].append(0.0 if good else 100.0)
        self._columns["start"].append(about.request_start_ns)
        self._columns["end"].append(about.request_end_ns)
        length = self._columns["output_sequence_length"][-1]
        self._columns["tokens"].append(0.0 if np.isnan(length) else length)

    def sort(self) -> None:
        order = np.argsort(np.frombuffer(self._keys, np.int64), kind="stable")
        self.bodies = [self.bodies[i] for i in order]
        self.keys: NDArray[np.int64] = np.frombuffer(self._keys, np.int64)[order]
        self._sorted = {tag: np.frombuffer(column, np.float64)[order] for tag, column in self._columns.items()}

    def __len__(self) -> int:
        return len(self.bodies)

    def values(self, tag: str) -> Values:
        return self._sorted[tag]


def read_requests(path: str, name: str) -> Requests:
    """From a run's folder, or from its per-request file."""
    file = _export(path) if os.path.isdir(path) else path
    found = Requests(name, _trust(file))
    decode = msgspec.json.Decoder(_Line).decode
    number = 0
    try:
        with open(file, "rb") as opened:
            for text in opened:
                number += 1
                line = decode(text)
                if line.metadata.benchmark_phase == "profiling" and not line.metadata.was_cancelled:
                    found.add(line)
    except OSError as error:
        raise UserError(f"'{file}' cannot be read: {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise UserError(f"{file}:{number}: not a line of a per-request file ({error}).") from None
    if not len(found):
        raise UserError(f"'{file}' has no completed request to compare.")
    found.sort()
    return found


def _export(folder: str) -> str:
    found = {name for name in os.listdir(folder) if name.endswith(".jsonl")}
    raw = {f"{name.removesuffix('.jsonl')}_raw.jsonl" for name in found}  # requests and replies in full, beside it
    names = sorted(found - raw)
    if "profile_export.jsonl" in names:
        return os.path.join(folder, "profile_export.jsonl")
    if len(names) == 1:
        return os.path.join(folder, names[0])
    raise UserError(
        f"'{folder}' holds no per-request file (profile_export.jsonl), from which runs are compared: `penstock report` "
        "writes that of a run that was cut off, and --export-level summary has none."
    )


def _trust(export: str) -> Trust:
    """From the summary that stands beside a per-request file."""
    base = export.removesuffix(".jsonl")
    path = f"{base}_aiperf.json" if os.path.basename(base) == "profile_export" else f"{base}.json"
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Trust)
    except (OSError, msgspec.MsgspecError):
        return Trust()


class Pairs:
    """Places in A and in B that belong together, in the order of A's plan."""

    def __init__(self, a: Requests, b: Requests, places: list[tuple[int, int]], how: Literal["body", "plan"]) -> None:
        self.a = a
        self.b = b
        self.how = how
        self._at = np.array(places, np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._at)

    @property
    def only_a(self) -> int:
        return len(self.a) - len(self)

    @property
    def only_b(self) -> int:
        return len(self.b) - len(self)

    def values(self, tag: str) -> tuple[Values, Values]:
        """Of the pairs in which both have that figure."""
        first, second = self.a.values(tag)[self._at[:, 0]], self.b.values(tag)[self._at[:, 1]]
        both = ~(np.isnan(first) | np.isnan(second))
        return first[both], second[both]


def pair(a: Requests, b: Requests, *, blocks: int | None = None) -> Pairs:
    """By the hash of the body: the first use of a body in A with its first use in B, and so on. With `blocks`, the runs are
    arms of one run with so many, and its plan says what belongs together."""
    if blocks is not None:
        there = {(int(key >> 20) // blocks, int(key & 0xFFFFF)): i for i, key in enumerate(b.keys)}
        wanted = [(i, there.get((int(key >> 20) // blocks, int(key & 0xFFFFF)))) for i, key in enumerate(a.keys)]
        return Pairs(a, b, [(i, j) for i, j in wanted if j is not None], "plan")
    uses: dict[bytes, list[int]] = {}
    for place in range(len(b) - 1, -1, -1):
        if b.bodies[place]:
            uses.setdefault(b.bodies[place], []).append(place)
    places = []
    for place, body in enumerate(a.bodies):
        if body and (left := uses.get(body)):
            places.append((place, left.pop()))
    if not places:
        raise UserError(_why_none(a, b))
    return Pairs(a, b, places, "body")


def _why_none(a: Requests, b: Requests) -> str:
    for run in (a, b):
        if not any(run.bodies):
            return (
                f"The per-request file of {run.name} has no body_sha256, by which requests are paired; it was not written by "
                "this version of Penstock."
            )
    return (
        f"No request of {a.name} has the same body as one of {b.name}, so there is nothing to compare; replay the inputs.json "
        "of one run against the other server."
    )
