"""Reads how several models share the conversations of a run."""

from __future__ import annotations

import math
from typing import Any

from penstock.errors import UserError
from penstock.settings.flag_values import ParsedArguments


def model_shares(parsed: ParsedArguments, models: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields `model_selection` and `model_weights` of `Settings`. Weights alone ask for a weighted selection."""
    spelling = parsed.spellings.get
    selection, texts = parsed.values.get("model_selection"), parsed.values.get("model_weights")
    if texts is None:
        if selection == "weighted":
            raise UserError(
                f"{spelling('model_selection')} weighted needs the shares of the models; give --model-weights, such as 3,1."
            )
        return {} if selection is None else {"model_selection": selection}
    name = str(spelling("model_weights"))
    if selection not in (None, "weighted"):
        raise UserError(f"{name} applies to the selection weighted, not {selection}; leave one of them out.")
    weights = tuple([_weight(text, name) for text in texts])
    if len(weights) != len(models):
        raise UserError(f"{name} must have one weight for each model: {len(models)}, not {len(weights)}.")
    if not sum(weights):
        raise UserError(f"{name} must have a weight above 0.")
    return {"model_selection": "weighted", "model_weights": weights}


def _weight(text: str, spelling: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 <= weight <= 1e9:
        raise UserError(f"{spelling} must be numbers of at least 0, such as 3,1, not {text!r}.")
    return weight
