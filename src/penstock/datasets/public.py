"""Datasets that are downloaded from the Hugging Face hub (`--public-dataset`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import UserError


class PublicDataset(NamedTuple):
    repo: str
    file: str
    format: str
    """The name of its format."""


PUBLIC_DATASETS = {
    "sharegpt": PublicDataset(
        "anon8231489123/ShareGPT_Vicuna_unfiltered", "ShareGPT_V3_unfiltered_cleaned_split.json", "sharegpt"
    ),
}


def fetch(name: str, progress: Callable[[int, int], None] | None = None) -> str:
    """Return the path of the file of a dataset in the hub's cache. Download it if it is not there."""
    from penstock.tokens import hub

    dataset = PUBLIC_DATASETS[name]
    try:
        return hub.fetch_dataset(dataset.repo, dataset.file, progress)
    except hub.HubError as error:
        raise UserError(
            f"The dataset '{name}' is not in the cache, and the hub {error}; download {dataset.file} where there is a network "
            "and give --input-file the file."
        ) from None
