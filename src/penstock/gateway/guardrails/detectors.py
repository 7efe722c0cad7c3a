"""The personal data and the secrets that a pii guardrail knows by name.

Each detector answers two questions about a text that may still grow: where is the next match, and from which position on
could more text change the answer. `reach` is the longest match in characters; with the few characters that a boundary
looks ahead it bounds how much of a stream is ever held back for the detector. All of them read ASCII forms only.

| detector      | finds                                                                         | reach |
|---------------|-------------------------------------------------------------------------------|-------|
| email         | local part up to 64, up to eight labels, a top-level domain of letters        | 601   |
| china_mobile  | 1[3-9] and nine digits, in 3-4-4 groups or not, with +86, 0086 or 86 or not   | 18    |
| china_id_card | 18 characters with a possible date and a right check character                | 18    |
| bank_card     | 13 to 19 digits, plain or in the usual groups, that pass Luhn's check         | 23    |
| us_ssn        | 3-2-4 digits with hyphens or spaces, no area 000, 666 or 9xx                  | 11    |
| ip_address    | IPv4, and IPv6 with a decimal digit in it                                     | 45    |
| api_key       | keys that providers mark with a prefix (sk-, AKIA, ghp_, xoxb-, AIza, hf_, …) | 271   |
| jwt           | three base64url parts, the first two of them JSON objects                     | 8198  |
| private_key   | a PEM private key, also one whose end is missing                              | 8320  |
"""

from __future__ import annotations

import string
from collections.abc import Callable
from ipaddress import AddressValueError, IPv6Address
from typing import Protocol

# not `re`: it has no way to skip ahead to the one digit in a page of prose, and needs 100 to 600 µs for each of the
# numeric detectors on 4 KB where this one needs 2 to 7
import regex

from penstock.gateway.guardrails.literals import Literals

__all__ = ["DETECTORS", "MARGIN", "Finder", "Match"]

Match = tuple[int, int, int, int]
"""Where a match begins and ends, and where the part of it that a mask replaces begins and ends."""

MARGIN = 2
"""Characters behind a match that can decide about it: one for a boundary, two for `$` before a last line end."""

_STRIDE = 4096
_OVERLAP = 64
"""More than the longest thing that is looked for in strides."""

_ALNUM = string.ascii_letters + string.digits


class Finder(Protocol):
    """A control character is to it what the end of a text is, so several texts can be searched at once. Its time is about
    proportional to the text, whatever that says."""

    reach: int | None
    numeric: bool
    """Each match begins with a digit or a plus sign."""

    def find(self, text: str, position: int) -> Match | None:
        """The leftmost match that begins at `position` or behind it."""

    def open_from(self, text: str, low: int) -> int:
        """The first position, not below `low`, at which a match could begin or change when more text follows."""


class _Detector:
    """Matches consist of the characters in `run`, so whatever lies before the last such run is decided."""

    __slots__ = ("_regex", "_run", "_skip", "_valid", "numeric", "reach")

    def __init__(
        self,
        pattern: str,
        *,
        reach: int,
        run: str,
        skip: str = "",
        valid: Callable[[regex.Match[str]], int | None] | None = None,
    ) -> None:
        self.reach: int | None = reach
        self._regex = regex.compile(pattern, regex.ASCII)
        self._run = run
        self._skip = skip
        self.numeric = run.startswith(string.digits)
        self._valid = valid

    def find(self, text: str, position: int) -> Match | None:
        while (match := self._regex.search(text, position)) is not None:
            start, end = match.span()
            if self._valid is not None:
                checked = self._valid(match)
                if checked is None:
                    position = start + 1
                    continue
                end = checked
            return start, end, start, end
        return None

    def open_from(self, text: str, low: int) -> int:
        length = len(text)
        start = len(text.rstrip(self._run))
        if start == length:
            return length
        if self._skip:
            start = length - len(text[start:].lstrip(self._skip))
        assert self.reach is not None
        return max(low, start, length - self.reach - MARGIN)


class _Prefixed(_Detector):
    """Begins with one of a few fixed strings, so that only a word with one of them in it is looked at."""

    __slots__ = ("_only", "_prefixes")

    def __init__(self, pattern: str, *, reach: int, run: str, prefixes: tuple[str, ...]) -> None:
        super().__init__(pattern, reach=reach, run=run)
        self._prefixes = Literals(prefixes)
        self._only = prefixes[0] if len(prefixes) == 1 else None

    def find(self, text: str, position: int) -> Match | None:
        # in strides, so that a text full of keys is not read to its end for each of them
        for low in range(position, len(text), _STRIDE):
            found = self._starts(text[low : low + _STRIDE + _OVERLAP])
            for at in found:
                match = self._regex.match(text, low + at)
                if match is not None:
                    start, end = match.span()
                    return start, end, start, end
        return None

    def open_from(self, text: str, low: int) -> int:
        if self._starts(text[low:]):
            start = super().open_from(text, low)
            if self._starts(text[start:]):
                return start
            low = start
        return len(text) - len(self._prefixes.rest(text[low:]))

    def _starts(self, text: str) -> list[int]:
        if self._only is not None and self._only not in text:
            return []
        found = self._prefixes.find(text)
        return sorted([start for _, start, _ in found]) if found else []


