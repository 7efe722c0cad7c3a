"""Server-sent events, without I/O: a whole body in, the data of its events out.

Liberal in form: LF, CRLF or CR line ends, `data:` with or without the space, several data lines, comments, `event:`,
`id:` and `retry:` lines, a byte-order mark, and a last event without its blank line. The common form (one `data: …` line
and a blank line, LF) is taken apart by two counts and a split; anything else goes line by line.
"""

from __future__ import annotations

from itertools import accumulate

__all__ = ["Events", "split"]

_BOM = b"\xef\xbb\xbf"


class Events:
    """Parallel lists: data, the offset in the body just behind the event, and the event's name if any had one."""

    __slots__ = ("data", "ends", "names")

    def __init__(self, data: list[bytes], ends: list[int], names: list[bytes] | None) -> None:
        self.data = data
        self.ends = ends
        self.names = names


def split(body: bytes) -> Events:
    parts = body.split(b"\n\n")
    if parts[-1] == b"":
        parts.pop()
        # every newline belongs to an event's end, and no carriage return: one line an event
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
        # bytes.splitlines breaks at LF, CRLF and CR alone, which are the line ends of the standard
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
