"""The phases of a run, from its settings: their order, load and stop rules."""

from __future__ import annotations

import msgspec

from penstock.schedule.arrivals import Arrivals, Recorded, arrival_process
from penstock.schedule.limits import Fixed, LinearRamp, SlotLimit
from penstock.schedule.phase import Cancellation, Phase
from penstock.schedule.server_assignment import EachServer, RoundRobin
from penstock.schedule.turn_timing import AfterReply, AtArrivals, AtRecordedTimes, PerUser, TurnTiming
from penstock.schedule.users import UserArrivals
from penstock.settings.schema import LoadSettings, WarmupSettings


def make_phases(
    load: LoadSettings,
    warmup: WarmupSettings,
    *,
    synthetic: bool,
    seed: int,
    servers: int = 1,
    several_turns: bool = False,
) -> list[Phase]:
    """Return the warmup, if there is one, and the profiling phase. Where profiling starts in the dataset is an estimate if
    the warmup can end anywhere; see `Phase.starting_at`.

    Each conversation is sent to `servers` servers. Without a stop condition, a file is sent once and synthetic
    data ends after max(10, 2 x concurrency) conversations, or two for each user.
    """
    whole = load.recorded is not None  # a recording has no times for a second pass
    if load.requests is None and load.conversations is None and load.duration_s is None:
        if synthetic:
            # Count conversations, so that none is cut short. With one turn each, they are requests.
            count = default_conversations(load)
            load = msgspec.structs.replace(load, conversations=count, requests=None if several_turns else count)
        else:
            whole = True
    result = []
    first = 0
    warmup_load = warmup.load(load)
    if warmup_load is not None:
        result.append(_phase("warmup", warmup_load, seed=seed + 1, servers=servers))
        limits = [limit for limit in (warmup_load.requests, warmup_load.conversations) if limit is not None]
        first = 0 if whole else min(limits, default=0)
    return [*result, _phase("profiling", load, seed=seed, servers=servers, first=first, whole=whole)]


def _phase(kind: str, load: LoadSettings, *, seed: int, servers: int, first: int = 0, whole: bool = False) -> Phase:
    recorded = load.recorded
    scale = 1.0 if recorded is None else 1 / recorded.speedup
    return Phase(
        name=kind,
        kind=kind,
        first=first,
        slots=_slots(load),
        prefill_slots=_prefill_slots(load),
        arrivals=_rate_arrivals(load) if recorded is None else Recorded(scale, servers),
        turn_timing=_rate_timing(load) if recorded is None else AtRecordedTimes(scale),
        servers=EachServer(servers) if servers > 1 else RoundRobin(first),
        seed=seed,
        requests=None if load.requests is None else load.requests * servers,
        conversations=None if load.conversations is None else load.conversations * servers,
        whole=whole,
        cancellation=_cancellation(load),
        duration_s=load.duration_s,
        grace_s=load.grace_s if load.duration_s is not None else None,
    )


def default_conversations(load: LoadSettings) -> int:
    """Return the number of synthetic conversations of a load without a stop condition."""
    return max(10, 2 * (load.users or load.concurrency or 1))


def _slots(load: LoadSettings) -> SlotLimit | None:
    if load.concurrency is None:
        return None if load.open_loop else Fixed(1)
    return _limit(load.concurrency, load.concurrency_ramp_s)


def _prefill_slots(load: LoadSettings) -> SlotLimit | None:
    return None if load.prefill_concurrency is None else _limit(load.prefill_concurrency, load.prefill_ramp_s)


def _limit(value: int, ramp_s: float | None) -> SlotLimit:
    return Fixed(value) if ramp_s is None or value == 1 else LinearRamp(1, value, ramp_s)


def _cancellation(load: LoadSettings) -> Cancellation | None:
    if load.cancellation_percent is None:
        return None
    return Cancellation(load.cancellation_percent / 100, load.cancellation_delay_s)


def _rate_arrivals(load: LoadSettings) -> Arrivals | None:
    """Return the arrivals of the rate; None without a rate."""
    if load.user_rate is not None and load.users is not None:
        return UserArrivals(load.users, load.user_rate)
    rate = load.arrival_rate
    options = {} if load.smoothness is None else {"smoothness": load.smoothness}
    points = load.rate_series
    if rate is not None and load.rate_ramp_s is not None:
        points = ((0.0, 0.0), (load.rate_ramp_s, rate))
    if points:
        from penstock.schedule.varying_rate import RatePoint, VaryingRate

        process = arrival_process(load.arrivals, 1.0, **options)
        return VaryingRate(process, tuple(RatePoint(time_s, at) for time_s, at in points))
    return None if rate is None else arrival_process(load.arrivals, rate, **options)


def _rate_timing(load: LoadSettings) -> TurnTiming:
    if load.user_rate is not None and load.users is not None:
        return PerUser(load.users / load.user_rate)
    return AtArrivals() if load.rate is not None or load.rate_series else AfterReply()
