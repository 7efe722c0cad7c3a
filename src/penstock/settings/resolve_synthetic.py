"""Resolves the settings of synthetic conversations, images and audio, and checks that the endpoint can carry them."""

from __future__ import annotations

import math
from typing import Any

from penstock.errors import UserError
from penstock.settings.endpoint_types import Declaration, Input, types_that_take
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.length_shapes import read_length_pairs, read_range_ratio
from penstock.settings.schema import AudioSettings, ConversationSettings, ImageSettings, RankingSettings

_DEPTHS = (8, 16, 24, 32)
_MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_LOWEST_RATE, _HIGHEST_RATE = 1000, 192_000

_MEDIA: tuple[tuple[Input, str, str], ...] = (
    ("images", "input.images.width_mean", "an image"),
    ("audio", "input.audio.seconds_mean", "audio"),
)


def conversation(parsed: ParsedArguments) -> ConversationSettings:
    fields = parsed.section("input.conversation")
    if "input.file" in parsed.values:
        for name in fields:
            if name != "delay_ratio":
                raise _not_with_file(parsed, f"input.conversation.{name}")
    elif fields.get("turns_mean", 1) == 1 and not fields.get("turns_stddev"):
        for name in ("delay_mean_ms", "delay_stddev_ms", "delay_ratio"):
            if fields.get(name):
                raise UserError(
                    f"{parsed.spellings[f'input.conversation.{name}']} sets the delay between two turns, but a "
                    "conversation has one turn; give --conversation-turn-mean, or leave the flag out."
                )
    if bool(fields.get("prefixes")) != bool(fields.get("prefix_tokens")):
        given, missing = ("prefixes", "prefix_tokens") if fields.get("prefixes") else ("prefix_tokens", "prefixes")
        raise UserError(
            f"{parsed.spellings[f'input.conversation.{given}']} needs {_PREFIX_FLAGS[missing]} too: prefixes have a number and "
            "a length."
        )
    return ConversationSettings(**fields)


_PREFIX_FLAGS = {"prefixes": "--num-prefix-prompts", "prefix_tokens": "--prefix-prompt-length"}


def system_prompt(parsed: ParsedArguments) -> dict[str, str]:
    """Return the field `system` of `InputSettings` if there is a system prompt."""
    if "input.system" in parsed.values:
        name, text = parsed.spellings["input.system"], parsed.values["input.system"]
    elif "input.system_file" in parsed.values:
        name = parsed.spellings["input.system_file"]
        text = _content(parsed.values["input.system_file"], name)
    else:
        return {}
    if not text.strip():
        raise UserError(f"The system prompt of {name} is empty; leave the flag out.")
    return {"system": text}


def _content(path: str, spelling: str) -> str:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return file.read()
    except OSError as error:
        raise UserError(f"{spelling} {path!r} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{spelling} {path!r} is not in UTF-8 (byte {error.start + 1}).") from None


def length_shape(parsed: ParsedArguments) -> dict[str, Any]:
    """Return the fields of `InputSettings` that say how lengths are distributed, other than means and deviations."""
    spelling, values = parsed.spellings.get, parsed.values
    fields: dict[str, Any] = {}
    if "input.length_pairs" in values:
        name = str(spelling("input.length_pairs"))
        fields["length_pairs"] = read_length_pairs(values["input.length_pairs"], name)
    if "input.range_ratio" in values:
        style = values.get("input.range_style", "vllm")
        fields["range_ratio"] = read_range_ratio(values["input.range_ratio"], style, str(spelling("input.range_ratio")))
    return fields


def images(parsed: ParsedArguments) -> ImageSettings:
    fields = parsed.section("input.images")
    settings = ImageSettings(**fields)
    if not fields:
        return settings
    if "input.file" in parsed.values:
        raise _not_with_file(parsed, f"input.images.{next(iter(fields))}")
    if settings.width_mean == 0 and settings.height_mean == 0:
        adjusting = [name for name, value in fields.items() if value and name != "batch"]
        if adjusting:
            raise UserError(
                f"{parsed.spellings[f'input.images.{adjusting[0]}']} applies to synthetic images, but there are none; "
                "give --image-width-mean and --image-height-mean, or leave the flag out."
            )
    elif not settings.width_mean or not settings.height_mean:
        present, missing = ("width", "height") if settings.width_mean else ("height", "width")
        raise UserError(
            f"{parsed.spellings[f'input.images.{present}_mean']} needs --image-{missing}-mean too: an image has both."
        )
    return settings


def audio(parsed: ParsedArguments) -> AudioSettings:
    fields = parsed.section("input.audio")
    if not fields:
        return AudioSettings()
    if "input.file" in parsed.values:
        raise _not_with_file(parsed, f"input.audio.{next(iter(fields))}")
    if not fields.get("seconds_mean"):
        adjusting = [name for name, value in fields.items() if value and name != "batch"]
        if adjusting:
            raise UserError(
                f"{parsed.spellings[f'input.audio.{adjusting[0]}']} applies to synthetic audio, but there is none; give "
                "--audio-length-mean, or leave the flag out."
            )
    if "rates" in fields:
        spelling = parsed.spellings["input.audio.rates"]
        fields["rates"] = tuple([_rate(text, spelling, fields.get("format")) for text in fields["rates"]])
    if "depths" in fields:
        fields["depths"] = tuple([_depth(text, parsed.spellings["input.audio.depths"]) for text in fields["depths"]])
    return AudioSettings(**fields)


