from __future__ import annotations

from penstock.settings.flag_suggestions import SYNONYMS, suggest_flag
from penstock.settings.flags import FLAGS, SPELLINGS, UNSUPPORTED_FLAGS

BUILT = [spelling for flag in FLAGS for spelling in flag.spellings]
NOT_BUILT = [spelling for row in UNSUPPORTED_FLAGS for spelling in row.spellings]


def test_another_tools_words_are_not_flags_and_lead_to_flags_that_are_built() -> None:
    for word, flags in SYNONYMS.items():
        assert word not in SPELLINGS
        assert {part for part in flags.split() if part.startswith("-")} <= set(BUILT)


def test_a_flag_that_is_built_is_meant_rather_than_one_that_is_not() -> None:
    assert suggest_flag("--concurency", BUILT, NOT_BUILT) == "--concurrency"
    assert suggest_flag("--warmup", BUILT, NOT_BUILT) == "--warmup-request-count"
    assert suggest_flag("--error-rate", BUILT, NOT_BUILT) == "--max-error-rate"
    assert suggest_flag("--warmup-durations", BUILT, NOT_BUILT) == "--warmup-duration"
    assert suggest_flag("--zebra", BUILT, NOT_BUILT) is None
