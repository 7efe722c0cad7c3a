"""Preparation of a run: the payload store, the expected requests, the workers and the connections."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.dataset import Contents, ReadOptions, StoredDataset
from penstock.endpoints.base import endpoint_named as endpoint
from penstock.errors import UserError
from penstock.records.payloads import PARTS, PayloadStore
from penstock.runs.observer import Observer
from penstock.runs.prepare import Prepared, check_streams, plan_phases, prepare, resolve_targets
from penstock.runs.stored_data import default_entries, fill_store
from penstock.schedule.arrivals import Recorded
from penstock.settings.schema import (
    EndpointSettings,
    ExperimentSettings,
    InputSettings,
    LoadSettings,
    OutputSettings,
    ScheduleSettings,
    Settings,
    TokenizerSettings,
    WarmupSettings,
)

URL = "http://127.0.0.1:8000"


def make_settings(load: LoadSettings, *, warmup: int = 0, data: InputSettings | None = None, **fields: Any) -> Settings:
    return Settings(
        models=("m", "n"),
        endpoint=EndpointSettings(urls=(URL,)),
        input=data or InputSettings(seed=1),
        tokenizer=TokenizerSettings(),
        load=load,
        warmup=WarmupSettings(requests=warmup),
        output=OutputSettings(folder="unused"),
        **fields,
    )


def conversation(number: int, turns: int = 1, *, accumulate: bool = False, **fields: Any) -> Conversation:
    texts = (f"conversation {number}, turn {turn}" for turn in range(turns))
    made = tuple(Turn(texts=(text,), **fields) for text in texts)
    return Conversation(id=f"c{number}", turns=made, accumulate=accumulate)


def run_prepare(folder: Path, settings: Settings, *conversations: Conversation, servers: int = 1) -> Prepared:
    chat = endpoint("chat", settings.endpoint)
    dataset = Contents(conversations)
    dataset.prepare(ReadOptions(settings.load.recorded))
    targets = resolve_targets(settings, chat)
    phases = plan_phases(settings, dataset, 1, servers)
    data = fill_store(str(folder), "", settings, dataset, Observer(), phases=phases)
    return prepare(str(folder), settings, targets, data, phases, 1)


def contents(folder: Path) -> list[str]:
    store = PayloadStore(str(folder), ())
    bodies = [json.loads(store.body(n)) for n in range(len(store))]
    return [body["messages"][-1]["content"] for body in bodies]


def test_bodies_are_stored_with_the_models_in_turn(tmp_path: Path) -> None:
    prepared = run_prepare(tmp_path, make_settings(LoadSettings()), conversation(0), conversation(1), conversation(2))
    store = PayloadStore(str(tmp_path), ())
    assert [json.loads(store.body(n))["model"] for n in range(3)] == ["m", "n", "m"]
    assert prepared.data.conversations == 3
    assert prepared.expected == [3]
    assert [phase.name for phase in prepared.phases] == ["profiling"]


def test_turns_that_contain_replies_are_stored_as_parts(tmp_path: Path) -> None:
    run_prepare(tmp_path, make_settings(LoadSettings()), conversation(0, 2, accumulate=True))
    store = PayloadStore(str(tmp_path), ())
    assert [store.entry(n).kind for n in range(2)] == [PARTS, PARTS]


@pytest.mark.parametrize(
    ("load", "warmup", "servers", "expected"),
    [
        (LoadSettings(concurrency=2), 0, 1, [6]),
        (LoadSettings(concurrency=2), 0, 2, [12]),
        (LoadSettings(concurrency=2, requests=4), 3, 1, [3, 4]),
        (LoadSettings(concurrency=2, requests=4), 0, 2, [8]),
        (LoadSettings(concurrency=2, conversations=2), 0, 1, [3]),
        (LoadSettings(concurrency=2, conversations=4), 0, 1, [7]),
        (LoadSettings(concurrency=2, conversations=2, requests=2), 0, 1, [2]),
        (LoadSettings(concurrency=2, duration_s=5.0), 0, 1, [None]),
        (LoadSettings(concurrency=2, duration_s=5.0, requests=9), 0, 1, [9]),
    ],
)
def test_expected_requests_follow_from_the_stop_rules(
    tmp_path: Path, load: LoadSettings, warmup: int, servers: int, expected: list[int | None]
) -> None:
    """The conversations have 1, 2 and 3 turns."""
    conversations = [conversation(n, n + 1) for n in range(3)]
    prepared = run_prepare(tmp_path, make_settings(load, warmup=warmup), *conversations, servers=servers)
    assert prepared.expected == expected


def test_expected_requests_are_unknown_for_random_conversations(tmp_path: Path) -> None:
    settings = make_settings(LoadSettings(concurrency=1, conversations=2), data=InputSettings(sampling="random"))
    assert run_prepare(tmp_path, settings, conversation(0), conversation(1, 2)).expected == [None]


@pytest.mark.parametrize(
    ("load", "connections"),
    [
        (LoadSettings(concurrency=8, requests=100), 8),
        (LoadSettings(concurrency=8, requests=3), 3),
        (LoadSettings(rate=50.0, requests=100), 5),
        (LoadSettings(rate=1.0, requests=100), 1),
        (LoadSettings(rate=50.0, concurrency=2, requests=100), 2),
    ],
)
def test_connections_before_the_first_request(tmp_path: Path, load: LoadSettings, connections: int) -> None:
    assert run_prepare(tmp_path, make_settings(load), conversation(0)).job.preconnect == connections


@pytest.mark.parametrize(
    ("load", "warmup", "entries"),
    [
        (LoadSettings(requests=7), 0, 7),
        (LoadSettings(requests=7), 5, 12),
        (LoadSettings(requests=7, conversations=3), 0, 3),
        (LoadSettings(duration_s=10.0), 0, 100),
        (LoadSettings(), 0, 10),
        (LoadSettings(concurrency=20), 0, 40),
    ],
)
def test_default_number_of_synthetic_conversations(load: LoadSettings, warmup: int, entries: int) -> None:
    assert default_entries(make_settings(load, warmup=warmup)) == entries


# -- a recorded schedule ----------------------------------------------------------------------------------------------


def scheduled(**fields: Any) -> Settings:
    return make_settings(LoadSettings(schedule=ScheduleSettings(on=True, **fields)))


def timed(number: int, timestamp_ms: float) -> Conversation:
    return conversation(number, timestamp_ms=timestamp_ms, delay_ms=10.0)


TIMED = [timed(0, 300.0), timed(1, 100.0), timed(2, 200.0)]


@pytest.mark.parametrize(
    ("schedule", "order", "times"),
    [
        ({}, [1, 2, 0], [0.0, 100.0, 200.0]),
        ({"auto_offset": False}, [1, 2, 0], [100.0, 200.0, 300.0]),
        ({"start_ms": 150.0}, [2, 0], [50.0, 150.0]),
        ({"end_ms": 200.0}, [1, 2], [0.0, 100.0]),
    ],
)
def test_scheduled_conversations_are_selected_sorted_and_shifted(
    tmp_path: Path, schedule: dict[str, Any], order: list[int], times: list[float]
) -> None:
    run_prepare(tmp_path, scheduled(**schedule), *TIMED)
    store = PayloadStore(str(tmp_path), ())
    assert contents(tmp_path) == [f"conversation {n}, turn 0" for n in order]
    assert [store.entry(n).timestamp_ms for n in range(len(store))] == times


def test_speedup_shortens_delays(tmp_path: Path) -> None:
    prepared = run_prepare(tmp_path, scheduled(speedup=4.0), *TIMED)
    store = PayloadStore(str(tmp_path), ())
    assert {store.entry(n).delay_ms for n in range(3)} == {2.5}
    assert prepared.phases[0].arrivals == Recorded(0.25)


def test_schedule_without_timestamps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="conversations without a 'timestamp'"):
        run_prepare(tmp_path, scheduled(), conversation(0))


def test_empty_part_of_a_schedule_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No conversation lies between the start and the end of the schedule"):
        run_prepare(tmp_path, scheduled(start_ms=1000.0), *TIMED)


def test_sessions_of_a_dataset_that_is_no_replay_are_refused(tmp_path: Path) -> None:
    settings = make_settings(LoadSettings(), data=InputSettings(sessions=("a",)))
    with pytest.raises(UserError, match="--sessions selects conversations of a replay"):
        run_prepare(tmp_path, settings, conversation(0))


PROMPTS = StoredDataset("prompts", [1], None)


@pytest.mark.parametrize(
    ("options", "endpoint_options", "refused"),
    [
        ({"until": "p50 inter_token_latency ±5%"}, {}, True),
        ({"experiment": ExperimentSettings(find_max="concurrency", slos=("p90 longest_gap<9",))}, {}, True),
        ({"until": "p50 inter_token_latency ±5%"}, {"streaming": True}, False),
        ({"until": "p50 inter_token_latency ±5%"}, {"extra": {"stream": True}}, False),
        ({"until": "p50 request_latency ±5%"}, {}, False),
    ],
)
def test_metric_of_streams_needs_a_request_for_streams(
    options: dict[str, Any], endpoint_options: dict[str, Any], refused: bool
) -> None:
    settings = make_settings(LoadSettings(requests=1), **options)
    settings = replace(settings, endpoint=EndpointSettings(urls=(URL,), **endpoint_options))
    with pytest.raises(UserError, match="only streamed replies have") if refused else nullcontext():
        check_streams(settings, PROMPTS)


def test_bodies_of_a_recording_may_ask_for_streams() -> None:
    settings = make_settings(LoadSettings(requests=1), until="p50 inter_token_latency ±5%")
    recorded = StoredDataset("recorded", [1], "raw_payload")
    recorded.verbatim = True
    check_streams(settings, recorded)
