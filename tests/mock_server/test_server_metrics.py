"""GET /metrics, compared with the request log."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from support.mock_client import chat_body, request_bytes


def samples(server: Any) -> dict[str, float]:
    """Return the values of the samples by name, with the finish reason or the upper bound."""
    answer = server.exchange(path="/metrics", method="GET")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    result = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("engine"), labels.pop("model_name")) == ("0", 'a"b')
            result[sample.name.removeprefix("vllm:") + "".join(f" {value}" for value in labels.values())] = sample.value
    return result


def test_metrics_count_what_the_log_says(start: Any) -> None:
    server = start(model='a"b', prefix_cache=50, slots=8)
    assert not any(samples(server).values())
    prompt = {"messages": [{"role": "user", "content": "one two three four five six seven eight nine ten " * 4}]}
    for mock, fields in (
        ("", {"max_tokens": 20}),
        ("ttft=30", {"stream": True, "max_tokens": 7}),
        ("tokens=4", {"stream": True}),
        ("cut=3", {"stream": True}),
        ("error=500", {}),
        ("failed=2", {"stream": True}),
        ("", {"max_tokens": -1}),
    ):
        server.exchange(chat_body(**prompt, **fields), mock=mock)
    server.exchange({"model": "m", "input": "one two"}, path="/v1/embeddings")
    with server.connect() as cancelled:
        cancelled.send(request_bytes(chat_body(**prompt, stream=True), mock="stall=inf;stall_after=5"))
        assert b"HTTP/1.1 200" in cancelled.sock.recv(100)
        during = samples(server)
    entries = server.logged_requests()

    generated = sum(entry["tokens"] for entry in entries)
    assert during["num_requests_running"] == 1
    assert during["num_requests_waiting"] == 0
    assert during["generation_tokens_total"] == generated == 20 + 7 + 4 + 3 + 2 + 5
    with_tokens = [entry for entry in entries if entry["first_write_ns"] is not None]
    embedding = next(entry for entry in entries if entry["path"] == "/v1/embeddings")
    prompt_tokens = sum(entry["prompt_tokens"] for entry in [*with_tokens, embedding])
    assert during["prompt_tokens_total"] == prompt_tokens
    asked = entries[0]["prompt_tokens"]
    assert during["prefix_cache_queries_total"] == 6 * asked
    hits = sum(entry["cached_tokens"] for entry in entries)
    assert during["prefix_cache_hits_total"] == hits == 5 * ((asked - 1) // 16 * 16)
    assert during["kv_cache_usage_perc"] == during["gpu_cache_usage_perc"] == -(-(asked + 5) // 16) / 50
    reasons = {name: during[f"request_success_total {name}"] for name in ("stop", "length", "abort", "error")}
    assert reasons == {"stop": 2, "length": 2, "abort": 0, "error": 3}

    ttfts = [entry["first_write_ns"] - entry["arrived_ns"] for entry in with_tokens]
    assert during["time_to_first_token_seconds_count"] == len(ttfts) == 6
    assert round(during["time_to_first_token_seconds_sum"] * 1e9) == sum(ttfts)
    for bound in ("0.01", "0.02", "1.0"):
        count = during[f"time_to_first_token_seconds_bucket {bound}"]
        assert count == sum(ttft <= float(bound) * 1e9 for ttft in ttfts)
    finished = [entries[k] for k in (0, 1, 2, 7)]
    assert during["e2e_request_latency_seconds_count"] == during["request_queue_time_seconds_count"] == len(finished)
    latency = sum(entry["ended_ns"] - entry["arrived_ns"] for entry in finished)
    assert round(during["e2e_request_latency_seconds_sum"] * 1e9) == latency
    assert during["request_queue_time_seconds_sum"] == during["num_preemptions_total"] == 0
