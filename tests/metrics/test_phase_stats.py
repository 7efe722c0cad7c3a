"""Grouping of error messages."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.metrics.phase_stats import _VARIABLE

LONG = "x" * 500


@given(st.text(st.sampled_from("ab1_- .:é٣"), max_size=30))
@example(LONG)
@example(f"{LONG}1")
@example(f"1{LONG} {LONG}")
def test_pattern_with_lookbehind_replaces_the_same_words(text):
    assert _VARIABLE.sub("#", text) == re.sub(r"[\w-]*\d[\w-]*", "#", text)
