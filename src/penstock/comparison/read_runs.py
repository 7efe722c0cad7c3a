"""Read the per-request files of two runs and pair their requests."""

from __future__ import annotations

import os
from array import array
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.comparison.bootstrap import Values
from penstock.comparison.compared_metrics import FAILED, METRICS
from penstock.errors import UserError
from penstock.metrics.certificate import Certificate

PairedBy = Literal["body", "plan"] | None
"""`body`: the same bytes were sent; `plan`: the same position in the schedule of an interleaved run; None: not paired."""


class _Metadata(msgspec.Struct):
    session_num: int
    turn_index: int
    benchmark_phase: str
    request_start_ns: int
    request_end_ns: int
    was_cancelled: bool = False
    body_sha256: str | None = None
    url: str = ""


class _Value(msgspec.Struct):
    value: Any


class _Line(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Value]
    error: Any = None


class RunStatus(msgspec.Struct):
    """The fields of a run's summary that tell whether the run can be relied on."""

    certificate: Certificate | None = None
    """None if there is no summary or another program wrote it."""
    incomplete_reason: str | None = None


class Requests:
    """The profiling requests of a run, in the order of its schedule. A metric that a request lacks is NaN."""

    def __init__(self, name: str, status: RunStatus) -> None:
        self.name = name
        self.status = status
        self.urls: dict[str, None] = {}
        self.bodies: list[bytes] = []
        self._keys = array("q")
        self._columns: dict[str, array[float]] = {
            tag: array("d") for tag in (*METRICS, FAILED, "start", "end", "tokens")
        }

    def add(self, line: _Line) -> None:
        metadata = line.metadata
        self.urls[metadata.url] = None
        self.bodies.append(bytes.fromhex(metadata.body_sha256 or ""))
        self._keys.append(metadata.session_num << 20 | metadata.turn_index)
        succeeded = line.error is None
        for tag in METRICS:
            metric = line.metrics.get(tag) if succeeded else None
            number = metric.value if metric is not None else None
            self._columns[tag].append(float(number) if isinstance(number, int | float) else np.nan)
        self._columns[FAILED].append(0.0 if succeeded else 100.0)
        self._columns["start"].append(metadata.request_start_ns)
        self._columns["end"].append(metadata.request_end_ns)
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
    """Read the requests of a run, given its folder or its per-request file."""
    file = _find_export(path) if os.path.isdir(path) else path
    requests = Requests(name, _read_status(file))
    decode = msgspec.json.Decoder(_Line).decode
    number = 0
    try:
        with open(file, "rb") as lines:
            for text in lines:
                number += 1
                line = decode(text)
                if line.metadata.benchmark_phase == "profiling" and not line.metadata.was_cancelled:
                    requests.add(line)
    except OSError as error:
        raise UserError(f"'{file}' cannot be read: {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise UserError(f"{file}:{number}: not a line of a per-request file ({error}).") from None
    if not len(requests):
        raise UserError(f"'{file}' has no completed request to compare.")
    requests.sort()
    return requests


def _find_export(folder: str) -> str:
    files = {name for name in os.listdir(folder) if name.endswith(".jsonl")}
    raw = {f"{name.removesuffix('.jsonl')}_raw.jsonl" for name in files}  # AIPerf's raw requests and replies
    names = sorted(files - raw)
    if "profile_export.jsonl" in names:
        return os.path.join(folder, "profile_export.jsonl")
    if len(names) == 1:
        return os.path.join(folder, names[0])
    raise UserError(
        f"'{folder}' holds no per-request file (profile_export.jsonl), which `penstock compare` needs. `penstock report` "
        "writes it for a run that was cut off; --export-level summary does not write it."
    )


def _read_status(export: str) -> RunStatus:
    """Read the status from the summary in the folder of a per-request file."""
    base = export.removesuffix(".jsonl")
    path = f"{base}_aiperf.json" if os.path.basename(base) == "profile_export" else f"{base}.json"
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=RunStatus)
    except (OSError, msgspec.MsgspecError):
        return RunStatus()


class Pairs:
    """The requests of A and B: pairs in the order of A's schedule, or all requests of both if they cannot be paired."""

    def __init__(
        self,
        a: Requests,
        b: Requests,
        indexes: list[tuple[int, int]],
        paired_by: PairedBy,
        unpaired_reason: str | None = None,
    ) -> None:
        self.a = a
        self.b = b
        self.paired_by = paired_by
        self.unpaired_reason = unpaired_reason
        self._indexes = np.array(indexes, np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._indexes)

    @property
    def only_a(self) -> int:
        return len(self.a) - len(self) if self.paired_by else 0

    @property
    def only_b(self) -> int:
        return len(self.b) - len(self) if self.paired_by else 0

    def values(self, tag: str) -> tuple[Values, Values]:
        """Return the values of A and B: for the pairs in which both have the metric, or for all requests that have it."""
        first, second = self.a.values(tag), self.b.values(tag)
        if self.paired_by is None:
            return first[~np.isnan(first)], second[~np.isnan(second)]
        first, second = first[self._indexes[:, 0]], second[self._indexes[:, 1]]
        both = ~(np.isnan(first) | np.isnan(second))
        return first[both], second[both]


def pair(a: Requests, b: Requests, *, blocks: int | None = None) -> Pairs:
    """Pair requests by the hash of their body: the first use of a body in A with its first use in B, and so on.

    With `blocks`, A and B are parts of one interleaved run that sent each conversation to that many servers; requests
    are then paired by their position in its schedule. Requests are not paired if most of the smaller run's have no partner.
    """
    if blocks is not None:
        return Pairs(a, b, _indexes_by_position(a, b, blocks), "plan")
    indexes = _indexes_by_body(a, b)
    if 2 * len(indexes) < min(len(a), len(b)):
        return Pairs(a, b, [], None, _why_unpaired(a, b, len(indexes)))
    return Pairs(a, b, indexes, "body")


def _indexes_by_position(a: Requests, b: Requests, servers: int) -> list[tuple[int, int]]:
    def position(key: int) -> tuple[int, int]:
        return int(key >> 20) // servers, int(key & 0xFFFFF)

    index_in_b = {position(key): i for i, key in enumerate(b.keys)}
    return [(i, index_in_b[at]) for i, key in enumerate(a.keys) if (at := position(key)) in index_in_b]


def _indexes_by_body(a: Requests, b: Requests) -> list[tuple[int, int]]:
    uses: dict[bytes, list[int]] = {}
    for index in range(len(b) - 1, -1, -1):
        if b.bodies[index]:
            uses.setdefault(b.bodies[index], []).append(index)
    indexes = []
    for index, body in enumerate(a.bodies):
        if body and (remaining := uses.get(body)):
            indexes.append((index, remaining.pop()))
    return indexes


def _why_unpaired(a: Requests, b: Requests, pairs: int) -> str:
    for run in (a, b):
        if not any(run.bodies):
            return (
                f"The per-request file of {run.name} has no body_sha256, by which requests are paired (another program or an "
                "older version of Penstock wrote it), so all requests are compared unpaired."
            )
    share = f"Only {pairs:,}" if pairs else "None"
    return (
        f"{share} of the {min(len(a), len(b)):,} requests have the same body in both runs, so all requests are compared "
        "unpaired: the difference also contains the difference between the prompts. Replay the inputs.json of one run "
        "against the other server to compare the same prompts."
    )
