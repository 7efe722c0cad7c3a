"""Limits in a real Redis: shared, atomic, timed by its clock; and the fallback when it is unavailable."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.gateway.limits import Limiter, Reservation, SharedTable, open_limiter, scripts
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.config import LimitsConfig
from penstock.gateway.resources.snapshot import CallerKey
from support import TESTS
from support.limit_objects import admitted, attempt, key, model, run, temporary_table
from support.redis_server import RedisServer

MINUTE_US = 60_000_000


def open_redis_limiter(server: RedisServer) -> Limiter:
    return open_limiter(LimitsConfig(redis_url=server.url), temporary_table())


async def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_two_gateways_share_one_limit(redis_server: RedisServer) -> None:
    async def scenario() -> list[bool]:
        first, second = open_redis_limiter(redis_server), open_redis_limiter(redis_server)
        outcomes = [
            admitted(await attempt(limiter, key(rpm=3), now=time.time())) for limiter in (first, second, first, second)
        ]
        await first.close()
        await second.close()
        return outcomes

    assert run(scenario()) == [True, True, True, False]


def test_concurrent_requests_are_admitted_exactly_up_to_the_limit(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # on a busy machine, so many requests wait longer for a connection than the usual timeout
    monkeypatch.setattr("penstock.gateway.limits.redis_limiter._TIMEOUT_S", 60.0)

    async def scenario() -> tuple[int, int]:
        limiters = [open_redis_limiter(redis_server) for _ in range(3)]
        caller, requested = key(rpm=100, concurrency=70), model(rpm=1000)
        outcomes = await asyncio.gather(
            *(attempt(limiters[index % 3], caller, requested, now=time.time()) for index in range(300))
        )
        count = sum(map(admitted, outcomes))
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, Reservation):
                await limiters[index % 3].settle(outcome, 0, time.time())
        for limiter in limiters:
            await asyncio.gather(*limiter._tasks, return_exceptions=True)  # type: ignore[attr-defined]
        more = await asyncio.gather(*(attempt(limiters[0], caller, requested, now=time.time()) for _ in range(60)))
        for limiter in limiters:
            await limiter.close()
        return count, sum(map(admitted, more))

    assert run(scenario()) == (70, 30)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    limit=st.integers(1, 40),
    steps=st.lists(
        st.tuples(
            st.integers(0, MINUTE_US // 5) | st.integers(0, 1000) | st.just(0), st.integers(1, 20), st.integers(0, 30)
        ),
        min_size=1,
        max_size=40,
    ),
)
def test_redis_and_local_table_make_the_same_decisions(
    redis_server: RedisServer, limit: int, steps: list[tuple[int, ...]]
) -> None:
    """Both get the same sequence of admissions and settlements at the same times."""
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    admit, settle = client.register_script(scripts.ADMIT), client.register_script(scripts.SETTLE)
    table = temporary_table(windows=64, slots=16)
    limiter = LocalLimiter(table)
    caller, requested = key(tpm=limit), model()
    width = MINUTE_US // 32
    now_us = 1_800_000_000_000_000

    async def scenario() -> None:
        nonlocal now_us
        for number, (pause, tokens, spent) in enumerate(steps):
            now_us += pause
            now = now_us / 1e6
            exact = int(now * 1e6)
            amount = min(tokens, limit)
            reply = admit(keys=["owners", f"r{number}", "w"], args=[exact, "me", 1, limit, amount, width])
            outcome = await attempt(limiter, caller, requested, tokens=tokens, now=now)
            assert bool(reply[0]) == admitted(outcome)
            headers = dict(outcome.headers)
            assert headers["x-ratelimit-remaining-tokens"] == str(reply[2])
            if isinstance(outcome, Refusal):
                assert outcome.retry_after == max(1, -(-reply[4] // 1_000_000))
                assert headers["x-ratelimit-reset-tokens"] == f"{-(-reply[3] // 1_000_000)}s"
            elif spent % 2:
                settle(keys=[f"r{number}", "w"], args=[exact, "me", 1, 1, reply[1], amount, spent, width])
                await limiter.settle(outcome, spent, now)

    run(scenario())
    table.close()
    client.close()


def test_redis_outage_is_logged_once_and_limits_are_counted_locally_until_it_ends(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        limiter = open_redis_limiter(redis_server)
        caller = key(rpm=5, concurrency=50)
        before = await attempt(limiter, caller, now=time.time())
        assert admitted(before)
        assert (limiter.degraded, limiter.failures) == (False, 0)

        redis_server.stop()
        outcomes = [admitted(await attempt(limiter, caller, now=time.time())) for _ in range(8)]
        assert outcomes == [True] * 5 + [False] * 3
        assert limiter.degraded
        assert limiter.failures >= 1
        [line] = capsys.readouterr().err.splitlines()
        assert json.loads(line)["message"].startswith("Redis at ")
        assert isinstance(before, Reservation)
        await limiter.settle(before, 0, time.time())

        redis_server.start()
        await wait_until(lambda: not limiter.degraded)
        [line] = capsys.readouterr().err.splitlines()
        assert json.loads(line)["message"].endswith("is back; limits are counted there again")
        # the restarted Redis has no counts
        assert admitted(await attempt(limiter, caller, now=time.time()))
        assert redis.Redis.from_url(redis_server.url).keys(b"penstock:{limits}:w:*")
        await limiter.close()

    run(scenario())


def test_workers_of_a_machine_log_an_outage_once(
    redis_server: RedisServer, table_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = SharedTable.open(table_path)

    async def scenario() -> None:
        config = LimitsConfig(redis_url=redis_server.url)
        workers = [open_limiter(config, SharedTable.attach(table_path)) for _ in range(3)]
        for _ in range(2):
            redis_server.stop()
            for limiter in workers:
                assert admitted(await attempt(limiter, key(rpm=50), now=time.time()))
            assert [limiter.degraded for limiter in workers] == [True] * 3
            [line] = capsys.readouterr().err.splitlines()
            assert " is unavailable " in line
            redis_server.start()
            await wait_until(lambda: not any(limiter.degraded for limiter in workers))
            [line] = capsys.readouterr().err.splitlines()
            assert json.loads(line)["message"].endswith("is back; limits are counted there again")
        for limiter in workers:
            await limiter.close()

    run(scenario())
    main.close()


def test_outage_report_of_a_dead_worker_may_be_repeated(table_path: str) -> None:
    table = SharedTable.open(table_path)
    worker = (
        "import sys; from penstock.gateway.limits import SharedTable; "
        "print(SharedTable.attach(sys.argv[1]).claim_outage_report(down=True))"
    )
    output = subprocess.run(
        [sys.executable, "-c", worker, table_path], capture_output=True, text=True, check=True
    ).stdout
    assert output == "True\n"
    assert [table.claim_outage_report(down=down) for down in (True, True, False, False)] == [True, False, True, False]
    table.close()


def test_gateway_starts_without_redis_and_uses_it_later(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        redis_server.stop()
        limiter = open_redis_limiter(redis_server)
        assert admitted(await attempt(limiter, key(rpm=5), now=time.time()))
        assert limiter.degraded
        redis_server.start()
        await wait_until(lambda: not limiter.degraded)
        assert admitted(await attempt(limiter, key(rpm=5), now=time.time()))
        await limiter.close()

    run(scenario())


def test_hanging_redis_does_not_block_requests(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        limiter = open_limiter(LimitsConfig(redis_url=redis_server.short_timeout_url), temporary_table())
        assert admitted(await attempt(limiter, key(rpm=5), now=time.time()))
        redis_server.signal(signal.SIGSTOP)
        try:
            assert admitted(await asyncio.wait_for(attempt(limiter, key(rpm=5), now=time.time()), 20))
            assert limiter.degraded
        finally:
            redis_server.signal(signal.SIGCONT)
        await wait_until(lambda: not limiter.degraded)
        await limiter.close()

    run(scenario())


@pytest.mark.parametrize("caller", [key(rpd=100), key(tpd=100_000), key(rpd=100, concurrency=5)])
def test_markers_of_admissions_outlive_an_outage_and_do_not_pile_up(
    redis_server: RedisServer, caller: CallerKey
) -> None:
    client = redis.Redis.from_url(redis_server.url)

    async def scenario() -> None:
        limiter = open_redis_limiter(redis_server)
        for _ in range(50):
            outcome = await attempt(limiter, caller, tokens=10, now=time.time())
            assert isinstance(outcome, Reservation)
            [*markers] = client.keys("penstock:{limits}:r:*")
            assert len(markers) <= 2
            assert all(client.pttl(name) > 80_000_000 for name in markers)
            await limiter.settle(outcome, 5, time.time())
            await asyncio.gather(*limiter._tasks, return_exceptions=True)  # type: ignore[attr-defined]
        await limiter.close()

    run(scenario())
    client.close()


@pytest.mark.parametrize("charges", [True, False])
def test_slow_redis_counts_no_request_twice(redis_server: RedisServer, charges: bool) -> None:
    """Redis executes calls whose caller has timed out. The limiter cancels the admissions and repeats the settlements."""
    client = redis.Redis.from_url(redis_server.url)

    async def scenario() -> None:
        limiter = open_limiter(LimitsConfig(redis_url=redis_server.short_timeout_url), temporary_table())
        caller = key(rpm=5, tpm=100, concurrency=5)
        first = await attempt(limiter, caller, tokens=40, now=time.time())
        assert isinstance(first, Reservation)
        assert (counted(client), held(client)) == ([1, 40], [1])
        # After the first heartbeat, the connection is idle, so that the next call is sent on it at once.
        pool = limiter._client.connection_pool  # type: ignore[attr-defined]
        await wait_until(lambda: client.pttl("penstock:{limits}:owners") > 0 and not pool._in_use_connections)
        redis_server.signal(signal.SIGSTOP)
        try:
            if charges:
                assert admitted(await attempt(limiter, caller, tokens=40, now=time.time()))
            else:  # takes a slot only
                await limiter.enter(caller, (), time.time())
            assert limiter.degraded
            await limiter.settle(first, 30, time.time())
        finally:
            redis_server.signal(signal.SIGCONT)
        await wait_until(lambda: not limiter.degraded)
        assert (counted(client), held(client)) == ([1, 30], [])
        await limiter.close()

    run(scenario())
    client.close()


def counted(client: redis.Redis) -> list[int]:
    """Return the sum of each window."""
    import msgspec

    rings = [msgspec.msgpack.decode(client.get(name)) for name in client.keys(b"penstock:{limits}:w:*")]
    return sorted(sum(ring[:32]) for ring in rings)


def held(client: redis.Redis) -> list[int]:
    """Return the slots that each process holds of each concurrency limit."""
    names = client.keys(b"penstock:{limits}:s:*")
    return [int(count) for name in names for count in client.hvals(name)]


def test_repeated_calls_of_the_scripts_have_no_effect(redis_server: RedisServer) -> None:
    client = redis.Redis.from_url(redis_server.url, decode_responses=False)
    admit, settle = map(client.register_script, (scripts.ADMIT, scripts.SETTLE))
    window, slots = b"penstock:{limits}:w:1", b"penstock:{limits}:s:1"
    now, width = 1_800_000_000_000_000, MINUTE_US // 32

    def try_admit(id_: str) -> list[int]:
        return admit(keys=["owners", id_, window, slots], args=[now, "me", 1, 100, 40, width, 5])

    reply = try_admit("a")
    assert try_admit("a") == reply
    assert (counted(client), held(client)) == ([40], [1])
    for _ in range(2):
        settle(keys=["a", window, slots], args=[now, "me", 1, 1, reply[1], 40, 10, width])
    assert (counted(client), held(client)) == ([10], [])
    try_admit("b")
    for _ in range(2):
        settle(keys=["b", window, slots], args=[now, "me", 1, 0, 0, 40, 0, width])
        assert (counted(client), held(client)) == ([10], [])
    settle(keys=["c", window, slots], args=[now, "me", 1, 0, 0, 40, 0, width])
    assert try_admit("c") == [0]  # it arrives after its cancellation
    assert (counted(client), held(client)) == ([10], [])
    client.close()


def test_read_only_redis_is_treated_as_unavailable(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        client = redis.Redis.from_url(redis_server.url)
        limiter = open_redis_limiter(redis_server)
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        for _ in range(3):
            assert admitted(await attempt(limiter, key(rpm=5), now=time.time()))
            await asyncio.sleep(0.7)
        assert limiter.degraded
        assert len(capsys.readouterr().err.splitlines()) == 1
        client.execute_command("REPLICAOF", "NO", "ONE")
        await wait_until(lambda: not limiter.degraded)
        client.close()
        await limiter.close()

    run(scenario())


def test_password_in_the_url_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        limiter = open_limiter(LimitsConfig(redis_url="redis://user:hush@127.0.0.1:1/0"), temporary_table())
        assert admitted(await attempt(limiter, key(rpm=5), now=time.time()))
        await limiter.close()

    run(scenario())
    output = capsys.readouterr().err
    assert "127.0.0.1:1" in output
    assert "hush" not in output


def test_request_cancelled_during_admission_releases_its_slot(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        limiter = open_redis_limiter(redis_server)
        caller = key(concurrency=1, tpm=100)
        for _ in range(20):
            task = asyncio.ensure_future(limiter.admit(caller, model(), (), 100, time.time()))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        while limiter._tasks:  # type: ignore[attr-defined]
            await asyncio.gather(*limiter._tasks, return_exceptions=True)  # type: ignore[attr-defined]
        assert admitted(await attempt(limiter, caller, tokens=100, now=time.time()))
        await limiter.close()

    run(scenario())


def test_slots_of_a_gateway_without_heartbeat_are_released(redis_server: RedisServer) -> None:
    """The time is passed to the scripts, so that the test need not wait for the lease to expire."""
    client = redis.Redis.from_url(redis_server.url)
    admit, heartbeat = client.register_script(scripts.ADMIT), client.register_script(scripts.HEARTBEAT)
    now = 1_800_000_000_000_000

    def try_admit(owner: str, now_us: int) -> bool:
        return bool(admit(keys=["owners", f"r{owner}{now_us}", "s"], args=[now_us, owner, 0, 1])[0])

    assert try_admit("first", now)
    assert not try_admit("second", now + scripts.LEASE_US)
    heartbeat(keys=["owners", "s"], args=[now + scripts.LEASE_US, "first"])
    assert not try_admit("second", now + 2 * scripts.LEASE_US)
    assert try_admit("second", now + 2 * scripts.LEASE_US + 1)
    client.close()


def test_every_redis_key_has_an_expiry(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        limiter = open_redis_limiter(redis_server)
        # not rps, whose counter may expire before the check
        caller = key(rpm=5, rpd=5, tpm=100, concurrency=5)
        outcome = await attempt(limiter, caller, tokens=10, now=time.time())
        client = redis.Redis.from_url(redis_server.url)
        # the first heartbeat sets the expiry of the owners hash
        await wait_until(lambda: client.pttl("penstock:{limits}:owners") > 0)
        names = client.keys()
        assert len(names) == 6
        for name in names:
            assert 0 < client.pttl(name) <= 86_402_000
        assert isinstance(outcome, Reservation)
        client.close()
        await limiter.close()

    run(scenario())


ADMIT_90 = """
import asyncio, json, sys, time
from support.limit_objects import attempt, key, model, temporary_table
from penstock.gateway.resources.config import LimitsConfig
from penstock.gateway.limits import open_limiter, Reservation
async def main():
    limiter = open_limiter(LimitsConfig(redis_url=sys.argv[1]), temporary_table())
    caller, requested, count = key(rpm=200), model(), 0
    print("ready", flush=True); sys.stdin.readline()
    for _ in range(90):
        count += isinstance(await attempt(limiter, caller, requested, now=time.time()), Reservation)
    assert not limiter.degraded
    print(json.dumps(count), flush=True)
    await limiter.close()
asyncio.run(main())
"""


def test_several_processes_together_admit_exactly_the_limit(redis_server: RedisServer) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ADMIT_90, redis_server.url],
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    counts = []
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        counts.append(json.loads(process.communicate(timeout=60)[0]))
    assert sum(counts) == 200
