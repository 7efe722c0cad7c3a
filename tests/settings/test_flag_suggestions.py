from __future__ import annotations

from penstock.settings.flag_suggestions import OTHER_WORDS, meant
from penstock.settings.flags import FLAGS, SPELLINGS

BUILT = {spelling for flag in FLAGS for spelling in flag.spellings}


def test_another_tools_words_are_not_flags_and_lead_to_flags_that_are_built() -> None:
    for word, flags in OTHER_WORDS.items():
        assert word not in SPELLINGS
        assert {part for part in flags.split() if part.startswith("-")} <= BUILT


def test_a_flag_that_is_built_is_meant_rather_than_one_that_is_not() -> None:
    assert meant("--concurency") == "--concurrency"
    assert meant("--warmup") == "--warmup-request-count"
    assert meant("--error-rate") == "--max-error-rate"
    assert meant("--warmup-durations") == "--warmup-duration"
    assert meant("--zebra") is None
