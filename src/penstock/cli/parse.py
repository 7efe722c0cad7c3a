"""Words to values, by the table of flags.

The parser is our own: cyclopts, AIPerf's choice, needs 0.35 to 0.8 s to start with flags this many, and the table is
needed anyway, to refuse by name what is not built, for the help and for completion. What it keeps of AIPerf's rules:
`-` and `_` are alike in names and in choices, `--flag value` and `--flag=value`, booleans stand alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from penstock.errors import UserError
from penstock.secrets import REDACTED, redact_fields, redact_headers, redact_url
from penstock.settings.flag_values import Given, read, truth
from penstock.settings.flags import HINTS, SPELLINGS, Flag, UnsupportedFlag, wanted

__all__ = ["parse"]

_WITH_QUERY = ("endpoint.path", "endpoint.urls")
"""Targets whose value may carry a credential behind its question mark."""
_NEGATIVE_NUMBER = re.compile(r"-(?:[0-9]|\.[0-9]|inf\Z)")


def parse(words: Sequence[str], program: str = "penstock", command: str = "profile") -> Given:
    """The words after `profile`, or another command with its options. Everything wrong with them is a `UserError`."""
    for number, word in enumerate(words, 1):
        if not word.isascii() and not _is_text(word):
            raise UserError(f"Argument {number} is not valid UTF-8.")
    return _Parser(words).run(f"{program} {command}")


class _Parser:
    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._at = 0
        self._values: dict[str, Any] = {}
        self._spelled: dict[str, str] = {}
        self._seen: dict[str, tuple[str, Any, str]] = {}
        """Name of a flag that takes one value -> how it was spelled, its value, the value as it may be shown."""
        self._shown: list[str] = []
        self._refused: list[str] = []

    def run(self, command: str) -> Given:
        last: tuple[Flag, str] | None = None
        while (word := self._peek()) is not None:
            self._at += 1
            if word == "--":
                if (extra := self._peek()) is not None:
                    raise UserError(f"profile takes options only, so {extra!r} after -- has no meaning.")
                break
            if not _is_flag(word):
                raise _stray(word, last)
            spelled, equals, text = word.partition("=")
            row = _row(spelled)
            if isinstance(row, UnsupportedFlag):
                self._refused.append(spelled)
                self._following()
                continue
            self._take(row, spelled, text if equals else None)
            last = row, spelled
        if self._refused:
            raise _unbuilt(list(dict.fromkeys(self._refused)))
        return Given(self._values, self._spelled, shlex.join([*command.split(), *self._shown]))

    def _take(self, flag: Flag, spelled: str, text: str | None) -> None:
        if text is not None:
            value = read(flag, spelled, text)
            shown = _shown(flag, text, value)
            self._shown.append(f"{spelled}={shown}")
            self._keep(flag, spelled, value, shown)
            return
        self._shown.append(spelled)
        if flag.kind == "bool":
            self._keep(flag, spelled, flag.stores, "")
            return
        texts = self._following() if flag.many else self._following(most=1)
        if not texts:
            raise _missing(flag, spelled, self._peek())
        for each in texts:
            value = read(flag, spelled, each)
            shown = _shown(flag, each, value)
            self._shown.append(shown)
            self._keep(flag, spelled, value, shown)

    def _keep(self, flag: Flag, spelled: str, value: Any, shown: str) -> None:
        if flag.accumulates:
            if flag.target is not None:
                self._values.setdefault(flag.target, []).extend(value)
                self._spelled.setdefault(flag.target, spelled)
            return
        first, before, shown_before = self._seen.setdefault(flag.name, (spelled, value, shown))
        if before != value:
            both = (
                f"{first} is given twice" if first == spelled else f"{first} and {spelled} are the same option, given"
            )
            values = "" if flag.secret or flag.kind == "bool" else f" ({shown_before} and {shown})"
            raise UserError(f"{both} with different values{values}; keep one of them.")
        if flag.target is not None:
            self._values[flag.target] = value
            self._spelled[flag.target] = spelled

    def _peek(self) -> str | None:
        return self._words[self._at] if self._at < len(self._words) else None

    def _following(self, most: int | None = None) -> list[str]:
        """The words from here on that are values."""
        start = self._at
        while (word := self._peek()) is not None and not _is_flag(word) and (most is None or self._at < start + most):
            self._at += 1
        return list(self._words[start : self._at])


def _row(spelled: str) -> Flag | UnsupportedFlag:
    row = SPELLINGS.get(_dashed(spelled))
    if row is None:
        raise _unknown(spelled)
    return row


def _shown(flag: Flag, text: str, value: Any) -> str:
    """The value as the artifacts may show it."""
    if flag.kind == "headers":
        return redact_headers(text)
    if flag.secret:
        return REDACTED
    if flag.target in _WITH_QUERY:
        return redact_url(text)
    if flag.kind == "extra":
        fields = dict(value)
        clean = redact_fields(fields)
        if clean != fields:
            import json

            return json.dumps(clean)
    return text


def _stray(word: str, last: tuple[Flag, str] | None) -> UserError:
    if last is None:
        return UserError(f"Unexpected argument {word!r}: the options of profile start with --.")
    flag, spelled = last
    if flag.kind == "bool":
        if truth(word) is not None:
            return UserError(
                f"{spelled} takes no separate value: write {spelled} alone to turn it on, or {spelled}=false."
            )
        return UserError(f"Unexpected argument {word!r} after {spelled}, which takes no value.")
    if flag.commas:
        return UserError(f"{spelled} takes one value, so {word!r} is unexpected; write several as {spelled} a,b.")
    shown = "a second one" if flag.secret or flag.target in _WITH_QUERY else repr(word)
    return UserError(f"{spelled} takes one value, so {shown} is unexpected; put a value with spaces into quotes.")


def _missing(flag: Flag, spelled: str, follows: str | None) -> UserError:
    what = f" ({wanted(flag)})" if flag.kind in ("enum", "float", "int") else ""
    if follows is None or follows == "--":
        return UserError(f"{spelled} needs a value{what}.")
    name = follows.partition("=")[0]
    if _dashed(name) in SPELLINGS:
        return UserError(f"{spelled} needs a value{what}, but the option {name} follows it.")
    return UserError(
        f"{spelled} needs a value{what}, but an option follows it; write a value that starts with a dash as "
        f"{spelled}=VALUE."
    )


def _unbuilt(names: list[str]) -> UserError:
    if len(names) > 1:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        return UserError(
            f"{listed} are AIPerf options that this version of Penstock does not have yet; run without them."
        )
    row = SPELLINGS[_dashed(names[0])]
    hint = f" ({HINTS[row.name]})" if row.name in HINTS else ""
    return UserError(
        f"{names[0]} is an AIPerf option that this version of Penstock does not have yet; run without it{hint}."
    )


def _unknown(spelled: str) -> UserError:
    name = _dashed(spelled.lower())
    positive = SPELLINGS.get("--" + name.removeprefix("--no-"))
    if name.startswith("--no-") and isinstance(positive, Flag) and positive.kind == "bool":
        return UserError(f"There is no option {spelled}: leave {positive.name} out, or write {positive.name}=false.")
    if f"-{name}" in SPELLINGS:
        return UserError(f"There is no option {spelled}; did you mean -{name}?")
    short = SPELLINGS.get(spelled[:2])
    if not spelled.startswith("--") and isinstance(short, Flag) and short.kind != "bool":
        return UserError(f"Put a space between {spelled[:2]} and its value.")
    from penstock.settings.flag_suggestions import meant

    guess = meant(name)
    if guess is None:
        return UserError(f"There is no option {spelled}; `profile --help` lists them all.")
    late = (
        ", which this version of Penstock does not have yet"
        if isinstance(SPELLINGS.get(guess), UnsupportedFlag)
        else ""
    )
    return UserError(f"There is no option {spelled}; did you mean {guess}{late}?")


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NEGATIVE_NUMBER.match(word)


def _dashed(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
