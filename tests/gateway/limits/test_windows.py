"""The sliding window against its definition, over any sequence of requests."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.gateway.limits import SharedTable
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.limits.windows import TICKS, wait_us, width_us
from penstock.gateway.refusal import Refusal
from support.limit_objects import NOW, admitted, attempt, key, run

MINUTE_US = 60_000_000
TICK_US = MINUTE_US // TICKS


class ByDefinition:
    """Every request that was admitted, and the sum that the window's definition makes of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.events: list[tuple[int, int]] = []

    def used(self, now: int) -> Fraction:
        tick, elapsed = divmod(now, TICK_US)
        used = Fraction(0)
        for at, amount in self.events:
            age = tick - at // TICK_US
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

    def most_in(self, span: int) -> int:
        return max((sum(n for t, n in self.events if at <= t < at + span) for at, _ in self.events), default=0)


steps = st.lists(
    st.tuples(st.integers(0, MINUTE_US // 6) | st.integers(0, 1000), st.integers(0, 40)), min_size=1, max_size=80
)


@settings(max_examples=150, deadline=None)
@given(limit=st.integers(1, 60), steps=steps)
def test_decisions_follow_the_definition_and_no_span_of_15_16ths_holds_more_than_the_limit(
    limit: int, steps: list[tuple[int, int]]
) -> None:
    table = SharedTable.private(windows=64, slots=16)
    limiter = LocalLimiter(table)
    by_definition = ByDefinition(limit)
    caller = key(tpm=limit)
    now = int(NOW * 1e6)

    async def play() -> None:
        nonlocal now
        for pause, tokens in steps:
            now += pause
            outcome = await attempt(limiter, caller, tokens=tokens, now=now / 1e6)
            assert admitted(outcome) == by_definition.admit(int(now / 1e6 * 1e6), tokens)

    run(play())
    assert by_definition.most_in(MINUTE_US * 15 // 16) <= limit
    table.close()


@settings(max_examples=150, deadline=None)
@given(limit=st.integers(1, 12), pauses=st.lists(st.integers(0, 8_000_000), min_size=1, max_size=60))
def test_retry_after_is_the_first_whole_second_at_which_the_request_is_admitted(limit: int, pauses: list[int]) -> None:
    table = SharedTable.private(windows=64, slots=16)
    limiter = LocalLimiter(table)
    caller = key(rpm=limit)

    async def play() -> None:
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

    run(play())
    table.close()


@given(
    counts=st.lists(st.integers(0, 9), min_size=TICKS, max_size=TICKS),
    elapsed=st.integers(0, width_us(1) - 1),
    amount=st.integers(1, 20),
    room=st.integers(0, 30),
)
def test_the_wait_is_exact_to_the_microsecond(counts: list[int], elapsed: int, amount: int, room: int) -> None:
    width = width_us(1)
    limit = amount + room

    def used(later: int) -> Fraction:
        passed, into = divmod(elapsed + later, width)
        left = [*counts[passed:], *([0] * passed)][:TICKS]
        return sum(left) - left[0] * Fraction(into, width)

    wait = wait_us(counts, elapsed, width, amount, limit)
    assert used(wait) + amount <= limit
    assert wait == 0 or used(wait - 1) + amount > limit


def test_a_burst_at_the_edge_of_a_minute_is_not_followed_by_another(local: Callable[[], LocalLimiter]) -> None:
    limiter = local()
    caller = key(rpm=10)

    async def play() -> list[bool]:
        early = [admitted(await attempt(limiter, caller, now=NOW + 59)) for _ in range(12)]
        late = [admitted(await attempt(limiter, caller, now=NOW + 59 + second)) for second in range(1, 56)]
        return early + late

    assert sum(run(play())) == 10


def test_the_whole_limit_is_free_again_after_the_window(local: Callable[[], LocalLimiter]) -> None:
    limiter = local()
    caller = key(rpm=10)

    async def play() -> list[bool]:
        return [admitted(await attempt(limiter, caller, now=at)) for at in [NOW] * 10 + [NOW + 60] * 10]

    assert all(run(play()))


def test_a_clock_that_steps_back_a_little_counts_on_and_one_set_back_far_starts_anew(
    local: Callable[[], LocalLimiter],
) -> None:
    limiter = local()
    caller = key(rpm=2)

    async def play() -> list[bool]:
        return [admitted(await attempt(limiter, caller, now=at)) for at in (NOW, NOW - 5, NOW - 5, NOW - 7200)]

    assert run(play()) == [True, True, False, True]
