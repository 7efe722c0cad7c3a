"""The built-in detectors of pii guardrails, for personal data and secrets.

Each detector answers two questions about a text that may still grow: where the next match is, and from which position on
more text could change the answer. `max_length` is the length of the longest match. Together with the few characters that a
boundary looks ahead, it bounds how much of a stream is held back for the detector. Detectors match ASCII forms only.

| detector      | finds                                                                         | max_length |
|---------------|-------------------------------------------------------------------------------|------------|
| email         | local part up to 64, up to eight labels, a top-level domain of letters        | 601        |
| china_mobile  | 1[3-9] and nine digits, in 3-4-4 groups or not, with +86, 0086 or 86 or not   | 18         |
| china_id_card | 18 characters with a possible date and a valid check character                | 18         |
| bank_card     | 13 to 19 digits, plain or in the usual groups, that pass the Luhn check       | 23         |
| us_ssn        | 3-2-4 digits with hyphens or spaces, no area 000, 666 or 9xx                  | 11         |
| ip_address    | IPv4, and IPv6 with a decimal digit in it                                     | 45         |
| api_key       | keys that providers mark with a prefix (sk-, AKIA, ghp_, xoxb-, AIza, hf_, …) | 271        |
| jwt           | three base64url parts, the first two of them JSON objects                     | 8198       |
| private_key   | a PEM private key, even if its end is missing                                 | 8320       |
"""

from __future__ import annotations

import string
from collections.abc import Callable
from ipaddress import AddressValueError, IPv6Address
from typing import Protocol

# Not `re`, which cannot skip ahead to the next digit in prose: a numeric detector takes 100 to 600 µs on 4 KB with `re`,
# and 2 to 7 µs with `regex`.
import regex

from penstock.gateway.guardrails.literals import Literals
from penstock.gateway.resources.snapshot import Detector

Match = tuple[int, int, int, int]
"""Start and end of a match, and start and end of the part that a mask replaces."""

MARGIN = 2
"""Number of characters after a match that can affect it: one for a boundary, two for `$` before a final newline."""

_STRIDE = 4096
_OVERLAP = 64
"""Longer than anything that is searched for in strides."""

_ALNUM = string.ascii_letters + string.digits


class Finder(Protocol):
    """The interface of detectors.

    A detector treats a control character like the end of the text, so several texts can be searched at once. Its time is
    about linear in the length of the text, whatever the text is.
    """

    numeric: bool
    """True if every match starts with a digit or a plus sign."""

    @property
    def max_length(self) -> int | None: ...

    def find(self, text: str, position: int) -> Match | None:
        """Return the leftmost match that starts at or after `position`."""

    def undecided_from(self, text: str, low: int) -> int:
        """Return the first position, not below `low`, at which a match could start or change if more text follows."""


class _Detector:
    """A regex whose matches consist of the characters in `alphabet`, so text before the last run of them is decided.

    A match cannot start with a character in `non_initial`. `validate` returns the end of a match, or None to reject it.
    """

    def __init__(
        self,
        pattern: str,
        *,
        max_length: int,
        alphabet: str,
        non_initial: str = "",
        validate: Callable[[regex.Match[str]], int | None] | None = None,
    ) -> None:
        self.max_length = max_length
        self._regex = regex.compile(pattern, regex.ASCII)
        self._alphabet = alphabet
        self._non_initial = non_initial
        self.numeric = alphabet.startswith(string.digits)
        self._validate = validate

    def find(self, text: str, position: int) -> Match | None:
        while (match := self._regex.search(text, position)) is not None:
            start, end = match.span()
            if self._validate is not None:
                checked = self._validate(match)
                if checked is None:
                    position = start + 1
                    continue
                end = checked
            return start, end, start, end
        return None

    def undecided_from(self, text: str, low: int) -> int:
        length = len(text)
        start = len(text.rstrip(self._alphabet))
        if start == length:
            return length
        if self._non_initial:
            start = length - len(text[start:].lstrip(self._non_initial))
        return max(low, start, length - self.max_length - MARGIN)