def rankings(parsed: ParsedArguments, declaration: Declaration) -> RankingSettings:
    if "passages" not in declaration.inputs or "input.file" in parsed.values:
        return RankingSettings()
    for target in ("input.input_tokens_mean", "input.input_tokens_stddev", "input.batch"):
        if target in parsed.values:
            raise UserError(
                f"{parsed.spellings[target]} applies to prompts, and a ranking has a query and passages; use "
                "--rankings-query-prompt-token-mean, --rankings-passages-prompt-token-mean and --rankings-passages-mean."
            )
    return RankingSettings(**parsed.section("input.rankings"))


def check_endpoint(parsed: ParsedArguments, endpoint: str, declaration: Declaration) -> None:
    """Raise UserError for a flag that adds something which the requests of this endpoint type cannot carry."""
    for medium, target, description in _MEDIA:
        if parsed.values.get(target) and medium not in declaration.inputs:
            raise UserError(
                f"{parsed.spellings[target]} adds {description} to each request, which --endpoint-type {endpoint} cannot "
                f"carry; use {_alternatives(medium)}."
            )
    if parsed.values.get("tokenizer.apply_chat_template") and declaration.body_key != "messages":
        raise UserError(
            f"{parsed.spellings['tokenizer.apply_chat_template']} counts the messages of a chat, but --endpoint-type "
            f"{endpoint} sends none; use chat."
        )
    for target in _IN_MESSAGES:
        if target in parsed.values and "system" not in declaration.inputs:
            raise UserError(
                f"{parsed.spellings[target]} needs messages, but --endpoint-type {endpoint} "
                f"sends one prompt; use {_alternatives('system')}."
            )
    if "input.output_tokens_mean" in parsed.values and not declaration.output_tokens:
        raise UserError(
            f"{parsed.spellings['input.output_tokens_mean']} limits the tokens of replies, which --endpoint-type {endpoint} "
            "does not have; leave the flag out."
        )
    if not declaration.input_tokens and "input.file" not in parsed.values:
        _check_no_texts(parsed, endpoint)
    for target, spelling in parsed.spellings.items():
        if target.startswith("input.rankings."):
            if "passages" not in declaration.inputs:
                raise UserError(
                    f"{spelling} applies to rankings, but --endpoint-type {endpoint} has none; use {_alternatives('passages')}."
                )
            if "input.file" in parsed.values:
                raise _not_with_file(parsed, target)
    if parsed.values.get("input.conversation.turns_mean", 1) > 1 and "turns" not in declaration.inputs:
        raise UserError(
            f"{parsed.spellings['input.conversation.turns_mean']} makes conversations, but --endpoint-type {endpoint} "
            f"cannot send earlier turns; use {_alternatives('turns')}."
        )


def _check_no_texts(parsed: ParsedArguments, endpoint: str) -> None:
    for target in ("input.input_tokens_mean", "input.input_tokens_stddev", "input.batch"):
        if target in parsed.values:
            raise UserError(
                f"{parsed.spellings[target]} applies to texts, which requests of --endpoint-type {endpoint} do not have; "
                "leave the flag out."
            )


_IN_MESSAGES = (
    "input.conversation.system_tokens",
    "input.conversation.context_tokens",
    "input.system",
    "input.system_file",
)
"""Targets that add a message."""


def _alternatives(input_: Input) -> str:
    *others, last = types_that_take(input_)
    return f"{', '.join(others)} or {last}" if others else last


def _rate(text: str, spelling: str, file_format: str | None) -> int:
    """Convert kHz to Hz."""
    try:
        hertz = round(float(text) * 1000)
    except (ValueError, OverflowError):
        hertz = 0
    if not _LOWEST_RATE <= hertz <= _HIGHEST_RATE:
        raise UserError(f"{spelling} takes kHz from 1 to 192, like 16 or 44.1, not {text!r}.")
    if file_format == "mp3" and hertz not in _MP3_RATES:
        known = ", ".join(f"{rate / 1000:g}" for rate in _MP3_RATES)
        raise UserError(f"{spelling} {text} is not a sample rate of MP3 files; choose from {known} kHz, or use wav.")
    return hertz


def _depth(text: str, spelling: str) -> int:
    try:
        bits = float(text)
    except ValueError:
        bits = math.nan
    if bits not in _DEPTHS:
        raise UserError(f"{spelling} must be 8, 16, 24 or 32 bits, not {text!r}.")
    return int(bits)


def _not_with_file(parsed: ParsedArguments, target: str) -> UserError:
    return UserError(
        f"{parsed.spellings[target]} applies to synthetic prompts, but {parsed.spellings['input.file']} has its own; leave "
        "one of them out."
    )
