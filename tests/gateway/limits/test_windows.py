"""The sliding window compared with its definition, for any sequence of requests."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.limits.windows import TICKS, wait_us, width_us
from penstock.gateway.refusal import Refusal
from support.limit_objects import NOW, admitted, attempt, key, run, temporary_table

MINUTE_US = 60_000_000
TICK_US = MINUTE_US // TICKS


class ReferenceWindow:
    """A window that keeps every admitted request and computes its use by definition."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.events: list[tuple[int, int]] = []

    def used(self, now: int) -> Fraction:
        tick, elapsed = divmod(now, TICK_US)
        used = Fraction(0)
        for time_us, amount in self.events:
            age = tick - time_us // TICK_US
            if age < TICKS - 1:
                used += amount
            elif age == TICKS - 1:
                used += amount * Fraction(TICK_US - elapsed, TICK_US)
        return used

    def admit(self, now: int, amount: int) -> bool:
        amount = min(amount, self.limit)
        if self.used(now) + amount > self.limit:
            return False
        self.events.append((now, amount))
        return True

    def max_in_span(self, span: int) -> int:
        return max(
            (sum(n for t, n in self.events if time_us <= t < time_us + span) for time_us, _ in self.events), default=0
        )


steps = st.lists(
    st.tuples(st.integers(0, MINUTE_US // 6) | st.integers(0, 1000), st.integers(0, 40)), min_size=1, max_size=80
)


@settings(max_examples=150, deadline=None)
@given(limit=st.integers(1, 60), steps=steps)
def test_decisions_follow_the_definition_and_no_15_16_span_exceeds_the_limit(
    limit: int, steps: list[tuple[int, int]]
) -> None:
    table = temporary_table(windows=64, slots=16)
    limiter = LocalLimiter(table)
    reference = ReferenceWindow(limit)
    caller = key(tpm=limit)
    now = int(NOW * 1e6)

    async def scenario() -> None:
        nonlocal now
        for pause, tokens in steps:
            now += pause
            outcome = await attempt(limiter, caller, tokens=tokens, now=now / 1e6)
            assert admitted(outcome) == reference.admit(int(now / 1e6 * 1e6), tokens)

    run(scenario())
    assert reference.max_in_span(MINUTE_US * 15 // 16) <= limit
    table.close()


@settings(max_examples=150, deadline=None)
@given(limit=st.integers(1, 12), pauses=st.lists(st.integers(0, 8_000_000), min_size=1, max_size=60))
def test_retry_after_is_the_first_whole_second_at_which_the_request_is_admitted(limit: int, pauses: list[int]) -> None:
    table = temporary_table(windows=64, slots=16)
    limiter = LocalLimiter(table)
    caller = key(rpm=limit)

    async def scenario() -> None:
        now = NOW
        for pause in pauses:
            now += pause / 1e6
            outcome = await attempt(limiter, caller, now=now)
            if isinstance(outcome, Refusal):
                assert isinstance(outcome.retry_after, int)
                assert 1 <= outcome.retry_after <= 60
                if outcome.retry_after > 1:
                    assert not admitted(await attempt(limiter, caller, now=now + outcome.retry_after - 1.001))
                assert admitted(await attempt(limiter, caller, now=now + outcome.retry_after))
                return

    run(scenario())
    table.close()


@given(
    counts=st.lists(st.integers(0, 9), min_size=TICKS, max_size=TICKS),
    elapsed=st.integers(0, width_us(1) - 1),
    amount=st.integers(1, 20),
    headroom=st.integers(0, 30),
)
def test_wait_is_exact_to_the_microsecond(counts: list[int], elapsed: int, amount: int, headroom: int) -> None:
    width = width_us(1)
    limit = amount + headroom

    def used(later: int) -> Fraction:
        passed, into = divmod(elapsed + later, width)
        left = [*counts[passed:], *([0] * passed)][:TICKS]
        return sum(left) - left[0] * Fraction(into, width)

    wait = wait_us(counts, elapsed, width, amount, limit)
    assert used(wait) + amount <= limit
    assert wait == 0 or used(wait - 1) + amount > limit


def test_burst_at_the_end_of_a_minute_is_not_followed_by_another(local: Callable[[], LocalLimiter]) -> None:
    limiter = local()
    caller = key(rpm=10)

    async def scenario() -> list[bool]:
        burst = [admitted(await attempt(limiter, caller, now=NOW + 59)) for _ in range(12)]
        later = [admitted(await attempt(limiter, caller, now=NOW + 59 + second)) for second in range(1, 56)]
        return burst + later

    assert sum(run(scenario())) == 10


def test_whole_limit_is_free_after_the_window(local: Callable[[], LocalLimiter]) -> None:
    limiter = local()
    caller = key(rpm=10)

    async def scenario() -> list[bool]:
        return [admitted(await attempt(limiter, caller, now=now)) for now in [NOW] * 10 + [NOW + 60] * 10]

    assert all(run(scenario()))


def test_small_clock_step_back_keeps_counts_and_a_large_one_resets_them(
    local: Callable[[], LocalLimiter],
) -> None:
    limiter = local()
    caller = key(rpm=2)

    async def scenario() -> list[bool]:
        return [admitted(await attempt(limiter, caller, now=now)) for now in (NOW, NOW - 5, NOW - 5, NOW - 7200)]

    assert run(scenario()) == [True, True, False, True]
