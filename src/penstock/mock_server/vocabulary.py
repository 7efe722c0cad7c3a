"""The text of the mock model's replies: common words, each of which is one token with its leading space.

This holds for the vocabularies of Qwen and Mistral (Tekken), so a client that counts the tokens of a reply gets the number
in the usage block. A reply is a prefix of one of sixteen endless word sequences: replies differ, and rendered bytes can be
cached.
"""

from __future__ import annotations

import random
from functools import lru_cache

VARIANTS = 16
PERIOD = 1024
"""Words after which a sequence repeats."""

_TEXT = """
about above across after again against air all along also always and animal answer area around ask author bank base
before behind below between big bird black blue board boat body book both bottom box bread bridge bring brother brown
build building business call camera capital car card care carry case cat center century chair change check child
church circle city class clear cloud coast cold color common company cook corner cost could country course court cover
cross dark daughter day deep desk different direct doctor dog door double down draw dream dress drive early earth east
edge eight end energy engine even evening event every example eye face fact fall family farm fast father few field
figure film final find fire first fish five floor flow follow food foot force forest form four free fresh friend from
front full game garden gate gave girl glass gold good grass great green ground group grow guide half hall hand happy
hard head hear heart heat heavy help high hill history home horse hotel hour house human hundred idea image inside
island issue join journey just keep key kind king kitchen lady lake land language large last late law lead leaf learn
left letter level life light line list little local long look low machine main many map mark market master matter
member memory metal middle mile milk mind minute mirror moment money month moon more morning most mother mountain move
music name nature near never new news next night nine north note nothing number ocean office often old once one only
open order other outside over own page paper park part past path peace people perhaps person phone piece place plan
plant play point pool port post power press price print public quarter queen question quick quiet radio rain range
rather reach read ready real red rest right ring rise river road rock roof room root round rule run safe salt same
sand
"""
WORDS = tuple(_TEXT.split())


@lru_cache(maxsize=256)
def sequence(seed: int, variant: int) -> tuple[str, ...]:
    return tuple(" " + word for word in random.Random(seed * VARIANTS + variant).choices(WORDS, k=PERIOD))


def words(seed: int, variant: int, start: int, count: int, per_token: int = 1) -> list[str]:
    """Return `count` tokens of a sequence, from token `start` on. Each is `per_token` words."""
    if per_token > 1:
        parts = words(seed, variant, start * per_token, count * per_token)
        return ["".join(parts[i : i + per_token]) for i in range(0, len(parts), per_token)]
    source = sequence(seed, variant % VARIANTS)
    first = start % PERIOD
    if first + count <= PERIOD:
        return list(source[first : first + count])
    return [source[i % PERIOD] for i in range(start, start + count)]
