"""The header of a run log: the settings without credentials, and the facts that are known before the first request."""

from __future__ import annotations

import math
import os
import platform
import secrets
from time import monotonic_ns, time_ns
from typing import Any

import msgspec

from penstock import __version__
from penstock.secrets import RedactedSecret, Secret
from penstock.settings.endpoint_types import Declaration, load_endpoint
from penstock.settings.redact import redacted
from penstock.settings.schema import Parameter, Settings

LOG_FORMAT = 4


class LogVersion(msgspec.Struct):
    """The part of a header that every version writes."""

    penstock_version: str
    log_format: int = 1
    """Version 0.1 wrote none, which stands for 1."""


class Variation(msgspec.Struct, frozen=True):
    """A combination of values of a sweep."""

    settings: Settings
    parameters: dict[str, Parameter] = {}


class RunHeader(LogVersion, kw_only=True):
    benchmark_id: str
    epoch_wall_ns: int
    """The wall clock (Unix time) at the run's epoch."""
    settings: Settings
    """The settings without credentials."""
    dataset: str
    """`synthetic`, or the format of the input file."""
    context_mode: str = "deltas_without_responses"
    """Which earlier turns a request contains."""
    payload_files: list[str] = []
    """The user's files from which bodies are read."""
    conversations: int | None
    """None if the dataset was still being read when the run began."""
    seed: int
    """The seed that was used: the one in the settings, or a random one."""
    concurrency: int | None
    """Slots of the profiling phase; None if their number is not limited."""
    requests: int | None
    """Requests after which the profiling phase stops; None if their number is not limited."""
    workers: int
    prompt_tokenizer: tuple[str, str] | None = None
    """Name and source of the tokenizer that counted the tokens of synthetic prompts."""
    servers: int = 1
    """Servers to which each conversation is sent: several in a comparison of servers."""
    depends_on_seed: bool = False
    """True if the seed decides what the prompts are, and not only their order."""
    variations: list[Variation] = []
    """What the points of an experiment are made from, so that it can be resumed; empty for a single run."""
    machine: dict[str, Any]

    @property
    def declaration(self) -> Declaration:
        """What the endpoint of the run declares. Raise UserError if the package with it is not installed."""
        declared: Declaration = load_endpoint(self.settings.endpoint.type).declaration
        return declared


def new_header(settings: Settings, *, epoch: int, **fields: Any) -> RunHeader:
    """Return the header of a new run on this machine. `epoch` is the run's epoch on the monotonic clock; `fields` are the other
    fields of the header."""
    return RunHeader(
        penstock_version=__version__,
        log_format=LOG_FORMAT,
        benchmark_id=secrets.token_hex(6),
        epoch_wall_ns=time_ns() - (monotonic_ns() - epoch),
        settings=redacted(settings),
        machine=_machine(),
        **fields,
    )


def encode_header(header: RunHeader) -> bytes:
    """Encode as JSON. A secret that was not redacted becomes `<redacted>`."""
    document = _without_infinity(msgspec.to_builtins(header, enc_hook=str))
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def decode_header(data: bytes) -> RunHeader:
    """Decode JSON; raise msgspec.MsgspecError if it is not a header of this version."""
    # Only the lax mode reads a number from a string, such as "inf".
    return msgspec.json.decode(data, type=RunHeader, dec_hook=_decode_secret, strict=False)


def _decode_secret(type_: type, value: Any) -> Secret:
    if type_ is not Secret or not isinstance(value, str):
        raise NotImplementedError(type_)
    return RedactedSecret(value)


def _without_infinity(value: Any) -> Any:
    """Replace infinite numbers, which JSON does not have, by strings."""
    if isinstance(value, dict):
        return {name: _without_infinity(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
