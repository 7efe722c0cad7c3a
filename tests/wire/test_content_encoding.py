"""Decoding of compressed bodies."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.content_encoding import BadCoding, decoded

COMPRESSED = gzip.compress(b"hello " * 100, mtime=0)


@given(st.binary())
def test_decoding_reverses_every_supported_coding(body):
    assert decoded(b"identity", body) == body
    assert decoded(b"deflate", zlib.compress(body)) == body
    for name in (b"gzip", b"x-gzip"):
        assert decoded(name, gzip.compress(body)) == body


def test_gzip_members_are_concatenated():
    assert decoded(b"gzip", gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


def test_empty_body_stays_empty_in_any_coding():
    assert decoded(b"gzip", b"") == decoded(b"br", b"") == b""


@given(st.integers(1, len(COMPRESSED) - 1))
def test_truncated_body_is_refused(length):
    with pytest.raises(BadCoding, match="cut short"):
        decoded(b"gzip", COMPRESSED[:length])


def test_decoded_size_is_limited():
    assert len(decoded(b"gzip", COMPRESSED, 600)) == 600
    with pytest.raises(BadCoding, match="more than 599 bytes"):
        decoded(b"gzip", COMPRESSED, 599)
    with pytest.raises(BadCoding, match="more than 1,000 bytes"):
        decoded(b"gzip", COMPRESSED + COMPRESSED, 1000)


@pytest.mark.parametrize(
    ("coding", "body", "message"),
    [
        (b"gzip", b'{"plain": true}', "says gzip but is not"),
        (b"gzip", COMPRESSED + b"rest", "says gzip but is not"),
        (b"br", b"\x0b\x02\x80", "encoded as 'br', which was not asked for"),
    ],
)
def test_undecodable_body_is_refused_with_the_reason(coding, body, message):
    with pytest.raises(BadCoding, match=message):
        decoded(coding, body)
