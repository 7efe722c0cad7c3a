"""The root hash over the digests of all bodies."""

from __future__ import annotations

import random
from hashlib import sha256

import pytest

from penstock.records.root_hash import RootHash, schedule_key
from support.scratch import SCRATCH


@pytest.mark.parametrize("part", [1 << 20, 7])
def test_root_covers_the_digests_in_the_order_of_the_schedule(
    part: int,
) -> None:
    """Also if the digests are sorted in parts, as those of millions of requests are."""
    keys = [
        schedule_key(phase, number, turn) for phase in (0, 1, 20, 5_000) for number in range(10) for turn in range(2)
    ]
    digests = {key: sha256(str(key).encode()).digest() for key in keys}
    shuffled = random.Random(1).sample(keys, len(keys))
    root = RootHash(SCRATCH)
    for key in shuffled:
        root.add(key, digests[key])
    assert root.root(part, 3) == sha256(b"".join(digests[key] for key in keys)).hexdigest()
