"""Bodies that came compressed."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.content_encoding import BadCoding, decoded

PACKED = gzip.compress(b"hello " * 100, mtime=0)


@given(st.binary())
def test_what_was_packed_is_unpacked(body):
    assert decoded(b"identity", body) == body
    assert decoded(b"deflate", zlib.compress(body)) == body
    for name in (b"gzip", b"x-gzip"):
        assert decoded(name, gzip.compress(body)) == body


def test_members_in_a_row_are_one_body():
    assert decoded(b"gzip", gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


def test_nothing_is_nothing():
    assert decoded(b"gzip", b"") == decoded(b"br", b"") == b""


@given(st.integers(1, len(PACKED) - 1))
def test_a_body_that_was_cut_is_refused(length):
    with pytest.raises(BadCoding, match="cut short"):
        decoded(b"gzip", PACKED[:length])


def test_it_grows_to_the_limit_and_no_further():
    assert len(decoded(b"gzip", PACKED, 600)) == 600
    with pytest.raises(BadCoding, match="more than 599 bytes"):
        decoded(b"gzip", PACKED, 599)
    with pytest.raises(BadCoding, match="more than 1,000 bytes"):
        decoded(b"gzip", PACKED + PACKED, 1000)


@pytest.mark.parametrize(
    ("coding", "body", "sentence"),
    [
        (b"gzip", b'{"plain": true}', "says gzip but is not"),
        (b"gzip", PACKED + b"rest", "says gzip but is not"),
        (b"br", b"\x0b\x02\x80", "encoded as 'br', which was not asked for"),
    ],
)
def test_what_cannot_be_read_is_said(coding, body, sentence):
    with pytest.raises(BadCoding, match=sentence):
        decoded(coding, body)