class _Email:
    """Found from its `@`: a search from the left would try each word of the text."""

    __slots__ = ("numeric", "reach")

    _LOCAL = _ALNUM + "._%+-"
    _RUN = _LOCAL + "@"
    _DOMAIN = regex.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}")

    def __init__(self) -> None:
        self.reach: int | None = 64 + 1 + 8 * 64 + 24
        self.numeric = False

    def find(self, text: str, position: int) -> Match | None:
        at = text.find("@", position)
        while at >= 0:
            domain = self._DOMAIN.match(text, at + 1)
            if domain is not None:
                before = text[max(position, at - 64) : at]
                local = before[len(before.rstrip(self._LOCAL)) :].lstrip(".%+-")
                if local:
                    start, end = at - len(local), domain.end()
                    return start, end, start, end
            at = text.find("@", at + 1)
        return None

    def open_from(self, text: str, low: int) -> int:
        assert self.reach is not None
        return max(low, len(text.rstrip(self._RUN)), len(text) - self.reach - MARGIN)


_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"


class _IpAddress:
    __slots__ = ("numeric", "reach")

    _RUN = string.hexdigits + ":."
    _V4 = regex.compile(rf"(?<![0-9A-Za-z.]){_OCTET}(?:\.{_OCTET}){{3}}(?![0-9A-Za-z])(?!\.[0-9])", regex.ASCII)
    _V6 = regex.compile(r"(?<![0-9A-Za-z:.])[0-9A-Fa-f:.]{3,46}(?![0-9A-Za-z:.])", regex.ASCII)

    def __init__(self) -> None:
        self.reach: int | None = 46
        self.numeric = False

    def find(self, text: str, position: int) -> Match | None:
        if text.find(".", position) < 0 and text.find(":", position) < 0:
            return None
        # in strides, so that a text full of one kind is not read to its end for each of them in search of the other
        for low in range(position, len(text), _STRIDE):
            high = low + _STRIDE
            match = self._V4.search(text, low, high + _OVERLAP)
            start, end = match.span() if match is not None else (high, 0)
            colon = text.find(":", low, min(start, high) + 5)
            while colon >= 0:
                # an address has its first colon behind at most four digits
                before = text[max(low, colon - 4) : colon]
                begin = colon - len(before) + len(before.rstrip(string.hexdigits))
                if begin >= start:
                    break
                match = self._V6.match(text, begin)
                if match is not None and (size := self._checked(match[0])):
                    start, end = begin, begin + size
                    break
                colon = text.find(":", colon + 1, min(start, high) + 5)
            if end and start < high:
                return start, end, start, end
        return None

    def _checked(self, text: str) -> int:
        text = text.rstrip(".")
        if text.endswith(":") and not text.endswith("::"):
            text = text[:-1]
        if not any(character in string.digits for character in text):
            return 0  # a::b is as often a name in a program
        try:
            IPv6Address(text)
        except AddressValueError:
            return 0
        return len(text)

    def open_from(self, text: str, low: int) -> int:
        length = len(text)
        start = len(text.rstrip(self._RUN))
        if start and text[start - 1] in _ALNUM:
            # the run is the end of a word; only behind a colon can an address of the first kind begin
            start = text.find(":", start) + 1 or length
        assert self.reach is not None
        return max(low, start, length - self.reach - MARGIN)


