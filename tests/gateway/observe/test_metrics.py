"""Tests of the Prometheus text, read with the Prometheus parser: sums over running and ended workers."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.gateway.ledger.entry import Attempt, GuardrailHit
from penstock.gateway.ledger.mover import MoverState
from penstock.gateway.limits import open_limiter
from penstock.gateway.observe.exposition import ConfigState, Exposition
from penstock.gateway.observe.families import FAMILIES
from penstock.gateway.observe.metrics import MAX_SERIES, Metrics
from penstock.gateway.observe.recorder import Recorder
from penstock.gateway.resources.config import GatewayConfig, LedgerConfig, LimitsConfig
from penstock.gateway.resources.snapshot import CallerKey, GuardrailSpec, Model, Snapshot
from penstock.gateway.serving.app import App
from penstock.gateway.serving.runtime import Runtime
from support.gateway_traffic import Worker, finished_entry
from support.limit_objects import temporary_table

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: bytes) -> Samples:
    parsed: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            name = (sample.name.removeprefix("penstock_gateway_"), frozenset(sample.labels.items()))
            assert name not in parsed, "duplicate series"
            parsed[name] = sample.value
    return parsed


def total(values: Samples, name: str, **labels: str) -> float:
    return sum(
        value
        for (family, label_set), value in values.items()
        if family == name and labels.items() <= dict(label_set).items()
    )


def render_after(tmp_path: Path, *entries: object, metrics: Metrics | None = None) -> Samples:
    exposition = Exposition(str(tmp_path))
    metrics = metrics or Metrics(str(tmp_path), 0)
    for entry in entries:
        metrics.observe(entry)  # type: ignore[arg-type]
    metrics.close()
    return samples(exposition.render())


def test_request_is_counted_in_every_family(tmp_path: Path) -> None:
    attempts = [
        Attempt(model="a", upstream="x", provider_key="up", kind="initial", status=503, error="upstream_status"),
        Attempt(model="b", upstream="y", provider_key="up", kind="fallback", status=200, started_ms=2, first_byte_ms=9),
    ]
    hit = GuardrailHit(guardrail="names", hook="output", action="masked", count=3)
    values = render_after(
        tmp_path,
        finished_entry(),
        finished_entry(
            stream=True, ttft_ms=8.0, reasoning_tokens=2, cached_tokens=6, attempts=attempts, guardrails=[hit]
        ),
        finished_entry(status=429, error="rate_limit_exceeded", limited_by="policy", usage_source="none", attempts=[]),
        finished_entry(status=499, error="client_disconnected", usage_source="estimated", stream=True),
    )
    labels = {"endpoint": "/v1/responses", "model": "gpt-4o-prod", "provider": "openai", "key": "team-a"}
    assert values["requests_total", frozenset({**labels, "status": "200", "stream": "true"}.items())] == 1
    assert total(values, "requests_total", status="200") == 2
    assert total(values, "requests_total") == 4
    assert total(values, "request_duration_seconds_bucket", le="0.05", status="200") == 2
    assert total(values, "request_duration_seconds_bucket", le="0.025") == 0
    assert total(values, "request_duration_seconds_count") == 4
    assert total(values, "request_duration_seconds_sum") == pytest.approx(0.16)
    assert total(values, "ttft_seconds_count") == 1
    assert total(values, "ttft_seconds_bucket", le="0.01") == 1
    assert total(values, "ttft_seconds_bucket", le="0.005") == 0
    assert total(values, "upstream_ttfb_seconds_count") == 1
    assert total(values, "upstream_ttfb_seconds_sum") == pytest.approx(0.007)
    assert total(values, "tokens_total", direction="input") == 36
    assert total(values, "tokens_total", direction="output") == 15
    assert total(values, "reasoning_tokens_total") == 2
    assert total(values, "cached_tokens_total") == 6
    assert total(values, "estimated_tokens_total") == 17
    assert total(values, "upstream_attempts_total", outcome="success") == 3
    assert total(values, "upstream_attempts_total", model="a", outcome="upstream_status", kind="initial") == 1
    assert total(values, "guardrail_hits_total", guardrail="names", hook="output", action="masked") == 3
    assert total(values, "ratelimit_rejections_total", layer="policy") == 1
    assert total(values, "client_disconnects_total", endpoint="/v1/responses") == 1
    assert total(values, "phase_seconds_total", phase="upstream") == pytest.approx(0.12)


def test_counters_sum_running_and_ended_workers(tmp_path: Path) -> None:
    exposition = Exposition(str(tmp_path))
    workers = [Worker(tmp_path, number) for number in range(3)]
    for worker in workers:
        worker.serve(100)
    values = samples(exposition.render())
    assert total(values, "requests_total") == 300
    assert total(values, "requests_total", key="key 1") == 100
    assert total(values, "inflight_requests") == 3
    assert total(values, "workers") == 3
    assert total(values, "spool_entries_total") == 300
    assert total(values, "process_resident_memory_bytes", process="worker-2") > 1_000_000

    workers[0].kill()
    workers[1].end()
    values = samples(exposition.render())
    assert total(values, "requests_total") == 300
    assert total(values, "inflight_requests") == 1
    assert total(values, "workers") == 1
    assert total(values, "process_resident_memory_bytes", process="worker-0") == 0

    workers[0] = Worker(tmp_path, 0)
    workers[0].serve(7)
    for _ in range(2):
        values = samples(exposition.render())
        assert total(values, "requests_total") == 307
        assert total(values, "requests_total", key="key 0") == 107
        assert total(values, "request_duration_seconds_count") == 307
    workers[0].kill()
    workers[2].kill()
    assert total(samples(exposition.render()), "requests_total") == 307
    assert [name for name in os.listdir(tmp_path) if name.startswith("metrics-")] == []


def test_new_gateway_starts_at_zero(tmp_path: Path) -> None:
    worker = Worker(tmp_path, 0)
    worker.serve(5)
    worker.kill()
    assert total(samples(Exposition(str(tmp_path)).render()), "requests_total") == 0


def test_callers_cannot_create_label_values(tmp_path: Path) -> None:
    metrics = Metrics(str(tmp_path), 0)
    metrics.add_known_names(
        Snapshot(
            models={"fast": Model(id="1", name="fast", provider="openai")},
            caller_keys={"hash": CallerKey(id="2", name="team-a", hash="hash", allowed_models=("*",))},
            guardrails=(GuardrailSpec(name="names", kind="keyword"),),
        )
    )
    hostile_name = 'evil"} 1\n'
    entries = [
        finished_entry(
            model=f"{hostile_name}{number}",
            route=f"/{number}",
            provider=f"p{number}",
            api_key_name=f"k{number}",
            status=number,
            limited_by=f"l{number}",
            phases_ms={f"phase{number}": 1.0, "total": 1.0},
            attempts=[Attempt(model=hostile_name, upstream="x", provider_key="y", kind="initial", error=f"e{number}")],
            guardrails=[GuardrailHit(guardrail=f"g{number}", hook="input", action="blocked")],
        )
        for number in range(600, 900)
    ]
    values = render_after(tmp_path, finished_entry(model="fast"), *entries, metrics=metrics)
    assert total(values, "requests_total", model="fast", key="team-a") == 1
    unknown = {"model": "unknown", "provider": "unknown", "key": "unknown", "endpoint": "other", "status": "other"}
    assert total(values, "requests_total", **unknown) == 300
    assert total(values, "upstream_attempts_total", model="unknown", outcome="other") == 300
    assert total(values, "guardrail_hits_total", guardrail="unknown") == 300
    assert total(values, "ratelimit_rejections_total", layer="other") == 300
    assert len(values) < 150


def test_configured_names_are_escaped(tmp_path: Path) -> None:
    odd = 'a "quoted" \\ name\nand a line \x1b[31m é'
    values = render_after(tmp_path, finished_entry(api_key_name=odd))
    assert total(values, "requests_total") == 1
    ((labels,),) = [[dict(label_set) for (name, label_set) in values if name == "requests_total"]]
    assert labels["key"] == 'a "quoted" \\ name\\nand a line \\x1b[31m é'


def test_number_of_series_is_bounded(tmp_path: Path) -> None:
    values = render_after(
        tmp_path, *(finished_entry(api_key_name=f"key {number}") for number in range(MAX_SERIES + 500))
    )
    series = [label_set for (name, label_set) in values if name == "requests_total"]
    assert len(series) == MAX_SERIES + 1
    assert total(values, "requests_total") == MAX_SERIES + 500
    assert total(values, "requests_total", key="other") == 500
    assert total(values, "collapsed_series_total") == 500


def test_delay_of_the_event_loop_is_reported_until_the_next_write(tmp_path: Path) -> None:
    config = GatewayConfig(ledger=LedgerConfig(url=f"sqlite:///{tmp_path}/usage.db", spool=str(tmp_path / "spool")))
    runtime = Runtime.create(config)
    runtime.publish(Snapshot(), 1)
    exposition = Exposition(str(tmp_path))

    async def block_the_loop() -> tuple[Samples, Samples]:
        limiter = open_limiter(LimitsConfig(), temporary_table(windows=64, slots=16))
        recorder = Recorder(str(tmp_path), 0)
        App(runtime, 0, limiter, recorder).start(asyncio.get_running_loop())
        time.sleep(0.4)
        while recorder.metrics.loop_lag_s < 0.2:
            await asyncio.sleep(0.01)
        recorder.metrics.write()
        blocked = samples(exposition.render())
        recorder.metrics.write()
        after = samples(exposition.render())
        recorder.close()
        await limiter.close()
        return blocked, after

    blocked, after = asyncio.run(asyncio.wait_for(block_the_loop(), 60))
    runtime.remove()
    assert total(blocked, "loop_lag_seconds", worker="0") >= 0.2
    assert total(after, "loop_lag_seconds", worker="0") == 0


def test_main_process_adds_ledger_and_config_metrics(tmp_path: Path) -> None:
    ledger = MoverState(
        pending_entries=41,
        pending_bytes=9000,
        moved_entries_total=7,
        failures_total=2,
        refused_entries_total=1,
        torn_bytes_total=3,
        up=0,
    )
    config = ConfigState(
        last_reload_successful=False,
        last_reload_success_timestamp_seconds=1780272000.5,
        reloads_total=4,
        reload_failures_total=1,
    )
    values = samples(Exposition(str(tmp_path)).render(ledger, config, "abc"))
    assert total(values, "ledger_pending_entries") == 41
    assert total(values, "ledger_up") == 0
    assert total(values, "ledger_failures_total") == 2
    assert total(values, "config_last_reload_successful") == 0
    assert total(values, "config_last_reload_success_timestamp_seconds") == 1780272000.5
    assert total(values, "config_reload_failures_total") == 1
    assert total(values, "config_hash_info", hash="abc") == 1
    assert total(values, "process_resident_memory_bytes", process="main") > 1_000_000


async def record_one_request(folder: Path) -> None:
    recorder = Recorder(str(folder), 0)
    recorder.start(asyncio.get_running_loop())
    recorder.record(finished_entry())
    recorder.metrics.gauges["limits_degraded"] = 1
    recorder.close()


def test_ended_worker_keeps_its_latest_counts(tmp_path: Path) -> None:
    exposition = Exposition(str(tmp_path))
    asyncio.run(record_one_request(tmp_path))
    values = samples(exposition.render())
    assert total(values, "requests_total") == total(values, "spool_entries_total") == 1
    assert total(values, "limits_degraded") == 0


def test_every_series_belongs_to_a_declared_family(tmp_path: Path) -> None:
    exposition = Exposition(str(tmp_path))
    worker = Worker(tmp_path, 0)
    worker.serve(3)
    text = exposition.render().decode()
    worker.kill()
    declared = {family.name for family in text_string_to_metric_families(text)}
    assert declared == {f"penstock_gateway_{name.removesuffix('_total')}" for name in FAMILIES}
