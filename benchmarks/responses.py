"""The Responses API: requests per second against AIPerf 0.13.0, the reading of a stream, and images in time.

    python -m benchmarks.responses

The events of this API are longer than those of chat completions (22 KB a reply of 100 tokens, against 18), each with
a number of its own; the target is the same.
"""

from __future__ import annotations

import timeit
from functools import partial
from typing import Literal

from benchmarks.far_end import line
from benchmarks.throughput import run

_IMAGES = 1000
_IMAGES_S = 10.0
_READING_US = 100.0


def _stream(tokens: int) -> bytes:
    """What vLLM sends: the text before the number, both different in each event."""
    delta = (
        'event: response.output_text.delta\ndata: {{"content_index":0,"delta":" token{text}","item_id":"msg_{item}",'
        '"logprobs":[],"output_index":0,"sequence_number":{number},"type":"response.output_text.delta"}}\n\n'
    )
    parts = [delta.format(text=number % 7, item="0" * 32, number=number + 4) for number in range(tokens)]
    end = 'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed","output":[]}}\n\n'
    return "".join([*parts, end]).encode()


def reading() -> bool:
    from penstock.endpoints.responses import Responses

    body, read = _stream(100), Responses().read_stream
    assert len(read(body, timed=True).texts) == 100
    took = min(timeit.repeat(lambda: read(body, timed=False), number=200, repeat=20)) / 200 * 1e6
    passed = took <= _READING_US
    line("a stream of 100 deltas, read", f"{took:.0f} µs", f"at most {_READING_US:.0f} µs", "", passed)
    return passed


def images() -> bool:
    from penstock.datasets.media.images import images as made
    from penstock.settings.schema import ImageSettings

    passed = True
    forms: tuple[Literal["jpeg", "png"], ...] = ("jpeg", "png")
    for form in forms:
        settings = ImageSettings(width_mean=512, height_mean=512, format=form)
        took = timeit.timeit(partial(made, settings, 1, _IMAGES), number=1)
        name = f"{_IMAGES:,} different {form.upper()} images of 512 x 512"
        line(name, f"{took:.1f} s", f"at most {_IMAGES_S:.0f} s", "", took <= _IMAGES_S)
        passed = passed and took <= _IMAGES_S
    return passed


def main() -> bool:
    fast = run(True, 40_000, ("--endpoint-type", "responses"), "responses, ")
    return all([fast, reading(), images()])


if __name__ == "__main__":
    raise SystemExit(not main())