class _PrefixDetector(_Detector):
    """A regex whose matches start with one of a few prefixes. The regex is tried only at their occurrences."""

    def __init__(self, pattern: str, *, max_length: int, alphabet: str, prefixes: tuple[str, ...]) -> None:
        super().__init__(pattern, max_length=max_length, alphabet=alphabet)
        self._prefixes = Literals(prefixes)
        self._single_prefix = prefixes[0] if len(prefixes) == 1 else None

    def find(self, text: str, position: int) -> Match | None:
        # In strides, so that a text full of keys is not searched to its end for each key.
        for low in range(position, len(text), _STRIDE):
            starts = self._starts(text[low : low + _STRIDE + _OVERLAP])
            for prefix_start in starts:
                match = self._regex.match(text, low + prefix_start)
                if match is not None:
                    start, end = match.span()
                    return start, end, start, end
        return None

    def undecided_from(self, text: str, low: int) -> int:
        if self._starts(text[low:]):
            start = super().undecided_from(text, low)
            if self._starts(text[start:]):
                return start
            low = start
        return len(text) - len(self._prefixes.partial_suffix(text[low:]))

    def _starts(self, text: str) -> list[int]:
        if self._single_prefix is not None and self._single_prefix not in text:
            return []
        starts = self._prefixes.find(text)
        return sorted([start for _, start, _ in starts]) if starts else []


class _EmailDetector:
    """Finds email addresses from their `@`: a search from the left would try each word of the text."""

    _LOCAL = _ALNUM + "._%+-"
    _ALPHABET = _LOCAL + "@"
    _DOMAIN = regex.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}")

    max_length = 64 + 1 + 8 * 64 + 24
    numeric = False

    def find(self, text: str, position: int) -> Match | None:
        at_sign = text.find("@", position)
        while at_sign >= 0:
            domain = self._DOMAIN.match(text, at_sign + 1)
            if domain is not None:
                before = text[max(position, at_sign - 64) : at_sign]
                local = before[len(before.rstrip(self._LOCAL)) :].lstrip(".%+-")
                if local:
                    start, end = at_sign - len(local), domain.end()
                    return start, end, start, end
            at_sign = text.find("@", at_sign + 1)
        return None

    def undecided_from(self, text: str, low: int) -> int:
        return max(low, len(text.rstrip(self._ALPHABET)), len(text) - self.max_length - MARGIN)


_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"


class _IpAddressDetector:
    _ALPHABET = string.hexdigits + ":."
    _V4 = regex.compile(rf"(?<![0-9A-Za-z.]){_OCTET}(?:\.{_OCTET}){{3}}(?![0-9A-Za-z])(?!\.[0-9])", regex.ASCII)
    _V6 = regex.compile(r"(?<![0-9A-Za-z:.])[0-9A-Fa-f:.]{3,46}(?![0-9A-Za-z:.])", regex.ASCII)

    max_length = 46
    numeric = False

    def find(self, text: str, position: int) -> Match | None:
        if text.find(".", position) < 0 and text.find(":", position) < 0:
            return None
        # In strides, so that a text full of IPv4 addresses is not searched to its end for IPv6 at each one, or vice versa.
        for low in range(position, len(text), _STRIDE):
            high = low + _STRIDE
            match = self._V4.search(text, low, high + _OVERLAP)
            start, end = match.span() if match is not None else (high, 0)
            colon = text.find(":", low, min(start, high) + 5)
            while colon >= 0:
                # the first colon of an address follows at most four digits
                before = text[max(low, colon - 4) : colon]
                begin = colon - len(before) + len(before.rstrip(string.hexdigits))
                if begin >= start:
                    break
                match = self._V6.match(text, begin)
                if match is not None and (size := self._ipv6_length(match[0])):
                    start, end = begin, begin + size
                    break
                colon = text.find(":", colon + 1, min(start, high) + 5)
            if end and start < high:
                return start, end, start, end
        return None

    def _ipv6_length(self, text: str) -> int:
        text = text.rstrip(".")
        if text.endswith(":") and not text.endswith("::"):
            text = text[:-1]
        if not any(character in string.digits for character in text):
            return 0  # a::b is often a qualified name in source code
        try:
            IPv6Address(text)
        except AddressValueError:
            return 0
        return len(text)

    def undecided_from(self, text: str, low: int) -> int:
        length = len(text)
        start = len(text.rstrip(self._ALPHABET))
        if start and text[start - 1] in _ALNUM:
            # the run is the end of a word; an address can start only after a colon in it
            start = text.find(":", start) + 1 or length
        return max(low, start, length - self.max_length - MARGIN)


