"""Reads distributions of prompt and reply lengths: weighted pairs, and ranges around the means."""

from __future__ import annotations

import math
import re

import msgspec

from penstock.errors import UserError
from penstock.settings.flags.flag import MAX_TOKENS
from penstock.settings.schema import LengthPair

_EXAMPLE = "256,128:40;512,256:60 (prompt tokens, reply tokens:percent)"
_LENGTH = r"\s*(\d+(?:\.\d+)?)\s*(?:\|\s*(\d+(?:\.\d+)?)\s*)?"
_PERCENT = r"\s*(\d+(?:\.\d+)?)\s*%?\s*"
_PAIR = re.compile(rf"{_LENGTH},{_LENGTH}:{_PERCENT}")
_PAIR_IN_BRACKETS = re.compile(rf"\s*\({_LENGTH},{_LENGTH}\)\s*:{_PERCENT}(?:,|$)")
_TOLERANCE = 0.01


class _JsonPair(msgspec.Struct, forbid_unknown_fields=True):
    isl: float
    osl: float
    prob: float
    isl_stddev: float = 0
    osl_stddev: float = 0


class _JsonPairs(msgspec.Struct, forbid_unknown_fields=True):
    pairs: list[_JsonPair]


class _Ratios(msgspec.Struct, forbid_unknown_fields=True):
    input: float
    output: float


def read_length_pairs(text: str, spelling: str) -> tuple[LengthPair, ...]:
    """Return the pairs of `256|10,128:40;512,256:60`, of `[(256,128):40,(512,256):60]` or of JSON, or raise `UserError`."""
    text = text.strip()
    try:
        if text.startswith("{"):
            pairs = [_from_json(pair) for pair in msgspec.json.decode(text, type=_JsonPairs).pairs]
        elif text.startswith("[") and text.endswith("]"):
            pairs = _in_brackets(text[1:-1])
        else:
            pairs = [_from_text(_PAIR.fullmatch(part), part) for part in text.strip("; ").split(";")]
    except (ValueError, msgspec.MsgspecError) as error:
        raise UserError(f"{spelling} must look like {_EXAMPLE}: {error}.") from None
    for pair in pairs:
        _check(pair, spelling)
    total = sum(pair.percent for pair in pairs)
    if abs(total - 100) > _TOLERANCE:
        raise UserError(f"{spelling}: the percentages must add up to 100, and these add up to {total:g}.")
    return tuple(pairs)


def read_range_ratio(text: str, style: str, spelling: str) -> tuple[float, float]:
    """Return the ratios of the prompt and the reply length from a number, or from JSON with `input` and `output`."""
    try:
        if text.strip().startswith("{"):
            ratios = msgspec.json.decode(text, type=_Ratios)
            pair = ratios.input, ratios.output
        else:
            pair = float(text), float(text)
    except (ValueError, msgspec.MsgspecError):
        raise UserError(
            f'{spelling} must be a number such as 0.3, or {{"input": 0.3, "output": 0.5}}, not {text!r}.'
        ) from None
    for ratio in pair:
        if style == "vllm" and not 0 <= ratio < 1:
            raise UserError(f"{spelling} must be at least 0 and below 1, not {ratio:g}.")
        if style == "sglang" and not 0 <= ratio <= 1:
            raise UserError(f"{spelling} must be from 0 to 1, not {ratio:g}.")
    return pair


def _from_json(pair: _JsonPair) -> LengthPair:
    return LengthPair(pair.prob, pair.isl, pair.isl_stddev, pair.osl, pair.osl_stddev)


def _in_brackets(text: str) -> list[LengthPair]:
    pairs: list[LengthPair] = []
    position = 0
    while position < len(text):
        match = _PAIR_IN_BRACKETS.match(text, position)
        pairs.append(_from_text(match, text[position:]))
        position = match.end() if match else len(text)
    if not pairs:
        raise ValueError("the list is empty")
    return pairs


def _from_text(match: re.Match[str] | None, text: str) -> LengthPair:
    if match is None:
        raise ValueError(f"{text.strip()!r} is no such pair")
    isl, isl_stddev, osl, osl_stddev, percent = (float(part or 0) for part in match.groups())
    return LengthPair(percent, isl, isl_stddev, osl, osl_stddev)


def _check(pair: LengthPair, spelling: str) -> None:
    for mean, stddev in ((pair.input_mean, pair.input_stddev), (pair.output_mean, pair.output_stddev)):
        if not 1 <= mean <= MAX_TOKENS or not 0 <= stddev <= MAX_TOKENS:
            raise UserError(
                f"{spelling}: a length must be from 1 to {MAX_TOKENS:,} tokens, with a standard deviation of at least 0."
            )
    if not math.isfinite(pair.percent) or pair.percent < 0:
        raise UserError(f"{spelling}: a percentage must be at least 0, not {pair.percent:g}.")
