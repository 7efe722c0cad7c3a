"""The combinations of values of a sweep, from comma-separated lists on the command line."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from penstock.errors import UserError
from penstock.settings.flag_values import ParsedArguments, ValueList
from penstock.settings.flags import FLAGS
from penstock.settings.schema import Parameter

_MAX_POINTS = 1000


class Combination(NamedTuple):
    parameters: dict[str, Parameter]
    """Values by the names of their parameters, in the order of the command line."""
    arguments: ParsedArguments
    """The command line with these values instead of lists."""


def is_sweep(parsed: ParsedArguments) -> bool:
    return bool(parsed.variants) or any(isinstance(value, ValueList) for value in parsed.values.values())


def parameter_names(parsed: ParsedArguments) -> list[str]:
    """Return the names of the parameters that vary."""
    of_variants = parsed.variants[0].parameters if parsed.variants else ()
    return [*of_variants, *(name for name, _, _ in _lists(parsed))]


def combinations(parsed: ParsedArguments) -> list[Combination]:
    """Return the points of a sweep; a single one without lists. Raise UserError for lists that do not fit together."""
    zipped = parsed.values.get("experiment.combine") == "zip"
    if not parsed.variants:
        return _of_lists(parsed)
    found: list[Combination] = []
    for number, variant in enumerate(parsed.variants):
        of_variant = _of_lists(parsed._replace(values=variant.values, spellings=variant.spellings, variants=()))
        if zipped and len(of_variant) not in (1, len(parsed.variants)):
            raise UserError(
                f"A sweep of the type zip needs lists of the same length, but there are {len(parsed.variants)} and "
                f"{len(of_variant)} values."
            )
        at = number % len(of_variant)
        chosen = of_variant[at : at + 1] if zipped else of_variant
        found += [each._replace(parameters=variant.parameters | each.parameters) for each in chosen]
    _check_number(len(found))
    return found


def _of_lists(parsed: ParsedArguments) -> list[Combination]:
    lists = _lists(parsed)
    if lists and parsed.values.get("experiment.combine") == "zip":
        rows = _zipped(parsed, lists)
    else:
        rows = list(itertools.product(*(values for _, _, values in lists)))
    _check_number(len(rows))
    for number, row in enumerate(rows):
        if row in rows[:number]:
            values = " and ".join(f"{name} {value:.15g}" for (name, _, _), value in zip(lists, row, strict=True))
            raise UserError(f"The sweep has {values} twice; its points must differ.")
    return [
        Combination(
            {name: value for (name, _, _), value in zip(lists, row, strict=True)},
            parsed._replace(
                values=parsed.values | {target: value for (_, target, _), value in zip(lists, row, strict=True)}
            ),
        )
        for row in rows
    ]


def _check_number(points: int) -> None:
    if points > _MAX_POINTS:
        raise UserError(
            f"The sweep has {points:,} points, and at most {_MAX_POINTS:,} are possible; shorten the lists."
        )


def _lists(parsed: ParsedArguments) -> list[tuple[str, str, ValueList]]:
    """Return the name of the parameter, the target and the values of each list."""
    names = {flag.target: flag.parameter for flag in FLAGS if flag.sweepable}
    return [(names[target], target, value) for target, value in parsed.values.items() if isinstance(value, ValueList)]


def _zipped(parsed: ParsedArguments, lists: list[tuple[str, str, ValueList]]) -> list[tuple[int | float, ...]]:
    for _, target, values in lists[1:]:
        first = lists[0]
        if len(values) != len(first[2]):
            raise UserError(
                f"--sweep-type zip needs lists of the same length, but {parsed.spellings[first[1]]} has {len(first[2])} "
                f"values and {parsed.spellings[target]} has {len(values)}."
            )
    return list(zip(*(values for _, _, values in lists), strict=True))