class _PrivateKeyDetector:
    _BEGIN = "-----BEGIN "
    _HEAD = regex.compile(r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,2}PRIVATE KEY(?: BLOCK)?-----")
    _END = regex.compile(r"-----END (?:[A-Z0-9]{1,16} ){0,2}PRIVATE KEY(?: BLOCK)?-----")
    _CUT = regex.compile(r"(?:[A-Za-z0-9+/=]{16,}|\\[rn]|\s)*(?:[A-Za-z0-9+/=]+\Z)?")
    _LONGEST_HEAD = 72
    _BODY = 8192
    max_length = _BODY + 128
    numeric = False

    def find(self, text: str, position: int) -> Match | None:
        if text.find(self._BEGIN, position) < 0:
            return None
        head = self._HEAD.search(text, position)
        if head is None:
            return None
        start, limit = head.start(), min(len(text), head.start() + self.max_length)
        last = self._END.search(text, head.end(), limit)
        if last is None:
            last = self._CUT.match(text, head.end(), limit)
        end = last.end() if last is not None else head.end()
        return start, end, start, end

    def undecided_from(self, text: str, low: int) -> int:
        length = len(text)
        low = max(low, length - self.max_length - MARGIN)
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
    for index, digit in enumerate(reversed(digits)):
        value = ord(digit) - 48
        if index % 2:
            value = value * 2 - 9 if value > 4 else value * 2
        total += value
    return total % 10 == 0


def _bank_card(match: regex.Match[str]) -> int | None:
    if _luhn(match[0].replace(" ", "").replace("-", "")):
        return match.end()
    if match[2] is not None:
        # four groups of four digits, followed by another number
        end = match.start(2)
        if _luhn(match.string[match.start() : end].replace(" ", "").replace("-", "")):
            return end
    return None


def _china_id_card(match: regex.Match[str]) -> int | None:
    digits = match[0]
    total = sum((ord(digit) - 48) * (2 ** (17 - index) % 11) for index, digit in enumerate(digits[:17]))
    return match.end() if "10X98765432"[total % 11] == digits[17].upper() else None


DETECTORS: dict[Detector, Finder] = {
    "email": _EmailDetector(),
    "china_mobile": _Detector(
        r"(?<![0-9])(?:(?:\+|00)?86[ -]?)?1[3-9][0-9](?:[ -]?[0-9]{4}){2}(?![0-9])",
        max_length=18,
        alphabet=string.digits + "+- ",
        non_initial="- ",
    ),
    "china_id_card": _Detector(
        r"(?<![0-9])[1-9][0-9]{5}(?:18|19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])[0-9]{3}[0-9Xx](?![0-9])",
        max_length=18,
        alphabet=string.digits + "Xx",
        non_initial="Xx",
        validate=_china_id_card,
    ),
    "bank_card": _Detector(
        r"(?<![0-9])(?:[1-9][0-9]{12,18}"
        r"|[1-9][0-9]{3}([ -])[0-9]{4}\1[0-9]{4}\1[0-9]{4}(\1[0-9]{1,3})?"
        r"|[1-9][0-9]{3}([ -])[0-9]{6}\3[0-9]{4,5})(?![0-9])",
        max_length=23,
        alphabet=string.digits + "- ",
        non_initial="- ",
        validate=_bank_card,
    ),
    "us_ssn": _Detector(
        r"(?<![0-9])(?<![0-9]-)(?!000|666|9)[0-9]{3}([- ])(?!00)[0-9]{2}\1(?!0000)[0-9]{4}(?!-?[0-9])",
        max_length=11,
        alphabet=string.digits + "- ",
        non_initial="- ",
    ),
    "ip_address": _IpAddressDetector(),
    "api_key": _PrefixDetector(
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
        max_length=271,
        alphabet=_ALNUM + "_-",
        prefixes=(
            *("sk-", "sk_live_", "rk_live_", "pk_live_", "sk_test_", "rk_test_", "pk_test_", "AKIA", "ASIA", "LTAI"),
            *("gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xox", "AIza", "hf_", "npm_"),
        ),
    ),
    "jwt": _PrefixDetector(
        r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{5,1021}\.eyJ[A-Za-z0-9_-]{2,6141}\.[A-Za-z0-9_-]{0,1024}",
        max_length=8198,
        alphabet=_ALNUM + "_-.",
        prefixes=("eyJ",),
    ),
    "private_key": _PrivateKeyDetector(),
}
