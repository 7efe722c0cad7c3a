"""Resolves the settings of the warmup, and checks them against the load of the run, which it inherits."""

from __future__ import annotations

from penstock.errors import UserError
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.schema import BURST, LoadSettings, WarmupSettings

_LIMITS = {"requests", "conversations", "duration_s"}


def resolve_warmup(parsed: ParsedArguments, run: LoadSettings) -> WarmupSettings:
    """Return the warmup of a run with this load, or raise `UserError`."""
    fields = parsed.section("warmup")
    warmup = WarmupSettings(**fields, rate_is_unlimited="load.concurrency" not in parsed.values)
    spelling = {name: parsed.spellings[f"warmup.{name}"] for name in fields}
    load = warmup.load(run)
    if load is None:
        shaping = next((name for name in fields if name not in _LIMITS), None)
        if shaping is not None:
            raise UserError(
                f"{spelling[shaping]} shapes the warmup, but there is none; add --warmup-request-count, "
                "--num-warmup-sessions or --warmup-duration."
            )
        return WarmupSettings(requests=warmup.requests)
    if "grace_s" in fields and warmup.duration_s is None:
        raise UserError(
            f"{spelling['grace_s']} begins when --warmup-duration ends, but --warmup-duration is missing; give both or "
            "neither."
        )
    _check_rate(warmup, load, spelling)
    _check_users(parsed, warmup, load, spelling)
    for name, value, flags in (
        ("concurrency_ramp_s", load.concurrency, "--warmup-concurrency or --concurrency"),
        ("prefill_ramp_s", load.prefill_concurrency, "--warmup-prefill-concurrency or --prefill-concurrency"),
    ):
        if name in fields and value is None:
            raise UserError(f"{spelling[name]} is the time to reach a value that is missing; add {flags}.")
    if warmup.prefill_concurrency is not None and warmup.prefill_concurrency > (load.concurrency or float("inf")):
        raise UserError(
            f"{spelling['prefill_concurrency']} {warmup.prefill_concurrency} is above the concurrency of the warmup, "
            f"{load.concurrency}, so it would never be reached; lower it."
        )
    return warmup


def _check_users(parsed: ParsedArguments, warmup: WarmupSettings, load: LoadSettings, spelling: dict[str, str]) -> None:
    """Raise `UserError` for users without a rate, a rate without users, or users without conversations."""
    if warmup.users is None and warmup.user_rate is None:
        return
    name = spelling.get("user_rate") or spelling["users"]
    if warmup.rate is not None:
        raise UserError(f"{spelling['rate']} and {name} both set the rate of the warmup; keep one of them.")
    if load.user_rate is None or load.users is None:
        missing = "--warmup-user-centric-rate" if load.user_rate is None else "--warmup-num-users"
        raise UserError(f"{name} describes users that share a rate; add {missing}.")
    if "input.file" not in parsed.values and parsed.values.get("input.conversation.turns_mean", 1) < 2:
        raise UserError(
            f"{name} is a load of conversations, and synthetic ones have one turn; add --conversation-turn-mean."
        )


def _check_rate(warmup: WarmupSettings, load: LoadSettings, spelling: dict[str, str]) -> None:
    """Raise `UserError` for what adjusts a rate that the warmup does not have, or that has fixed times."""
    if warmup.arrivals == BURST:
        adjusting = next((spelling[name] for name in ("rate", "rate_ramp_s") if name in spelling), None)
        if adjusting is not None:
            raise UserError(
                f"{spelling['arrivals']} {BURST} has no rate; leave out {adjusting}, or choose another pattern."
            )
        return
    adjusting = next((spelling[name] for name in ("arrivals", "rate_ramp_s") if name in spelling), None)
    if adjusting is None:
        return
    if load.arrival_rate is None:
        raise UserError(f"{adjusting} adjusts a rate, but the warmup has none; add --warmup-request-rate.")
    if load.users is not None:
        raise UserError(
            f"{adjusting} adjusts a rate, but the users of --user-centric-rate send in a fixed interval; add "
            "--warmup-request-rate, or leave the flag out."
        )
    if warmup.rate_ramp_s is not None and load.rate_series:
        raise UserError(
            f"{spelling['rate_ramp_s']} and --request-rate-series both change the rate of the warmup over time; add "
            "--warmup-request-rate, or leave the flag out."
        )
