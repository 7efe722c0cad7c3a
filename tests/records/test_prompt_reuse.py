"""The comparison of prompts with earlier ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.records.prompt_reuse import PromptReuse, ReuseCounts


def counts_of(*prompts: bytes, **limits: int) -> ReuseCounts:
    reuse = PromptReuse(**limits)
    for prompt in prompts:
        reuse.add(prompt)
    return reuse.counts


def test_equal_prompts_and_shared_begins_are_counted() -> None:
    system = b"s" * 600
    counts = counts_of(system + b"a" * 500, system + b"b" * 500, system + b"a" * 500, b"short", b"short", b"x" * 300)
    assert (counts.prompts, counts.repeated, counts.sharing) == (6, 2, 2)
    assert counts.size == 3 * 1100 + 10 + 300
    # Prefixes are compared at 256, 512, 768 and 1024 bytes.
    assert counts.shared_size == 512 + 1024


@pytest.mark.parametrize("second", [b"a" * 255 + b"b" * 500, b"", b"a" * 100])
def test_prompts_with_less_than_256_bytes_in_common_are_different(second: bytes) -> None:
    counts = counts_of(b"a" * 700, second)
    assert (counts.repeated, counts.sharing, counts.shared_size) == (0, 0, 0)


def test_counts_beyond_the_limit_of_memory_are_estimates() -> None:
    prompts = [b"%d " % n * 100 for n in range(4000)]
    counts = counts_of(*prompts, *prompts, max_hashes=500)
    assert counts.prompts == 8000
    assert counts.repeated == pytest.approx(4000, rel=0.3)
    assert counts.sharing == pytest.approx(4000, rel=0.3)


def test_counts_are_read_back(tmp_path: Path) -> None:
    assert ReuseCounts.load(str(tmp_path)) == ReuseCounts()
    counts_of(b"a" * 300, b"a" * 300).save(str(tmp_path))
    assert ReuseCounts.load(str(tmp_path)) == ReuseCounts(prompts=2, repeated=1, sharing=1, size=600, shared_size=256)
