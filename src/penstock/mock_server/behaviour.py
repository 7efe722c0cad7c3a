"""The behaviour of the server: the values of its options.

A test checks that `Behaviour` matches the table in `mock.options`. Every fault has a rate. Whether a fault applies to
request number k depends only on the seed and k, so a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.errors import UserError
from penstock.mock_server.options import OPTIONS, Framing, Option, Role, Thoughts, UsageSent
from penstock.suggest import did_you_mean


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    ttft: float = 0.0
    itl: float = 0.0
    jitter: float = 0.0
    input_cost: float = 0.0

    slots: int | None = None
    prefix_cache: int | None = None
    block_size: int = 16

    tokens: int = 100
    chunk: int = 1
    token_words: int = 1
    legacy_limit: bool = False
    reasoning: int = 0
    tools: bool = False
    refusal: bool = False
    thoughts: Thoughts = "summary"
    incomplete: str | None = None
    dimensions: int = 64
    seed: int = 0
    model: str = "mock-model"

    usage: UsageSent = "asked"
    role: Role = "on"
    finish: bool = True
    done: bool = True
    event_lines: bool = False
    comments: int = 0
    crlf: bool = False

    separate: bool = False
    split: float | None = None
    framing: Framing = "auto"
    close: bool = False
    idle_close: float | None = None

    error: int | None = None
    error_rate: float = 1.0
    retry_after: int | None = None
    stream_error: int | None = None
    stream_error_rate: float = 1.0
    cut: int | None = None
    cut_rate: float = 1.0
    reset: bool = False
    stall: float | None = None
    stall_rate: float = 1.0
    stall_after: int = 1
    malformed: int | None = None
    malformed_rate: float = 1.0
    slow_head: float | None = None
    slow_head_rate: float = 1.0
    empty: bool = False
    empty_rate: float = 1.0
    html: bool = False
    html_rate: float = 1.0
    content_type: str | None = None
    content_type_rate: float = 1.0
    failed: int | None = None
    failed_rate: float = 1.0


FAULTS = ("error", "empty", "html", "content_type", "stream_error", "malformed", "cut", "stall", "slow_head", "failed")
"""The faults that have a rate. The index seeds the random choice of requests, so new faults go to the end."""


OPTIONS_BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}


def read_options(pairs: Iterable[tuple[str, str]], base: Behaviour | None = None, where: str = "") -> Behaviour:
    """Return `base` with the given options changed. `where` says in error messages where they are: `in X-Mock`."""
    where = f" {where}" if where else ""
    changed: dict[str, object] = {}
    for name, text in pairs:
        option = OPTIONS_BY_NAME.get(name)
        if option is None:
            hint = did_you_mean(name.replace("-", "_"), OPTIONS_BY_NAME, "`penstock mock --help` lists them.")
            raise UserError(f"The mock has no option {name!r}{where}; {hint}")
        try:
            changed[name] = option.parse(text.strip())
        except ValueError as error:
            raise UserError(f"{name}{where} must be {error}, not {text!r}") from None
    behaviour = msgspec.structs.replace(base or Behaviour(), **changed)
    for fault in FAULTS:
        if f"{fault}_rate" in changed and not _is_set(behaviour, fault):
            raise UserError(f"{fault}_rate{where} needs {fault}, which says what happens")
    if "block_size" in changed and behaviour.prefix_cache is None:
        raise UserError(f"block_size{where} needs prefix_cache, which says how many blocks are cached")
    if behaviour.tools and behaviour.refusal:
        raise UserError(f"tools and refusal{where} exclude each other: choose one")
    return behaviour


def write_options(behaviour: Behaviour) -> list[str]:
    """Return `name=value` for each option that differs from its default: the inverse of `read_options`."""
    default = Behaviour()
    texts = []
    for option in OPTIONS:
        value = getattr(behaviour, option.name)
        if value != getattr(default, option.name):
            if value is None or isinstance(value, bool):
                value = "on" if value else "off"
            texts.append(f"{option.name}={value}")
    return texts


def read_header(value: str, base: Behaviour) -> Behaviour:
    """Read an X-Mock header, such as `ttft=50;itl=5;separate`. An option without a value is on."""
    pairs = []
    for part in filter(None, (part.strip() for part in value.split(";"))):
        name, _, text = part.partition("=")
        name = name.strip()
        if name in OPTIONS_BY_NAME and OPTIONS_BY_NAME[name].server_wide:
            raise UserError(f"{name} in X-Mock belongs to the whole server: set it when the mock starts")
        pairs.append((name, text))
    return read_options(pairs, base, "in X-Mock")


def active_faults(behaviour: Behaviour) -> list[tuple[str, float, int]]:
    """Return (name, rate, index in FAULTS) of the faults that are set and have a rate above 0."""
    faults = []
    for index, name in enumerate(FAULTS):
        rate = getattr(behaviour, f"{name}_rate")
        if _is_set(behaviour, name) and rate > 0:
            faults.append((name, rate, index))
    return faults


def describe(behaviour: Behaviour) -> str:
    """Return one line with ttft, itl, tokens and every other option that differs from its default."""
    default = Behaviour()
    parts: list[str] = []
    for option in OPTIONS:
        value = getattr(behaviour, option.name)
        if value == getattr(default, option.name) and option.name not in ("ttft", "itl", "tokens"):
            continue
        if option.name.endswith("_rate"):
            if _is_set(behaviour, option.name.removesuffix("_rate")):
                parts[-1] += f" for {value:.3g} of the requests"
        elif value is None:
            parts.append(f"{option.name} off")
        elif isinstance(value, bool):
            parts.append(option.summary.replace("{}", "on" if value else "off"))
        else:
            parts.append(option.summary.format(f"{value:.10g}" if isinstance(value, float) else value))
    return ", ".join(parts)


def _is_set(behaviour: Behaviour, fault: str) -> bool:
    value = getattr(behaviour, fault)
    return value is not None and value is not False
