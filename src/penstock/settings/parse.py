"""The command-line parser: reads arguments by the rows of a command.

The parser is Penstock's own: cyclopts, which AIPerf uses, needs 0.35 to 0.8 s to start with this many flags, and the table is
needed anyway, to refuse unsupported flags by name, for the help and for completion. It keeps AIPerf's rules: `-` and `_` are
alike in names and in choices, `--flag value` and `--flag=value` are alike, and booleans take no separate value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from penstock.errors import UserError
from penstock.secrets import REDACTED, redact_fields, redact_headers, redact_url
from penstock.settings.command_line import CommandLine
from penstock.settings.flag_values import ParsedArguments, parse_bool, read_value
from penstock.settings.flags.flag import Flag, UnsupportedFlag, by_spelling, expected_value

_NEGATIVE_NUMBER = re.compile(r"-(?:[0-9]|\.[0-9]|inf\Z)")


def parse(command: CommandLine, words: Sequence[str], program: str = "penstock") -> ParsedArguments:
    """Parse the words after the command's name. Raise `UserError` for any mistake in them."""
    for number, word in enumerate(words, 1):
        if not word.isascii() and not _is_utf8(word):
            raise UserError(f"Argument {number} is not valid UTF-8.")
    return _Parser(command, words, program).run()


