"""The choice of a model for each conversation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, cycle

from penstock.datasets.random_streams import fresh_seed, stream
from penstock.settings.schema import Settings


def choose_models(settings: Settings) -> Iterator[str]:
    """Yield the models of the conversations, in their order, without end."""
    models = settings.models
    if settings.model_selection == "round_robin":
        yield from cycle(models)
    bounds = list(accumulate(settings.model_weights or [1.0] * len(models)))
    seed = settings.input.seed
    rng = stream(fresh_seed() if seed is None else seed, "models")
    while True:
        # The last bound is left out: the product can be rounded up to it.
        yield models[bisect_right(bounds[:-1], rng.random() * bounds[-1])]
