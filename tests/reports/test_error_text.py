"""One-line error messages."""

from __future__ import annotations

import pytest

from penstock.reports.error_text import one_line

LONG = '{"error":{"code":500,"message":"The \\"model\\" is ' + "very " * 200

PAGE = """<!DOCTYPE html>
<html><head><title>502 Bad Gateway</title><style>p {color: red}</style></head>
<body><h1>502 &amp; gone</h1><!-- <p>x</p> --></body></html>"""


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("No complete reply\n within 3 s.", "No complete reply within 3 s."),
        ('{"error":{"message":"boom\\nand gone","type":"server_error"}}', "boom and gone"),
        ('{"error": "boom"}', "boom"),
        ('{"object":"error","message":"boom","code":400}', "boom"),
        ('{"detail":"Not Found"}', "Not Found"),
        ('{"detail":[{"msg":"field required"}]}', '{"detail":[{"msg":"field required"}]}'),
        ('{"error":{"message":""}}', '{"error":{"message":""}}'),
        ('{"status": 500}', '{"status": 500}'),
        ("{not json", "{not json"),
        (LONG, ('The "model" is ' + "very " * 200).strip()),
        (LONG + "\\u12", 'The \\"model\\" is ' + "very " * 200 + "\\u12"),
        ('{"a":' * 100_000, '{"a":' * 100_000),
        (
            PAGE,
            "502 Bad Gateway 502 & gone",
        ),
        ("<html><body><p>cut in a ta<b", "cut in a ta"),
        ("<html>", "<html>"),
        ("<stream> is odd", "<stream> is odd"),
    ],
)
def test_error_message_is_shortened_to_one_line(message: str, shown: str) -> None:
    assert one_line(message) == shown