class _Parser:
    def __init__(self, command: CommandLine, words: Sequence[str], program: str) -> None:
        self._command = command
        self._program = program
        self._called = f"{program} {command.name}"
        self._rows = by_spelling((*command.unsupported, *command.flags))
        self._words = words
        self._next = 0
        self._values: dict[str, Any] = {}
        self._spellings: dict[str, str] = {}
        self._positionals = list(command.positionals)
        """Positionals that take the next arguments."""
        self._single: dict[str, tuple[str, Any, str]] = {}
        """For each single-value flag seen, by name: its spelling, its value, and the value as it may be shown."""
        self._shown: list[str] = []
        self._unsupported: list[str] = []

    def run(self) -> ParsedArguments:
        last: tuple[Flag, str] | None = None
        flags_end = False
        while (word := self._peek()) is not None:
            self._next += 1
            if word == "--" and not flags_end:
                flags_end = True
            elif (flags_end or not _is_flag(word)) and self._positionals:
                self._fill_positional(word)
            elif flags_end and not self._command.positionals:
                raise UserError(f"{self._command.name} takes options only, so {word!r} after -- is unexpected.")
            elif flags_end or not _is_flag(word):
                raise self._unexpected_error(word, last)
            else:
                spelling, equals, text = word.partition("=")
                row = self._row(spelling)
                if isinstance(row, UnsupportedFlag):
                    self._unsupported.append(spelling)
                    self._following()
                    continue
                self._take(row, spelling, text if equals else None)
                last = row, spelling
        if self._unsupported:
            raise self._unsupported_error(list(dict.fromkeys(self._unsupported)))
        for positional in self._positionals:
            if positional.required and positional.target not in self._values:
                raise UserError(f"{positional.name} is missing: name {positional.help}; see `{self._called} --help`.")
        command = shlex.join([*self._called.split(), *self._shown])
        return ParsedArguments(self._values, self._spellings, command, self._program)

    def _fill_positional(self, text: str) -> None:
        row = self._positionals[0]
        value = read_value(row.flag, row.name, text)
        if row.repeated:
            self._values.setdefault(row.target, []).append(value)
        else:
            self._values[row.target] = value
            del self._positionals[0]
        self._spellings[row.target] = row.name
        self._shown.append(text)

    def _take(self, flag: Flag, spelling: str, text: str | None) -> None:
        if text is not None:
            self._shown.append(f"{spelling}={self._read(flag, spelling, text)}")
            return
        self._shown.append(spelling)
        if flag.kind == "bool":
            self._keep(flag, spelling, flag.stores(spelling), "")
            return
        texts = self._following(limit=None if flag.takes_several else 1)
        if not texts and flag.implied is not None:
            self._keep(flag, spelling, flag.implied, flag.implied)
        elif not texts:
            raise self._missing_value_error(flag, spelling)
        self._shown += [self._read(flag, spelling, value_text) for value_text in texts]

    def _read(self, flag: Flag, spelling: str, text: str) -> str:
        """Keep the value of `text`, and return the text as it may be shown."""
        value = read_value(flag, spelling, text)
        shown = _shown(flag, text, value)
        self._keep(flag, spelling, value, shown)
        return shown

    def _keep(self, flag: Flag, spelling: str, value: Any, shown: str) -> None:
        if flag.accumulates:
            if flag.target is not None:
                self._values.setdefault(flag.target, []).extend(value)
                self._spellings.setdefault(flag.target, spelling)
            return
        first, before, shown_before = self._single.setdefault(flag.name, (spelling, value, shown))
        if before != value:
            both = (
                f"{first} is given twice" if first == spelling else f"{first} and {spelling} are the same option, given"
            )
            values = "" if flag.secret or flag.kind == "bool" else f" ({shown_before} and {shown})"
            raise UserError(f"{both} with different values{values}; keep one of them.")
        if flag.target is not None:
            self._values[flag.target] = value
            self._spellings[flag.target] = spelling

    def _peek(self) -> str | None:
        return self._words[self._next] if self._next < len(self._words) else None

    def _following(self, limit: int | None = None) -> list[str]:
        """Consume and return the values that follow, at most `limit`."""
        start = self._next
        while (
            (word := self._peek()) is not None and not _is_flag(word) and (limit is None or self._next < start + limit)
        ):
            self._next += 1
        return list(self._words[start : self._next])

    def _row(self, spelling: str) -> Flag | UnsupportedFlag:
        row = self._rows.get(_dashed(spelling))
        if row is None:
            raise self._unknown_error(spelling)
        return row

    def _unexpected_error(self, word: str, last: tuple[Flag, str] | None) -> UserError:
        name = self._command.name
        if last is None or (self._command.positionals and last[0].kind != "bool"):
            takes = " ".join(row.name for row in self._command.positionals)
            what = f"{name} takes {takes} and options" if takes else f"the options of {name} start with --"
            hidden = last is not None and (last[0].secret or last[0].url)
            return UserError(f"Unexpected argument{'' if hidden else f' {word!r}'}: {what}.")
        flag, spelling = last
        if flag.kind == "bool":
            if parse_bool(word) is not None:
                return UserError(
                    f"{spelling} takes no separate value: write {spelling} alone to turn it on, or {spelling}=false."
                )
            return UserError(f"Unexpected argument {word!r} after {spelling}, which takes no value.")
        if flag.comma_separated:
            return UserError(f"{spelling} takes one value, so {word!r} is unexpected; write several as {spelling} a,b.")
        shown = "a second one" if flag.secret or flag.url else repr(word)
        return UserError(f"{spelling} takes one value, so {shown} is unexpected; put a value with spaces in quotes.")

    def _missing_value_error(self, flag: Flag, spelling: str) -> UserError:
        expected = f" ({expected_value(flag)})" if flag.kind in ("enum", "float", "int") else ""
        follows = self._peek()
        if follows is None or follows == "--":
            return UserError(f"{spelling} needs a value{expected}.")
        name = follows.partition("=")[0]
        if _dashed(name) in self._rows:
            return UserError(f"{spelling} needs a value{expected}, but the option {name} follows it.")
        return UserError(
            f"{spelling} needs a value{expected}, but an option follows it; write a value that starts with a dash as "
            f"{spelling}=VALUE."
        )

    def _unsupported_error(self, names: list[str]) -> UserError:
        if len(names) > 1:
            listed = f"{', '.join(names[:-1])} and {names[-1]}"
            return UserError(
                f"{listed} are AIPerf options that this version of Penstock does not have yet; run without them."
            )
        row = self._rows[_dashed(names[0])]
        hint = f" ({row.hint})" if isinstance(row, UnsupportedFlag) and row.hint else ""
        return UserError(
            f"{names[0]} is an AIPerf option that this version of Penstock does not have yet; run without it{hint}."
        )

    def _unknown_error(self, spelling: str) -> UserError:
        name = _dashed(spelling.lower())
        positive = self._rows.get("--" + name.removeprefix("--no-"))
        if name.startswith("--no-") and isinstance(positive, Flag) and positive.kind == "bool":
            return UserError(
                f"There is no option {spelling}: leave {positive.name} out, or write {positive.name}=false."
            )
        if f"-{name}" in self._rows:
            return UserError(f"There is no option {spelling}; did you mean -{name}?")
        short = self._rows.get(spelling[:2])
        if not spelling.startswith("--") and isinstance(short, Flag) and short.kind != "bool":
            return UserError(f"Put a space between {spelling[:2]} and its value.")
        from penstock.settings.flag_suggestions import suggest_flag

        unsupported = [spelling for row in self._command.unsupported for spelling in row.spellings]
        guess = suggest_flag(
            name, [spelling for flag in self._command.flags for spelling in flag.spellings], unsupported
        )
        if guess is None:
            return UserError(f"There is no option {spelling}; see `{self._called} --help`.")
        note = ", which this version of Penstock does not have yet" if guess in unsupported else ""
        return UserError(f"There is no option {spelling}; did you mean {guess}{note}?")


def _shown(flag: Flag, text: str, value: Any) -> str:
    """Return the value as messages and artifacts may show it."""
    if flag.kind == "headers":
        return redact_headers(text)
    if flag.secret:
        return REDACTED
    if flag.url:
        return redact_url(text)
    if flag.kind == "extra":
        fields = dict(value)
        redacted = redact_fields(fields)
        if redacted != fields:
            import json

            return json.dumps(redacted)
    return text


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NEGATIVE_NUMBER.match(word)


def _dashed(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


def _is_utf8(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
