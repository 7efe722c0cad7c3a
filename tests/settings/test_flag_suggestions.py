from __future__ import annotations

from penstock.settings.flag_suggestions import SYNONYMS, suggest_flag
from penstock.settings.flags import FLAGS, SPELLINGS, UNSUPPORTED_FLAGS

SUPPORTED = [spelling for flag in FLAGS for spelling in flag.spellings]
UNSUPPORTED = [spelling for row in UNSUPPORTED_FLAGS for spelling in row.spellings]


def test_synonyms_are_not_flags_and_suggest_supported_flags() -> None:
    for word, flags in SYNONYMS.items():
        assert word not in SPELLINGS
        assert {part for part in flags.split() if part.startswith("-")} <= set(SUPPORTED)


def test_supported_flags_are_suggested_before_unsupported_ones() -> None:
    assert suggest_flag("--concurency", SUPPORTED, UNSUPPORTED) == "--concurrency"
    assert suggest_flag("--warmup", SUPPORTED, UNSUPPORTED) == "--warmup-duration"
    assert suggest_flag("--error-rate", SUPPORTED, UNSUPPORTED) == "--max-error-rate"
    assert suggest_flag("--warmup-durations", SUPPORTED, UNSUPPORTED) == "--warmup-duration"
    assert suggest_flag("--zebra", SUPPORTED, UNSUPPORTED) is None
