"""The normalised form of a text: what a reader sees, in plain letters.

Each character is replaced on its own, so that the form of a growing text grows with it and positions can be mapped back:
by its compatibility form (NFKC: full-width, mathematical and circled letters), by the Latin letter that it looks like, or
by nothing if it is invisible (zero-width characters, soft hyphens, direction marks, variation selectors), a control character
or a combining mark of no particular script. ASCII without control characters is its own normalised form.

The table of look-alikes is our own: the Cyrillic, Greek, Armenian, Cherokee, Lisu and phonetic letters that most fonts draw
like an ASCII letter. Packages with the Unicode consortium's table are unmaintained, and its 6,000 entries also equate
characters that readers tell apart (`m` and `rn`, `1` and `l`).
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Sequence

MAX_IGNORABLES = 64
"""An enforcing guardrail blocks a text with more invisible characters in a row."""

IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\u0334-\u0338"
)
"""A character class: Unicode's Default_Ignorable_Code_Point, and the marks that strike a letter through."""

TOO_MANY_IGNORABLES = re.compile(f"[{IGNORABLE}]{{{MAX_IGNORABLES + 1}}}")
_CONTROLS = bytes((*range(9), *range(14, 32), 127))
"""ASCII control characters that are no white space."""
_SHORT = 64
_MARKS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
"""Combining marks for letters of any script. Those of Hebrew, Arabic or Indian scripts are part of the spelling."""
_IS_DROPPED = re.compile(f"[{IGNORABLE}{_MARKS}{re.escape(_CONTROLS.decode())}\x80-\x84\x86-\x9f]").match

_LOOK_ALIKES = (
    # Cyrillic
    ("АВЕЅІЈКМНОРСТХҮԌԚԜЗаеѕіјорсухһԁԛԝӏѵкмтгп", "ABESIJKMHOPCTXYGQW3aesijopcyxhdqwlvkmtrn"),
    # Greek
    ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹϳαικνορτυχϲϱ", "ABEZHIKMNOPTYXCjaikvoptuxcp"),
    # Armenian
    ("ՍՏՕԼօսոհցզյ", "USOLounhgqj"),
    # Cherokee
    ("ᎪᏴᏟᎠᎬᎻᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᏃᏀᎥ", "ABCDEHJKLMPRSTVWZGi"),
    # Lisu
    ("ꓐꓑꓓꓔꓖꓗꓙꓚꓜꓝꓟꓠꓡꓢꓣꓦꓧꓪꓫꓬꓮꓰꓲꓳꓴ", "BPDTGKJCZFMNLSRVHWXYAEIOU"),
    # phonetic and small capital letters
    ("ɑɡɩɪıȷʀʏɴʟʜɢʙᴀᴄᴅᴇᴊᴋᴍᴏᴘꜱᴛᴜᴠᴡᴢꜰ", "agiiijRYNLHGBACDEJKMOPSTUVWZF"),
    # the Braille pattern without dots
    ("\u2800", " "),
)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BOXED = (0x1F150, 0x1F170, 0x1F1E6)
"""The first letters of the white-on-black circled and squared alphabets and of the regional indicators."""


def _look_alikes() -> dict[str, str]:
    table: dict[str, str] = {}
    for characters, letters in _LOOK_ALIKES:
        table.update(zip(characters, letters, strict=True))
    for first in _BOXED:
        table.update((chr(first + number), letter) for number, letter in enumerate(_LETTERS))
    return table


_LOOK_ALIKE = _look_alikes()
_MAX_CACHED = 0x10000


class _Table(dict[int, str]):
    """The normalised form of each character, computed on first use. Keeps a limited number of them: 8 MB at most."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if _IS_DROPPED(character):
            normal = ""
        else:
            normal = "".join([_LOOK_ALIKE.get(each, each) for each in unicodedata.normalize("NFKC", character)])
        if len(self) < _MAX_CACHED:
            self[code] = normal
        return normal


_TABLE = _Table()
_OWN_FORM = (
    "\t-\r -~\u00c0-\u0130\u2010\u2012-\u2015\u2018-\u201d\u2022\u3001\u3002\u3041-\u3096\u30a1-\u30fa"
    "\u4e00-\u9fff\uac00-\ud7a3"
)
"""A character class: the commonest characters that are their own normalised form, letters of Western and East Asian
languages. Skipping those makes their texts ten times as fast."""
_MAY_CHANGE = re.compile(f"[^{_OWN_FORM}]++(?:[{_OWN_FORM}]{{1,3}}[^{_OWN_FORM}]++)*+")
"""Runs of other characters, together with short gaps: one run for many words is twice as fast as one for each."""


def is_plain(text: str) -> bool:
    """Return True if the text is ASCII without control characters."""
    if not text.isascii():
        return False
    # `isprintable` is faster for a word, and takes three times as long for a page.
    return (len(text) < _SHORT and text.isprintable()) or len(text.encode().translate(None, _CONTROLS)) == len(text)


def normalise(text: str) -> str:
    return text if is_plain(text) else _MAY_CHANGE.sub(_normalise_run, text)


def _normalise_run(run: re.Match[str]) -> str:
    return run[0].translate(_TABLE)


def normalised_starts(text: str) -> Sequence[int]:
    """Return the position in the text of each character of its normalised form."""
    starts = array("I")
    done = 0
    uneven = "".join([character for character in set(text) if len(_TABLE[ord(character)]) != 1])
    for match in re.finditer(f"[{re.escape(uneven)}]", text) if uneven else ():
        position = match.start()
        starts.extend(range(done, position))
        starts.extend([position] * len(_TABLE[ord(match[0])]))
        done = position + 1
    starts.extend(range(done, len(text)))
    return starts
