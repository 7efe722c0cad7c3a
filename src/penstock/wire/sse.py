"""Server-sent events, without I/O: a complete body in, the data of its events out.

The parser accepts LF, CRLF or CR line ends, `data:` with or without a space, several data lines, comments, `event:`,
`id:` and `retry:` lines, a byte-order mark, and a last event without its blank line. The common form (each event is one
`data: …` line, LF line ends) is recognized by counting line ends and then split at once; any other form is parsed line
by line.
"""

from __future__ import annotations

from itertools import accumulate

_BOM = b"\xef\xbb\xbf"


class Events:
    """Parallel lists: the data of each event, its end offset in the body, and its name (None if no event has a name)."""

    def __init__(self, data: list[bytes], ends: list[int], names: list[bytes] | None) -> None:
        self.data = data
        self.ends = ends
        self.names = names


def split(body: bytes) -> Events:
    parts = body.split(b"\n\n")
    if parts[-1] == b"":
        parts.pop()
        # two newlines per event and no carriage return: every event is one line
        if body.count(b"\n") == 2 * len(parts) and b"\r" not in body:
            data = [part[6:] for part in parts if part.startswith(b"data: ")]
            if len(data) == len(parts):
                return Events(data, list(accumulate([len(part) + 2 for part in parts])), None)
    return _by_line(body)


def _by_line(body: bytes) -> Events:
    data: list[bytes] = []
    ends: list[int] = []
    names: list[bytes] = []
    pending: list[bytes] = []
    name = b""
    position = len(_BOM) if body.startswith(_BOM) else 0
    for line in body[position:].splitlines(keepends=True):
        # bytes.splitlines breaks only at LF, CRLF and CR, which are the line ends of the SSE standard
        position += len(line)
        text = line.rstrip(b"\r\n")
        if not text:
            if pending:
                data.append(b"\n".join(pending))
                ends.append(position)
                names.append(name)
            pending = []
            name = b""
            continue
        field, _, value = text.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            pending.append(value)
        elif field == b"event":
            name = value
    if pending:
        data.append(b"\n".join(pending))
        ends.append(position)
        names.append(name)
    return Events(data, ends, names if any(names) else None)
