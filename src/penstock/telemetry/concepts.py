"""The names under which servers publish the same quantity.

Names are compared with `_` for `:` and without the `_total` of counters, because versions of a server differ in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.table_rows import table_rows
from penstock.telemetry.prometheus import Series


class Concept(NamedTuple):
    name: str
    header: str
    unit: str
    names: tuple[str, ...] = ()
    """Names in vLLM, SGLang, TensorRT-LLM and TGI. Only the first that a page has is read: a page can have two names for
    the same quantity."""
    mean: bool = False
    """Several series, such as those of several engines, are averaged instead of added."""
    counter: bool = False
    scale: float = 1.0
    """100 for a share, which is reported in percent."""


QUEUE, RUNNING, CACHE, HITS = "queue_depth", "running_requests", "cache_usage", "cache_hit_rate"

_TABLE = """\
queue_depth | Queue Depth | requests
    vllm_num_requests_waiting sglang_num_queue_reqs trtllm_num_requests_waiting trtllm_num_queued_requests tgi_queue_size
running_requests | Running Requests | requests
    vllm_num_requests_running sglang_num_running_reqs trtllm_num_requests_running tgi_batch_current_size
cache_usage | Cache Usage | % | mean
    vllm_kv_cache_usage_perc vllm_gpu_cache_usage_perc sglang_token_usage trtllm_kv_cache_utilization
cache_hit_rate | Cache Hit Rate | % | mean
    sglang_cache_hit_rate trtllm_kv_cache_hit_rate vllm_gpu_prefix_cache_hit_rate
cache_queries | Cache Queries | tokens | counter
    vllm_prefix_cache_queries vllm_gpu_prefix_cache_queries sglang_prompt_tokens
cache_hits | Cache Hits | tokens | counter
    vllm_prefix_cache_hits vllm_gpu_prefix_cache_hits sglang_cached_tokens
preemptions | Preemptions | requests | counter
    vllm_num_preemptions sglang_num_retracted_requests trtllm_num_preemptions
requests | Finished Requests | requests | counter
    vllm_request_success sglang_num_requests trtllm_request_success tgi_request_success
"""
CONCEPTS = tuple(
    Concept(
        name, header, unit, tuple(names.split()), "mean" in kind, "counter" in kind, scale=100 if unit == "%" else 1
    )
    for (name, header, unit, *kind), names in table_rows(_TABLE)
)
CONCEPT_HEADERS = {concept.name: concept.header for concept in CONCEPTS} | {"restarts": "Restarts"}
_BY_NAME = {name: concept for concept in CONCEPTS for name in concept.names}


def is_concept(series: Series) -> bool:
    return _normal_name(series.name) in _BY_NAME


def concept_values(page: Iterable[tuple[Series, float]]) -> dict[str, float]:
    """Return the values of the concepts on a page."""
    found: dict[str, list[float]] = {}
    for series, value in page:
        name = _normal_name(series.name)
        if name in _BY_NAME:
            found.setdefault(name, []).append(value)
    values = {}
    for concept in CONCEPTS:
        name = next((name for name in concept.names if name in found), "")
        if name:
            combine: Callable[[list[float]], float] = _mean if concept.mean else sum
            values[concept.name] = combine(found[name]) * concept.scale
    return values


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _normal_name(name: str) -> str:
    return name.replace(":", "_").removesuffix("_total")