class _PrivateKey:
    __slots__ = ("numeric", "reach")

    _BEGIN = "-----BEGIN "
    _HEAD = regex.compile(r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,2}PRIVATE KEY(?: BLOCK)?-----")
    _END = regex.compile(r"-----END (?:[A-Z0-9]{1,16} ){0,2}PRIVATE KEY(?: BLOCK)?-----")
    _CUT = regex.compile(r"(?:[A-Za-z0-9+/=]{16,}|\\[rn]|\s)*(?:[A-Za-z0-9+/=]+\Z)?")
    _LONGEST_HEAD = 72
    _BODY = 8192

    def __init__(self) -> None:
        self.reach: int | None = self._BODY + 128
        self.numeric = False

    def find(self, text: str, position: int) -> Match | None:
        if text.find(self._BEGIN, position) < 0:
            return None
        head = self._HEAD.search(text, position)
        if head is None:
            return None
        assert self.reach is not None
        start, limit = head.start(), min(len(text), head.start() + self.reach)
        last = self._END.search(text, head.end(), limit)
        if last is None:
            last = self._CUT.match(text, head.end(), limit)
        end = last.end() if last is not None else head.end()
        return start, end, start, end

    def open_from(self, text: str, low: int) -> int:
        length = len(text)
        assert self.reach is not None
        low = max(low, length - self.reach - MARGIN)
        start = text.find(self._BEGIN, low)
        while start >= 0:
            head = self._HEAD.match(text, start)
            if head is None:
                if length - start < self._LONGEST_HEAD:
                    return start
                start = text.find(self._BEGIN, start + 1)
            elif (last := self._END.search(text, head.end())) is None:
                return start
            else:
                start = text.find(self._BEGIN, last.end())
        if text and text[-1] in self._BEGIN:
            for size in range(min(len(self._BEGIN) - 1, length - low), 0, -1):
                if text.endswith(self._BEGIN[:size]):
                    return length - size
        return length


def _luhn(digits: str) -> bool:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = ord(digit) - 48
        if place % 2:
            value = value * 2 - 9 if value > 4 else value * 2
        total += value
    return total % 10 == 0


def _bank_card(match: regex.Match[str]) -> int | None:
    if _luhn(match[0].replace(" ", "").replace("-", "")):
        return match.end()
    if match[2] is not None:
        # four groups of four, with another number behind them
        end = match.start(2)
        if _luhn(match.string[match.start() : end].replace(" ", "").replace("-", "")):
            return end
    return None


def _china_id_card(match: regex.Match[str]) -> int | None:
    digits = match[0]
    total = sum((ord(digit) - 48) * (2 ** (17 - place) % 11) for place, digit in enumerate(digits[:17]))
    return match.end() if "10X98765432"[total % 11] == digits[17].upper() else None


DETECTORS: dict[str, Finder] = {
    "email": _Email(),
    "china_mobile": _Detector(
        r"(?<![0-9])(?:(?:\+|00)?86[ -]?)?1[3-9][0-9](?:[ -]?[0-9]{4}){2}(?![0-9])",
        reach=18,
        run=string.digits + "+- ",
        skip="- ",
    ),
    "china_id_card": _Detector(
        r"(?<![0-9])[1-9][0-9]{5}(?:18|19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])[0-9]{3}[0-9Xx](?![0-9])",
        reach=18,
        run=string.digits + "Xx",
        skip="Xx",
        valid=_china_id_card,
    ),
    "bank_card": _Detector(
        r"(?<![0-9])(?:[1-9][0-9]{12,18}"
        r"|[1-9][0-9]{3}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}(\1[0-9]{1,3})?"
        r"|[1-9][0-9]{3}([ -])[0-9]{6}\3[0-9]{4,5})(?![0-9])",
        reach=23,
        run=string.digits + "- ",
        skip="- ",
        valid=_bank_card,
    ),
    "us_ssn": _Detector(
        r"(?<![0-9])(?<![0-9]-)(?!000|666|9)[0-9]{3}([- ])(?!00)[0-9]{2}\1(?!0000)[0-9]{4}(?!-?[0-9])",
        reach=11,
        run=string.digits + "- ",
        skip="- ",
    ),
    "ip_address": _IpAddress(),
    "api_key": _Prefixed(
        r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{16,256}"
        r"|[prs]k_(?:live|test)_[A-Za-z0-9]{16,255}"
        r"|A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])"
        r"|LTAI[A-Za-z0-9]{12,30}(?![A-Za-z0-9])"
        r"|gh[oprsu]_[A-Za-z0-9]{36,255}"
        r"|github_pat_[A-Za-z0-9_]{22,255}"
        r"|glpat-[A-Za-z0-9_-]{20,255}"
        r"|xox[abeoprs]-[A-Za-z0-9-]{10,255}"
        r"|AIza[A-Za-z0-9_-]{35}"
        r"|hf_[A-Za-z0-9]{30,255}"
        r"|npm_[A-Za-z0-9]{36})",
        reach=271,
        run=_ALNUM + "_-",
        prefixes=(
            *("sk-", "sk_live_", "rk_live_", "pk_live_", "sk_test_", "rk_test_", "pk_test_", "AKIA", "ASIA", "LTAI"),
            *("gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xox", "AIza", "hf_", "npm_"),
        ),
    ),
    "jwt": _Prefixed(
        r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{5,1021}\.eyJ[A-Za-z0-9_-]{2,6141}\.[A-Za-z0-9_-]{0,1024}",
        reach=8198,
        run=_ALNUM + "_-.",
        prefixes=("eyJ",),
    ),
    "private_key": _PrivateKey(),
}
