"""The dataset formats and their modules. To add a format, define a `FORMAT` in a module of its own and list it here.

The help of the command line shows the names, so this module imports nothing.
"""

from __future__ import annotations

FORMAT_MODULES = {
    "single_turn": "penstock.datasets.single_turn",
    "dag_jsonl": "penstock.datasets.dag",
    "multi_turn": "penstock.datasets.multi_turn",
    "random_pool": "penstock.datasets.random_pool",
    "sharegpt": "penstock.datasets.sharegpt",
    "inputs_json": "penstock.datasets.inputs_json",
    "raw_payload": "penstock.datasets.raw_payload",
    "bailian_trace": "penstock.datasets.bailian",
    "mooncake_trace": "penstock.datasets.mooncake",
    "burst_gpt_trace": "penstock.datasets.burst_gpt",
    "azure_llm_trace": "penstock.datasets.azure_llm",
}
"""Formats are tried in this order to detect that of a file."""
